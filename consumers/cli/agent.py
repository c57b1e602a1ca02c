"""`sealbus agent list|show`: which agents are up, and what they handle. `producers.directory` keeps the view."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import click
import msgspec

from bus.clock import SystemClock
from bus.errors import BusError
from bus.nearest import nearest
from bus.settings.schema import Settings
from bus.telemetry.terminal import printable
from bus.telemetry.terminal_json import details
from consumers.cli.exit_codes import FAILED, LATER
from consumers.cli.io.output import Detail, Listing, VerbResult
from consumers.cli.io.parameter_types import DURATION_TYPE
from consumers.cli.io.printing import print_json
from consumers.cli.session import CommandSession, limit_option, verb
from consumers.cli.shell import VerbGroup
from consumers.operations.survey.survey import opened_directory
from producers.directory import Directory
from producers.directory.agent_rows import AgentRow, HealthChange, agent_row, wait_for_heartbeat

__all__ = ["agent"]


@click.group(cls=VerbGroup)
def agent() -> None:
    """Show the agents that are up: the types they handle, and their health.

    Workers send a heartbeat every ten seconds; an agent is healthy if one of its workers has sent one within 35
    seconds. Capabilities are those that the policy grants; unconfirmed ones are marked.

    \b
    Examples:
      sealbus agent list
      sealbus agent list --watch
      sealbus agent show researcher@svc
    """


@agent.command("list")
@click.option("--all", "everything", is_flag=True, help="Also those that have left.")
@click.option("--capability", metavar="NAME", help="Only those to whom the policy grants it.")
@click.option("--type", "message_type", metavar="TYPE", help="Only those that accept messages of this type.")
@click.option("--watch", is_flag=True, help="Print each change of health, until Ctrl-C.")
@limit_option
@verb(AgentRow, HealthChange)
async def list_(
    session: CommandSession,
    *,
    everything: bool,
    capability: str | None,
    message_type: str | None,
    watch: bool,
    limit: int,
) -> VerbResult | int:
    """List agents, healthy ones first.

    \b
    Examples:
      sealbus agent list --type desk.question
      sealbus agent list --all -o json
      sealbus agent list --watch
    """
    settings = session.settings()
    async with _opened(session, settings) as directory:
        if watch:
            return await _watch(session, directory)
        heard = list(await directory.find(capability=capability, type=message_type, healthy=None))
    found = sorted(
        (each for each in heard if everything or each.health != "gone"),
        key=lambda each: (not each.is_healthy, each.agent_id),
    )
    empty = "no agents found. Is a worker running, with directory.enabled = true?"
    if heard:
        empty = "no agent is up; --all shows those that have left"
    elif capability or message_type:
        empty = "no agent matches"
    more = [f"{len(found) - limit} more: --limit"] if len(found) > limit else []
    return Listing(
        [agent_row(each) for each in found[:limit]],
        {
            "AGENT": "agent",
            "HEALTH": "health",
            "WORKERS": "workers",
            "HEARTBEAT": lambda row: "-" if row.heartbeat_s_ago is None else f"{row.heartbeat_s_ago:.0f} s ago",
            "RUNNING": "running",
            "CAPABILITIES": lambda row: ", ".join(
                [*row.capabilities, *(f"{each} (unconfirmed)" for each in row.unconfirmed_capabilities)]
            ),
        },
        empty=empty,
        notes=more,
    )


@agent.command()
@click.argument("name", metavar="AGENT")
@click.option(
    "--wait-heartbeat",
    type=DURATION_TYPE,
    help="Wait so long for the next heartbeat; exit code 75 if none arrives.",
)
@verb(AgentRow)
async def show(session: CommandSession, *, name: str, wait_heartbeat: float | None) -> VerbResult:
    """Show one agent: its health, its workers, what it accepts in which versions.

    \b
    Examples:
      sealbus agent show researcher@svc
      sealbus agent show researcher@svc --wait-heartbeat 30s
    """
    settings = session.settings()
    code, notes = 0, []
    async with _opened(session, settings) as directory:
        if wait_heartbeat is not None:
            waited_s = await wait_for_heartbeat(directory, name, wait_heartbeat)
            code = LATER if waited_s is None else 0
            notes = [
                f"no heartbeat of {printable(name)} within {wait_heartbeat:g} s"
                if waited_s is None
                else f"heartbeat after {waited_s:.1f} s"
            ]
        entry = await directory.get(name)
        names = [each.agent_id for each in await directory.find(healthy=None)]
    if entry is None:
        error = BusError(f"unknown agent {name}: no worker has announced it{nearest(name, names)}")
        error.add_note("`sealbus agent list --all` shows the known ones")
        raise error
    if not code and wait_heartbeat is not None and not entry.is_healthy:
        code = FAILED
    row = agent_row(entry)
    shown = {field.replace("_", " "): value for field, value in msgspec.structs.asdict(row).items()}
    return Detail(row, details(shown, width=26), notes=notes, code=code)


async def _watch(session: CommandSession, directory: Directory) -> int:
    async for change in directory.watch():
        at = time.strftime("%H:%M:%S")
        if session.as_json:
            row = HealthChange(agent=change.agent.agent_id, before=change.before, health=change.agent.health, at=at)
            print_json(row)
        else:
            click.echo(f"{at} {printable(change.agent.agent_id)}: {change.before} -> {change.agent.health}")
    return 0


@asynccontextmanager
async def _opened(session: CommandSession, settings: Settings) -> AsyncGenerator[Directory]:
    async with (
        session.open(settings) as transport,
        opened_directory(transport, settings, SystemClock()) as directory,
    ):
        yield directory
