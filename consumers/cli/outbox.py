"""`sealbus outbox relay|list DATABASE_URL`: publish or list the committed rows that wait in applications' databases.

Owns the options, the messages for users, and the exit codes; `producers.outbox` owns relaying and the rows.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Final

import click

from bus.clock import SystemClock
from bus.errors import InboxError, UnreachableError
from bus.settings import durations
from bus.settings.schema import Settings
from bus.telemetry.logs import get_logger
from bus.telemetry.metrics import Metrics
from bus.telemetry.terminal import printable
from bus.transports.base import Transport
from consumers.cli.exit_codes import FAILED, LATER
from consumers.cli.interrupts import Interrupts, execute
from consumers.cli.io.parameter_types import DURATION_TYPE
from consumers.cli.io.printing import print_json, print_table
from consumers.cli.io.progress import Progress
from consumers.cli.session import CommandSession, with_session
from consumers.cli.shell import VerbGroup
from producers.connection import make_publisher
from producers.outbox.open import open_rows
from producers.outbox.relay import INTERVAL_S, RELAY_BATCH, Relay, Round
from producers.outbox.rows import Backlog, Rows
from producers.publisher import Publisher

__all__ = ["outbox"]

_AGENT: Final = "outbox@sealbus"
_PAUSE_S: Final = 2.0

_log = get_logger("outbox")


@click.group(cls=VerbGroup)
def outbox() -> None:
    """Publish the messages in an application's outbox table, and list the waiting ones.

    \b
    Examples:
      sealbus outbox relay postgresql://shop@localhost/shop --bus kafka://localhost:9092
      sealbus outbox list sqlite:///shop.db
    """


@outbox.command()
@click.argument("database", metavar="DATABASE_URL")
@click.option("--once", is_flag=True, help="End when nothing is left to send.")
@click.option(
    "--batch", type=click.IntRange(1, 10_000), default=RELAY_BATCH, show_default=True, help="Rows read at a time."
)
@click.option(
    "--interval", type=DURATION_TYPE, default=INTERVAL_S, help="How often to look for new rows.  [default: 250ms]"
)
@with_session
def relay(session: CommandSession, *, database: str, once: bool, batch: int, interval: float) -> int:
    """Publish the committed rows of an outbox, in the order of each key, until interrupted.

    One relay works on a database at a time; others stand by and take over within seconds. The relay waits while the
    database or the log is unreachable. A message is sent again, byte for byte, if it is unknown whether it was written.
    A message that the log refuses permanently stays in its row with the error.

    \b
    Examples:
      sealbus outbox relay postgresql://shop@localhost/shop --bus kafka://localhost:9092
      sealbus outbox relay sqlite:///shop.db --once

    \b
    Exit codes, with --once: 0 all sent, 1 some refused permanently, 69 bus or database unreachable, 75 some left,
    or another relay is at work.
    """
    settings = session.settings()
    session.announce()
    rows = open_rows(database, clock=SystemClock())

    async def body(interrupts: Interrupts) -> int:
        async with (
            _opened(session, settings, wait=not once) as transport,
            _publishing(transport, settings) as publisher,
        ):
            with Progress(None, unit="sent", alone=True) as progress:
                total = Round()

                def count(done: Round) -> None:
                    nonlocal total
                    total += done
                    progress.show(0, total.sent)

                working = Relay(rows, publisher, batch=batch, interval_s=interval, on_round=count)
                interrupts.soften = working.stop
                try:
                    if once:
                        await _reach(rows, transport)
                        return _report_round(await working.run_once())
                    await working.run()
                finally:
                    await working.close()
        click.echo(f"{total.sent} sent, {total.failed} refused permanently", err=True)
        return 0

    return execute(body)


@outbox.command("list")
@click.argument("database", metavar="DATABASE_URL")
@with_session
def list_(session: CommandSession, *, database: str) -> int:
    """Show what waits in an outbox, topic by topic: how many rows, how old the oldest is, how many were refused for
    ever and why.

    \b
    Examples:
      sealbus outbox list sqlite:///shop.db
      sealbus outbox list postgresql://shop@localhost/shop --output json
    """
    session.settings()
    clock = SystemClock()
    rows = open_rows(database, clock=clock)

    async def body(_: object) -> int:
        try:
            backlogs = await rows.backlog()
        except InboxError as error:
            raise _unreachable(error) from error
        finally:
            await rows.close()
        now_ms = clock.now_ms()
        if session.as_json:
            for each in backlogs:
                age_s = _age_s(each, now_ms)
                print_json(
                    {
                        "topic": each.topic,
                        "pending": each.pending,
                        "oldest_s": age_s,
                        "failed": each.failed,
                        "error": each.error,
                    }
                )
        elif backlogs:
            print_table(
                ("TOPIC", "PENDING", "OLDEST", "FAILED", "LAST ERROR"), [_cells(each, now_ms) for each in backlogs]
            )
        pending, failed = sum(each.pending for each in backlogs), sum(each.failed for each in backlogs)
        ages = [age_s for each in backlogs if (age_s := _age_s(each, now_ms)) is not None]
        oldest = f", the oldest for {_text(max(ages))}" if ages else ""
        click.echo(f"{pending} pending{oldest}; {failed} refused permanently", err=True)
        return 0

    return execute(body)


@asynccontextmanager
async def _opened(session: CommandSession, settings: Settings, *, wait: bool) -> AsyncGenerator[Transport]:
    """Open the log; *wait* for one that cannot be opened yet."""
    async with AsyncExitStack() as stack:
        while True:
            try:
                transport = await stack.enter_async_context(session.open(settings, create=True))
                break
            except UnreachableError as error:
                if not wait:
                    raise
                _log.warning("outbox.log_unreachable", error=str(error), again_in_s=_PAUSE_S)
            await asyncio.sleep(_PAUSE_S)
        yield transport


@asynccontextmanager
async def _publishing(transport: Transport, settings: Settings) -> AsyncGenerator[Publisher]:
    publisher = make_publisher(transport, settings, _AGENT, clock=SystemClock(), metrics=Metrics())
    try:
        yield publisher
    finally:
        await publisher.close()


async def _reach(rows: Rows, transport: Transport) -> None:
    """Raise UnreachableError unless database and log can be used."""
    try:
        await rows.open()
    except InboxError as error:
        raise _unreachable(error) from error
    await transport.admin.topics()


def _unreachable(error: InboxError) -> UnreachableError:
    """Return the error for an unreachable database; the log is not at fault."""
    unreachable = UnreachableError(str(error))
    unreachable.add_note("check DATABASE_URL")
    return unreachable


def _report_round(total: Round) -> int:
    click.echo(f"{total.sent} sent, {total.failed} refused permanently", err=True)
    if total.trouble is not None:
        click.echo(f"error: {printable(str(total.trouble))}", err=True)
        return LATER
    return FAILED if total.failed else 0


def _cells(each: Backlog, now_ms: int) -> list[object]:
    age_s = _age_s(each, now_ms)
    return [each.topic, each.pending, "-" if age_s is None else _text(age_s), each.failed, each.error or "-"]


def _age_s(each: Backlog, now_ms: int) -> float | None:
    return None if each.oldest_ms is None else max(0, now_ms - each.oldest_ms) / 1000


def _text(age_s: float) -> str:
    return durations.duration_words(float(round(age_s)))
