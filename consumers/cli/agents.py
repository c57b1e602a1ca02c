"""`sealbus agents list|show|ping|watch|serve`: who is there.

Owns the verbs and their output; `producers.directory` keeps the view.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import click

from bus.clock import SystemClock
from bus.nearest import nearest
from bus.settings.schema import Settings
from bus.telemetry.terminal import printable
from consumers.cli.exit_codes import FAILED, LATER
from consumers.cli.interrupts import execute
from consumers.cli.io.parameter_types import DURATION_TYPE
from consumers.cli.io.printing import print_json, print_table
from consumers.cli.session import CommandSession, with_session
from consumers.cli.shell import VerbGroup
from consumers.operations.survey.survey import opened_directory
from producers.directory import AgentEntry, Directory

__all__ = ["agents"]


@click.group(cls=VerbGroup)
def agents() -> None:
    """Show the agents that are up: the types they handle, and their health.

    Workers send a heartbeat every ten seconds; an agent is healthy if one of its instances has sent one within 35
    seconds. Capabilities are those that the policy grants; unconfirmed ones are marked.

    \b
    Examples:
      sealbus agents list
      sealbus agents show researcher@svc
      sealbus agents watch
    """


@agents.command(name="list")
@click.option("--all", "everything", is_flag=True, help="Also those that have left.")
@click.option("--capability", metavar="NAME", help="Only those that have it, by the policy.")
@click.option("--type", "message_type", metavar="TYPE", help="Only those that take messages of this type.")
@with_session
def list_agents(session: CommandSession, *, everything: bool, capability: str | None, message_type: str | None) -> int:
    """List agents, healthy ones first.

    \b
    Examples:
      sealbus agents list --type research.request
      sealbus agents list --all --output json
    """
    settings = session.settings()

    async def body(_: object) -> int:
        async with _opened(session, settings) as directory:
            heard = list(await directory.find(capability=capability, type=message_type, healthy=None))
        found = [each for each in heard if everything or each.health != "gone"]
        found.sort(key=lambda each: (not each.is_healthy, each.agent_id))
        if session.as_json:
            for each in found:
                print_json(_described(each))
        elif found:
            rows = [
                (each.agent_id, each.health, each.instances, _ago(each), each.active_tasks or 0, _able(each))
                for each in found
            ]
            print_table(("AGENT", "HEALTH", "INSTANCES", "HEARD", "AT WORK", "CAPABILITIES"), rows)
        elif heard:
            click.echo("no agent is up; --all shows those that have left", err=True)
        elif capability or message_type:
            click.echo("no agent matches", err=True)
        else:
            click.echo("no agents found. Is a worker running, with directory.enabled = true?", err=True)
        return 0

    return execute(body)


@agents.command()
@click.argument("agent", metavar="AGENT")
@with_session
def show(session: CommandSession, *, agent: str) -> int:
    """Show one agent: its health, its instances, what it takes in which versions.

    \b
    Examples:
      sealbus agents show researcher@svc
    """
    settings = session.settings()

    async def body(_: object) -> int:
        async with _opened(session, settings) as directory:
            entry = await directory.get(agent)
            names = [each.agent_id for each in await directory.find(healthy=None)]
        if entry is None:
            click.echo(f"{printable(agent)} was never heard of{nearest(agent, names)}", err=True)
            return FAILED
        if session.as_json:
            print_json(_described(entry))
            return 0
        for name, value in _described(entry).items():
            shown = ", ".join(map(str, value)) if isinstance(value, list | tuple) else value
            click.echo(f"{name:<13} {printable(str(shown if shown not in (None, '') else '-'))}")
        return 0

    return execute(body)


@agents.command()
@click.argument("agent", metavar="AGENT")
@click.option(
    "--wait", type=DURATION_TYPE, default=35.0, show_default="35s", help="How long to wait for a sign of life."
)
@with_session
def ping(session: CommandSession, *, agent: str, wait: float) -> int:
    """Wait for the next sign of life of AGENT. The exit code is 0 when it came, 75 when it did not.

    \b
    Examples:
      sealbus agents ping researcher@svc
    """
    settings = session.settings()

    async def body(_: object) -> int:
        async with _opened(session, settings) as directory:
            begun_s = time.monotonic()
            before = await directory.get(agent)
            known_s = None if before is None or before.heard_s_ago is None else begun_s - before.heard_s_ago
            while time.monotonic() - begun_s < wait:
                entry = await directory.get(agent)
                now_s = time.monotonic()
                heard_s = None if entry is None or entry.heard_s_ago is None else now_s - entry.heard_s_ago
                if entry is not None and heard_s is not None and (known_s is None or heard_s > known_s + 0.1):
                    click.echo(f"{printable(agent)} is {entry.health}, heard after {now_s - begun_s:.1f} s")
                    return 0 if entry.is_healthy else FAILED
                await asyncio.sleep(0.2)
        click.echo(f"{printable(agent)} was not heard for {wait:g} s", err=True)
        return LATER

    return execute(body)


@agents.command()
@with_session
def watch(session: CommandSession) -> int:
    """Print every agent whose health changes, until Ctrl-C.

    \b
    Examples:
      sealbus agents watch --output json
    """
    settings = session.settings()

    async def body(_: object) -> int:
        async with _opened(session, settings) as directory:
            async for change in directory.watch():
                if session.as_json:
                    print_json({"before": change.before, **_described(change.agent)})
                else:
                    name = printable(change.agent.agent_id)
                    click.echo(f"{time.strftime('%H:%M:%S')} {name}: {change.before} -> {change.agent.health}")
        return 0

    return execute(body)


@agents.command()
@with_session
def serve(session: CommandSession) -> int:
    """Run the agent registry@sealbus, which answers agent.discover, until Ctrl-C.

    \b
    Examples:
      sealbus agents serve
    """
    from consumers.agents.directory.registry import registry_app
    from consumers.worker.process import run_process

    settings = session.settings()
    session.announce()
    return asyncio.run(run_process([registry_app(settings).declaration], settings))


@asynccontextmanager
async def _opened(session: CommandSession, settings: Settings) -> AsyncGenerator[Directory]:
    async with (
        session.open(settings) as transport,
        opened_directory(transport, settings, SystemClock()) as directory,
    ):
        yield directory


def _described(entry: AgentEntry) -> dict[str, Any]:
    return {
        "agent": entry.agent_id,
        "health": entry.health,
        "instances": entry.instances,
        "heard_s_ago": None if entry.heard_s_ago is None else round(entry.heard_s_ago, 1),
        "active_tasks": entry.active_tasks,
        "capabilities": list(entry.capabilities),
        "claimed": list(entry.claimed),
        "accepts": sorted({each for ranges in entry.accepts for each in ranges}),
        "roles": list(entry.roles),
        "name": entry.name,
    }


def _ago(entry: AgentEntry) -> str:
    return "-" if entry.heard_s_ago is None else f"{entry.heard_s_ago:.0f} s ago"


def _able(entry: AgentEntry) -> str:
    claimed = [f"{each} (claimed)" for each in entry.claimed]
    return ", ".join([*entry.capabilities, *claimed])
