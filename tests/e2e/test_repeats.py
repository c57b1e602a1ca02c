"""Repeats and deaths with real processes: an effect in the inbox's own database happens once, and a deadly message
harms no neighbour."""

from __future__ import annotations

import asyncio
import os
import random
import sqlite3
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from conftest import Workers, wait_until
from payments_app import Payment

from bus.topics.names import dead_letter_topic
from bus.transports import open_transport
from bus.transports.read_all import scan_topic
from consumers.deadletters.letters import read_dead_letter
from sealbus import Receipt, connect

COUNT = 20_000 if os.environ.get("SEALBUS_FAULTS") == "all" else 3_000


@pytest.fixture
def bookings(workers: Workers) -> Iterator[sqlite3.Connection]:
    path = Path(workers.url.removeprefix("sqlite:///").removesuffix(".db") + "-inbox.db")
    connection = sqlite3.connect(path, timeout=30)
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("CREATE TABLE bookings (number INTEGER, amount INTEGER)")
    connection.commit()
    yield connection
    connection.close()


async def publish(url: str, payments: list[Payment]) -> dict[str, str]:
    """Each with its number for an idempotency key; message id -> that key."""
    keys: dict[str, str] = {}
    async with connect(url, agent="tests@tests", env={}) as bus:
        for start in range(0, len(payments), 500):
            batch = payments[start : start + 500]
            outcomes = await asyncio.gather(
                *(bus.publish(payment, idempotency_key=f"p{payment.number}") for payment in batch)
            )
            for payment, outcome in zip(batch, outcomes, strict=True):
                assert isinstance(outcome, Receipt)
                keys[outcome.message_id] = f"p{payment.number}"
    return keys


async def answers(url: str) -> list[bytes]:
    transport = open_transport(url)
    try:
        return [record.value or b"" async for record in scan_topic(transport, "agents.test.booked")]
    finally:
        await transport.close()


async def letters(url: str) -> list[str]:
    transport = open_transport(url)
    try:
        return [
            read_dead_letter(record).reason
            async for record in scan_topic(transport, dead_letter_topic("agents.test.payment"))
        ]
    finally:
        await transport.close()


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("killed", [False, True], ids=["calm", "killed"])
def test_two_workers_and_repeats_of_a_third_have_one_effect_a_key_and_one_answer(
    workers: Workers, bookings: sqlite3.Connection, killed: bool
) -> None:
    chance = random.Random(7)
    unique = COUNT * 7 // 10
    payments = [
        Payment(number=number)
        for number in [*range(unique), *(chance.randrange(unique) for _ in range(COUNT - unique))]
    ]
    chance.shuffle(payments)
    running = [workers.start(app="payments_app:app"), workers.start(app="payments_app:app")]
    keys = asyncio.run(publish(workers.url, payments))
    assert len(keys) == COUNT
    if killed:
        for _ in range(3):
            time.sleep(1)
            running.pop(0).kill()
            running.append(workers.start(app="payments_app:app"))

    def booked() -> int:
        return bookings.execute("SELECT count(*) FROM bookings").fetchone()[0]

    wait_until(lambda: booked() >= unique, 120, f"all are booked\n{workers.logs()}")
    wait_until(lambda: len(asyncio.run(answers(workers.url))) >= COUNT, 120, f"all are answered\n{workers.logs()}")
    assert (
        bookings.execute("SELECT number, count(*) FROM bookings GROUP BY number HAVING count(*) > 1").fetchall() == []
    )
    assert booked() == unique
    by_key: dict[str, set[bytes]] = defaultdict(set)
    for value in asyncio.run(answers(workers.url)):
        answered = msgspec.json.decode(value)
        by_key[f"p{answered['data']['number']}"].add(value)
    assert len(by_key) == unique
    assert {len(values) for values in by_key.values()} == {1}


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_deadly_message_becomes_a_dead_letter_and_its_neighbours_are_booked(
    workers: Workers, bookings: sqlite3.Connection
) -> None:
    journal = workers.folder / "runs.txt"
    workers.env["PAYMENT_JOURNAL"] = str(journal)
    workers.env["SEALBUS_INBOX__LEASE_S"] = "1s"
    payments = [Payment(number=number, deadly=number == 50) for number in range(200)]
    asyncio.run(publish(workers.url, payments))
    deadline_s = time.monotonic() + 120
    starts = 0
    process = workers.start(app="payments_app:app")
    while (
        asyncio.run(letters(workers.url)) != ["crash_loop"]
        or bookings.execute("SELECT count(*) FROM bookings").fetchone()[0] < 199
    ):
        assert time.monotonic() < deadline_s, workers.logs()
        if process.poll() is not None:
            starts += 1
            process = workers.start(app="payments_app:app")
        time.sleep(0.2)
    # Twice among others, then three times alone.
    assert journal.read_text().split().count("50") == 5
    assert starts == 5
    assert bookings.execute("SELECT count(DISTINCT number) FROM bookings").fetchone()[0] == 199
