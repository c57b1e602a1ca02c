"""`sealbus processes list|show|cancel` and `sealbus waits list`: long-running work, and what it waits for.

Owns the verbs and their output. Rows are read and changed by `consumers.sagas.store`.
"""

from __future__ import annotations

from typing import Any, Final

import click
import msgspec

from bus.clock import SystemClock
from bus.errors import BusError, ConfigurationError
from bus.protocol import sealing
from bus.protocol.timestamps import format_ms
from bus.telemetry.terminal import printable
from consumers.approvals.state import APPROVAL_SAGA
from consumers.cli.exit_codes import FAILED
from consumers.cli.interrupts import execute
from consumers.cli.io.printing import print_json, print_table
from consumers.cli.session import CommandSession, with_session
from consumers.cli.shell import VerbGroup
from consumers.deadletters.journal import Journal, prepare_journal
from consumers.sagas.opening import opened_store
from consumers.sagas.process import Process, Wait
from consumers.sagas.store import ProcessChange, ProcessStore

__all__ = ["cancel", "chosen_process", "opened_store", "processes", "waits"]

_ID_DIGITS: Final = 12
_OVERDUE_MS: Final = 60_000
_SQLITE: Final = "sqlite:///"


@click.group(cls=VerbGroup)
def processes() -> None:
    """Show the processes of sagas: long-running work, each run of it a row beside the inbox.

    The rows are in the inbox's database: give --config, or SEALBUS_INBOX__URL, as the workers have it.

    \b
    Examples:
      sealbus processes list --saga buying
      sealbus processes show 3f9a1c
      sealbus processes cancel 3f9a1c --why "ordered twice"
    """


@click.group(cls=VerbGroup)
def waits() -> None:
    """Show what processes wait for: answers and times.

    \b
    Examples:
      sealbus waits list
      sealbus waits list --overdue
    """


_group_option = click.option("--group", metavar="GROUP", help="Only those of this group.")


@processes.command(name="list")
@_group_option
@click.option("--saga", metavar="NAME", help="Only those of this saga.")
@click.option("--status", type=click.Choice(["open", "finished"]), help="Only open ones, or finished ones.")
@click.option("--limit", type=click.IntRange(1, 100_000), default=100, show_default=True, help="At most so many.")
@with_session
def list_processes(
    session: CommandSession, *, group: str | None, saga: str | None, status: str | None, limit: int
) -> int:
    """List processes, those that changed last first.

    \b
    Examples:
      sealbus processes list --status open
      sealbus processes list --saga approval --output json
    """
    settings = session.settings()

    async def body(_: object) -> int:
        async with opened_store(settings, group) as store:
            found = await store.processes(saga=saga, status=status, most=limit)
        if session.as_json:
            for process in found:
                print_json(_described(process))
        elif found:
            rows = [
                (each.id.hex()[:_ID_DIGITS], each.group, each.saga, each.key, each.version, each.status, _ago(each))
                for each in found
            ]
            print_table(("ID", "GROUP", "SAGA", "KEY", "STEPS", "STATUS", "CHANGED"), rows)
        else:
            click.echo("no process is stored here", err=True)
        return 0

    return execute(body)


@processes.command()
@click.argument("process", metavar="ID")
@with_session
def show(session: CommandSession, *, process: str) -> int:
    """Show one process: its state, what opened it, and what it waits for. ID may be its first digits.

    \b
    Examples:
      sealbus processes show 3f9a1c
    """
    settings = session.settings()

    async def body(_: object) -> int:
        async with opened_store(settings, None) as store:
            found = await chosen_process(store, process)
            waiting = await store.waits_of(found.id)
            held = await store.holds_of(found.id)
        described = {
            **_described(found),
            "state": _state_of(found),
            "opener": _opener_of(found),
            "waits": [_wait_described(wait) for wait in waiting],
            "held": len(held),
        }
        if session.as_json:
            print_json(described)
        else:
            for name, value in described.items():
                if name not in ("state", "waits"):
                    click.echo(f"{name:<10} {printable(str(value))}")
            click.echo(f"{'state':<10} {printable(msgspec.json.encode(described['state']).decode())}")
            rows = [
                (wait.name, "answer" if wait.seal else "time", wait.addressee or "-", format_ms(wait.due_ms))
                for wait in waiting
            ]
            if rows:
                print_table(("WAITS FOR", "WHAT", "OF", "UNTIL"), rows)
        return 0

    return execute(body)


@processes.command()
@click.argument("process", metavar="ID")
@click.option("--why", metavar="TEXT", required=True, help="Why, for the journal.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@with_session
def cancel(session: CommandSession, *, process: str, why: str, yes: bool) -> int:
    """End a process: its waits go, and messages for it are refused from now on.

    What it has asked for may still be worked on by those who were asked; their answers are passed over. It is noted in
    the journal. An approval is not ended here: `sealbus approvals reject` tells its requester.

    \b
    Examples:
      sealbus processes cancel 3f9a1c --why "ordered twice"
    """
    settings = session.settings()

    async def body(_: object) -> int:
        async with opened_store(settings, None) as store:
            found = await chosen_process(store, process)
            if found.saga == APPROVAL_SAGA:
                raise ConfigurationError("this is an approval: `sealbus approvals reject` decides about it")
            if found.status == "finished":
                click.echo("it is finished already", err=True)
                return 0
            waiting = await store.waits_of(found.id)
            if not yes:
                click.confirm(
                    f"End {printable(found.saga)} {printable(found.key)} with {len(waiting)} waits?",
                    abort=True,
                    err=True,
                )
            after = msgspec.structs.replace(found, version=found.version + 1, status="finished", state=b"")
            keep_ms = round(settings.publish.max_ttl_s * 1000)
            if not await store.change(ProcessChange(before=found, after=after, keep_ms=keep_ms)):
                click.echo("it has moved meanwhile: look again", err=True)
                return FAILED
        async with session.open(settings) as transport:
            await prepare_journal(transport, settings)
            journal = Journal(transport, settings, SystemClock(), verb="processes", why=why)
            facts: dict[str, Any] = {"saga": found.saga, "key": found.key, "group": found.group, "steps": found.version}
            await journal.note("cancelled", process=found.id.hex(), why=why, **facts)
        asked = [wait.addressee or "somebody" for wait in waiting if wait.seal is not None]
        click.echo(f"ended {found.id.hex()[:_ID_DIGITS]}", err=True)
        if asked:
            click.echo(f"still asked, perhaps at work: {', '.join(map(printable, asked))}", err=True)
        return 0

    return execute(body)


@waits.command(name="list")
@_group_option
@click.option("--overdue", is_flag=True, help="Only those that have been due for a minute or more.")
@click.option("--limit", type=click.IntRange(1, 100_000), default=100, show_default=True, help="At most so many.")
@with_session
def list_waits(session: CommandSession, *, group: str | None, overdue: bool, limit: int) -> int:
    """List what processes wait for, the next due first.

    A wait that is overdue means that no worker of its group runs, that its mailbox lags, or that its step fails: see
    `sealbus groups GROUP` and `sealbus dlq list`.

    \b
    Examples:
      sealbus waits list --overdue
      sealbus waits list --group shop-svc-560acf40 --output json
    """
    settings = session.settings()

    async def body(_: object) -> int:
        async with opened_store(settings, group) as store:
            found = await store.waits(overdue_ms=_OVERDUE_MS if overdue else None, most=limit)
        if session.as_json:
            for wait, process, now_ms in found:
                print_json({**_wait_described(wait), **_short(process), "overdue_s": _late_s(wait, now_ms)})
        elif found:
            rows = [
                (
                    process.id.hex()[:_ID_DIGITS],
                    process.group,
                    process.saga,
                    process.key,
                    wait.name,
                    wait.addressee or ("anybody" if wait.seal else "time"),
                    format_ms(wait.due_ms),
                    f"{_late_s(wait, now_ms):.0f} s" if wait.due_ms <= now_ms else "-",
                )
                for wait, process, now_ms in found
            ]
            print_table(("PROCESS", "GROUP", "SAGA", "KEY", "WAIT", "OF", "DUE", "OVERDUE"), rows)
        else:
            click.echo("nothing is overdue" if overdue else "nothing waits", err=True)
        return 0

    return execute(body)


async def chosen_process(store: ProcessStore, digits: str) -> Process:
    """Return the process whose id begins with *digits*. Raises BusError."""
    found = [each for each in await store.processes(most=100_000) if each.id.hex().startswith(digits.lower())]
    if len(found) == 1:
        return found[0]
    if not found:
        raise BusError(f"there is no process {digits!r}: `sealbus processes list` shows them")
    raise BusError(f"{digits!r} begins the ids of {len(found)} processes: give more digits")


def _described(process: Process) -> dict[str, Any]:
    return {
        **_short(process),
        "steps": process.version,
        "status": process.status,
        "shape": process.shape,
        "trust": process.trust,
        "opened_at": format_ms(process.opened_ms),
        "changed_at": format_ms(process.changed_ms),
    }


def _short(process: Process) -> dict[str, Any]:
    return {"process": process.id.hex(), "group": process.group, "saga": process.saga, "key": process.key}


def _wait_described(wait: Wait) -> dict[str, Any]:
    return {
        "wait": wait.id,
        "name": wait.name,
        "what": "answer" if wait.seal is not None else "time",
        "addressee": wait.addressee,
        "many": wait.many,
        "due_at": format_ms(wait.due_ms),
    }


def _state_of(process: Process) -> object:
    if not process.state:
        return {}
    state = msgspec.json.decode(process.state)
    # Sealed bytes say nothing to people.
    return {name: value for name, value in state.items() if name != "request"} if isinstance(state, dict) else state


def _opener_of(process: Process) -> str:
    opener = sealing.parse(process.opener)
    return f"{opener.message_type} {opener.message_id} of {opener.metadata.sender.id or '?'}"


def _late_s(wait: Wait, now_ms: int) -> float:
    return max(0.0, (now_ms - wait.due_ms) / 1000)


def _ago(process: Process) -> str:
    return format_ms(process.changed_ms)
