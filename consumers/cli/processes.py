"""`sealbus processes list|show|cancel` and `sealbus waits list`: long-running work, and what it waits for.

Owns the verbs and their output. Rows are read and changed by `consumers.processes.sagas.store`.
"""

from __future__ import annotations

from typing import Any, Final, get_args

import click
import msgspec

from bus.clock import SystemClock
from bus.errors import BusError
from bus.protocol import sealing
from bus.protocol.timestamps import format_ms
from bus.redaction import cut
from bus.telemetry.terminal import printable
from consumers.cli.exit_codes import FAILED
from consumers.cli.interrupts import execute
from consumers.cli.io.printing import print_json, print_table
from consumers.cli.session import CommandSession, with_session
from consumers.cli.shell import VerbGroup
from consumers.deadletters.journal import Journal, prepare_journal
from consumers.processes.approvals.state import APPROVAL_SAGA
from consumers.processes.sagas.opening import opened_store
from consumers.processes.sagas.process import Ending, Memory, Process, ProcessOutcome, Wait, ending_of, pack
from consumers.processes.sagas.store import ProcessChange, ProcessStore

__all__ = ["cancel", "chosen_process", "ended_members", "opened_store", "processes", "process_text", "waits"]

_ID_DIGITS: Final = 12
_OVERDUE_MS: Final = 60_000
_MAX_WHY: Final = 400
_MAX_TOLD: Final = 60
_MAX_SEARCHED: Final = 100_000


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
@click.option("--outcome", type=click.Choice(get_args(ProcessOutcome)), help="Only those that have ended so.")
@click.option("--limit", type=click.IntRange(1, 100_000), default=100, show_default=True, help="At most so many.")
@with_session
def list_processes(
    session: CommandSession,
    *,
    group: str | None,
    saga: str | None,
    status: str | None,
    outcome: str | None,
    limit: int,
) -> int:
    """List processes, those that changed last first, who opened each, and how it has ended.

    \b
    Examples:
      sealbus processes list --status open
      sealbus processes list --outcome failed
      sealbus processes list --saga approval --output json
    """
    settings = session.settings()

    async def body(_: object) -> int:
        async with opened_store(settings, group) as store:
            # How each has ended is within its state, where the database does not look.
            max_rows = limit if outcome is None else _MAX_SEARCHED
            found = await store.processes(
                saga=saga, status=status if outcome is None else "finished", max_rows=max_rows
            )
        if outcome is not None:
            ended = [each for each in found if (ending := ending_of(each)) is not None and ending.outcome == outcome]
            found = ended[:limit]
        if session.as_json:
            for process in found:
                print_json(_described(process))
        elif found:
            rows = [
                (
                    each.id.hex()[:_ID_DIGITS],
                    each.group,
                    each.saga,
                    each.key,
                    each.sender or "-",
                    each.version,
                    process_text(each),
                    _ago(each),
                )
                for each in found
            ]
            print_table(("ID", "GROUP", "SAGA", "KEY", "SENDER", "STEPS", "STATUS", "CHANGED"), rows)
        elif group or saga or status or outcome:
            click.echo("no process matches", err=True)
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
            withheld = await store.holds_of(found.id)
        described = {
            **_described(found),
            "state": _state_of(found),
            "opener": _opener_of(found),
            "waits": [_wait_described(wait) for wait in waiting],
            "held": len(withheld),
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
@click.option("--why", metavar="TEXT", required=True, help="Why, for the journal and for its requester.")
@click.option("--force", is_flag=True, help="End its row here and now: no worker knows its saga any more.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@with_session
def cancel(session: CommandSession, *, process: str, why: str, force: bool, yes: bool) -> int:
    """End a process: a worker of its group runs its @on_cancel method, and notifies the requester.

    A running worker of the group does this within a second or two. Requests of the process are cancelled, too, and
    later messages for it are refused. The journal records the cancellation. To end an approval use `sealbus approvals
    reject`, which notifies its requester. With --force no method runs and no agent is notified.

    \b
    Examples:
      sealbus processes cancel 3f9a1c --why "ordered twice"
      sealbus processes cancel 3f9a1c --why "its saga is gone" --force
    """
    settings = session.settings()
    session.announce()

    async def body(_: object) -> int:
        async with opened_store(settings, None) as store:
            found = await chosen_process(store, process)
            if found.saga == APPROVAL_SAGA:
                raise BusError("this is an approval: `sealbus approvals reject` decides about it")
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
            if not force and not await store.ask_to_cancel(found, why):
                click.echo("that is asked already: a worker of its group ends it", err=True)
                return 0
            if force and not await _forced(store, found, why, keep_ms=round(settings.publish.max_ttl_s * 1000)):
                click.echo("it changed while you decided, and nothing was done: run the command again", err=True)
                return FAILED
        async with session.open(settings) as transport:
            await prepare_journal(transport, settings)
            journal = Journal(transport, settings, SystemClock(), verb="processes", why=why)
            facts: dict[str, Any] = {"saga": found.saga, "key": found.key, "group": found.group, "steps": found.version}
            await journal.note("cancelled", process=found.id.hex(), why=why, **facts)
        requested = [wait.addressee or "somebody" for wait in waiting if wait.seal is not None]
        notice = "ended" if force else f"a worker of {printable(found.group)} ends"
        click.echo(f"{notice} {found.id.hex()[:_ID_DIGITS]}", err=True)
        if requested and force:
            click.echo(f"still asked, perhaps at work: {', '.join(map(printable, requested))}", err=True)
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
            found = await store.waits(overdue_ms=_OVERDUE_MS if overdue else None, max_rows=limit)
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
            where = f" in group {printable(group)}" if group else ""
            click.echo(f"nothing is overdue{where}" if overdue else f"nothing waits{where}", err=True)
        return 0

    return execute(body)


async def _forced(store: ProcessStore, found: Process, why: str, *, keep_ms: int) -> bool:
    memory = Memory(ending=Ending(outcome="cancelled", reason=cut(why, _MAX_WHY), where="sealbus processes cancel"))
    after = msgspec.structs.replace(found, version=found.version + 1, status="finished", state=pack(memory))
    return await store.change(ProcessChange(before=found, after=after, keep_ms=keep_ms))


async def chosen_process(store: ProcessStore, digits: str) -> Process:
    """Return the process whose id begins with *digits*. Raises BusError."""
    found = await store.begins(digits)
    if len(found) == 1:
        return found[0]
    if not found:
        raise BusError(f"there is no process {digits!r}: `sealbus processes list` shows them")
    raise BusError(f"{digits!r} begins the ids of several processes: give more digits")


def ended_members(process: Process) -> dict[str, Any]:
    """Return the end of *process*, as members of a JSON object; empty while it is open."""
    ending = ending_of(process)
    return {} if ending is None else {"outcome": ending.outcome, "reason": ending.reason, "where": ending.where}


def process_text(process: Process) -> str:
    """Return how *process* is, or how it has ended and why."""
    ending = ending_of(process)
    if ending is None:
        return process.status
    return f"{ending.outcome}: {cut(ending.reason, _MAX_TOLD)}" if ending.reason else ending.outcome


def _described(process: Process) -> dict[str, Any]:
    return {
        **_short(process),
        "sender": process.sender,
        "steps": process.version,
        "status": process.status,
        **ended_members(process),
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
