"""Payments that are booked once: a ledger in the inbox's own database.

Meanwhile messages are repeated and workers are killed.

    python -m consumers.cli.demo.payments
    python -m consumers.cli.demo.payments --inbox postgresql://user@host/database --payments 20000

Owns the example: its app is what a user would write (`app`, below), the rest publishes three payments in ten twice,
kills workers in the middle of their work, and compares the ledger with the arithmetic.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path

import click
import msgspec
from rich.console import Console
from rich.progress import track
from rich.table import Table

from bus.databases.postgres import driver
from bus.errors import BusError, ConfigurationError, TopicMissingError
from bus.payloads.payload_types import payload
from bus.settings.loading import load
from bus.settings.schema import Settings
from bus.transports import open_configured
from bus.transports.read_all import scan_topic
from consumers import cli
from consumers.app.app import App
from consumers.delivery.context import Context
from producers.connection import connect
from producers.outcomes import Receipt

__all__ = ["app", "main"]

_BATCH = 200
_PATIENCE_S = 180.0
_KILL_EVERY_S = 1.5
_ACCOUNTS = 10
_TABLE = "CREATE TABLE IF NOT EXISTS sealbus_demo_bookings (payment TEXT, account INTEGER, cents INTEGER)"


@payload("payment.ordered", version="1.0.0", performative="request")
class Payment(msgspec.Struct, frozen=True, kw_only=True):
    """An amount in cents to an account."""

    number: str
    account: int
    cents: int


@payload("payment.booked", version="1.0.0", performative="inform")
class Booked(msgspec.Struct, frozen=True, kw_only=True):
    """The account's balance after a booking."""

    number: str
    account: int
    balance: int


app = App("ledger@payments")


@app.on(Payment)
async def book(payment: Payment, context: Context) -> Booked:
    """Book a payment: booking and answer become durable together with the inbox's row, or not at all."""
    transaction = await context.transaction()
    await transaction.execute(
        "INSERT INTO sealbus_demo_bookings VALUES ($1, $2, $3)", payment.number, payment.account, payment.cents
    )
    row = await transaction.fetchrow(
        "SELECT CAST(sum(cents) AS BIGINT) FROM sealbus_demo_bookings WHERE account = $1", payment.account
    )
    return Booked(number=payment.number, account=payment.account, balance=row[0] if row else 0)


class _Ledger:
    """The table of bookings, seen from outside."""

    def __init__(self, url: str) -> None:
        self._url = url

    async def ask(self, statement: str) -> list[tuple[object, ...]]:
        """Run one statement, commit, and return its rows."""
        if self._url.startswith("postgres"):
            connection = await driver().connect(self._url)
            try:
                return [tuple(row) for row in await connection.fetch(statement)]
            finally:
                await connection.close()
        with contextlib.closing(sqlite3.connect(self._url.removeprefix("sqlite:///"), timeout=30)) as file, file:
            return file.execute(statement).fetchall()


class _Crew:
    """Two worker processes, one of which is killed and replaced now and then."""

    def __init__(self, settings: Settings, folder: Path) -> None:
        self._environment = os.environ | {
            "SEALBUS_INBOX__URL": settings.inbox.url,
            "SEALBUS_INBOX__LEASE_S": "2s",
            "SEALBUS_BUS__NAMESPACE": settings.bus.namespace,
            "PYTHONPATH": os.pathsep.join(sys.path),
        }
        self._command = [
            sys.executable,
            "-m",
            cli.__name__,
            "worker",
            f"{__package__}.payments:app",
            "--bus",
            settings.bus.url,
        ]
        self._folder = folder
        self._running = [self._start(), self._start()]
        self.killed = 0

    def kill_one(self) -> None:
        """Kill a worker (SIGKILL), and start another in its place."""
        victim = self._running.pop(0)
        victim.kill()
        victim.wait()
        self.killed += 1
        self._running.append(self._start())

    def end(self) -> None:
        """Let them finish."""
        for process in self._running:
            process.send_signal(signal.SIGTERM)
        for process in self._running:
            process.wait()

    def _start(self) -> subprocess.Popen[bytes]:
        with (self._folder / "workers.log").open("ab") as log:
            return subprocess.Popen(  # noqa: S603 - our own command line
                self._command, cwd=self._folder, env=self._environment, stdout=log, stderr=log, stdin=subprocess.DEVNULL
            )


@click.command()
@click.option(
    "--inbox", help="Where the ledger and the inbox are: postgresql://user@host/database. Default: a SQLite file."
)
@click.option(
    "--payments", "count", default=2_000, show_default=True, type=click.IntRange(10), help="How many messages are sent."
)
@click.option("--seed", default=1, show_default=True, help="Which payments are repeated.")
def main(inbox: str | None, count: int, seed: int) -> None:
    """Book payments once each, while messages are repeated and workers are killed."""
    console = Console(highlight=False)
    folder = Path(tempfile.mkdtemp(prefix="sealbus-payments-"))
    flags = {
        "bus.url": f"sqlite:///{folder}/log.db",
        "inbox.url": inbox or f"sqlite:///{folder}/ledger.db",
        "bus.namespace": "payments",
    }
    try:
        settings = load(flags=flags, env={}, file=None).settings
        # Seeded to be repeatable; nothing here is secret.
        holds = asyncio.run(_tell(settings, folder, count, random.Random(seed), console))  # noqa: S311
    except (BusError, OSError, TimeoutError) as error:
        raise click.ClickException(f"{error}\n{_tail(folder / 'workers.log')}") from error
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    sys.exit(0 if holds else 1)


async def _tell(settings: Settings, folder: Path, count: int, chance: random.Random, console: Console) -> bool:
    ledger = _Ledger(settings.inbox.url)
    await ledger.ask(_TABLE)
    await ledger.ask("DELETE FROM sealbus_demo_bookings")
    run = os.urandom(4).hex()
    single = [
        Payment(number=f"{run}-{number}", account=chance.randrange(_ACCOUNTS), cents=chance.randrange(1, 10_000))
        for number in range(count - count * 3 // 10)
    ]
    orders = single + [chance.choice(single) for _ in range(count - len(single))]
    chance.shuffle(orders)
    crew = _Crew(settings, folder)
    try:
        await _publish(settings, orders, console)
        answers = await _wait_for_answers(settings, crew, len(single), console)
    finally:
        crew.end()
    rows = await ledger.ask(
        "SELECT count(*), count(DISTINCT payment), CAST(sum(cents) AS BIGINT) FROM sealbus_demo_bookings"
    )
    checks = [
        ("payments ordered, repeats among them", count, len(orders)),
        ("payments booked", len(single), rows[0][0]),
        ("booked more than once", 0, int(str(rows[0][0])) - int(str(rows[0][1]))),
        ("cents in the ledger", sum(payment.cents for payment in single), rows[0][2]),
        ("payments answered", len(single), len(answers)),
        ("payments answered in more than one way", 0, sum(len(set(values)) > 1 for values in answers.values())),
    ]
    table = Table("", "expected", "found", title=f"{crew.killed} workers were killed at work")
    for text, expected, found in checks:
        table.add_row(text, str(expected), str(found), style=None if expected == found else "bold red")
    console.print(table)
    return all(expected == found for _, expected, found in checks)


async def _publish(settings: Settings, orders: list[Payment], console: Console) -> None:
    async with connect(agent="shop@payments", settings=settings) as bus:
        for start in track(range(0, len(orders), _BATCH), "ordering", console=console, disable=not console.is_terminal):
            batch = orders[start : start + _BATCH]
            outcomes = await asyncio.gather(
                *(bus.publish(order, idempotency_key=order.number, key=str(order.account)) for order in batch)
            )
            if not all(isinstance(outcome, Receipt) for outcome in outcomes):
                raise ConfigurationError("the log in a temporary folder did not take a message")


async def _wait_for_answers(settings: Settings, crew: _Crew, count: int, console: Console) -> dict[str, list[bytes]]:
    """Return every answer in the log, by payment.

    Waits for *count* payments, and kills a worker whenever some are done.
    """
    transport = open_configured(settings)
    deadline_s = time.monotonic() + _PATIENCE_S
    before = 0
    try:
        while True:
            answers: dict[str, list[bytes]] = defaultdict(list)
            with contextlib.suppress(TopicMissingError):
                async for record in scan_topic(transport, f"{settings.bus.namespace}.payment.booked"):
                    answers[msgspec.json.decode(record.value or b"")["data"]["number"]].append(record.value or b"")
            found = len(answers)
            if found >= count:
                return answers
            if time.monotonic() > deadline_s:
                raise TimeoutError(f"{found} of {count} payments were answered within {_PATIENCE_S:.0f} s")
            await asyncio.sleep(_KILL_EVERY_S)
            if found > before:
                # Kill only after progress: on a slow machine, workers would otherwise die before doing anything.
                before = found
                if console.is_terminal:
                    console.print(f"[dim]{found} of {count} answered; one more worker is killed[/]")
                await asyncio.to_thread(crew.kill_one)
    finally:
        await transport.close()


def _tail(path: Path) -> str:
    return path.read_text("utf-8", "replace")[-2_000:] if path.exists() else ""


if __name__ == "__main__":
    # Import the module by the name that the workers use, so that the payload classes are the same.
    from consumers.cli.demo.payments import main as named_main

    named_main()
