"""Records appended from outside the library: each becomes a dead letter with its reason and unchanged bytes, and the
worker goes on."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from pathlib import Path

import pytest
from conftest import Workers, wait_until
from ledger_app import Entry

from bus.clock import ManualClock
from bus.settings.loading import load
from bus.transports import open_transport
from consumers.deadletters.letters import DeadLetter, list_dead_letters
from producers.connection import make_publisher
from sealbus import Outgoing, connect
from sealbus.telemetry import Metrics

TOPIC = "agents.ledger.entry"


def sealed(
    url: str, number: int, *, namespace: str = "agents", ago_ms: int = 0, **options: object
) -> tuple[bytes, bytes]:
    """Key and value of a good record, sealed some time ago."""

    async def seal() -> tuple[bytes, bytes]:
        settings = load(flags={"bus.url": url, "bus.namespace": namespace}, env={}, file=None).settings
        transport = open_transport("memory://")
        clock = ManualClock(time.time_ns() // 1_000_000 - ago_ms)
        publisher = make_publisher(transport, settings, "forger@tests", clock=clock, metrics=Metrics())
        record = publisher.sealer.seal(Outgoing(Entry(number=number), **options)).record
        await transport.close()
        return record.key or b"", record.value or b""

    return asyncio.run(seal())


def forge(url: str) -> dict[str, tuple[bytes, bytes, str]]:
    """What is appended: name -> key, value, the reason it must die with."""
    key, value = sealed(url, 1)
    expired_key, expired = sealed(url, 2, ago_ms=3_600_000, ttl_s=60)
    other_key, other = sealed(url, 3, namespace="elsewhere")
    nothing = b'{"data":{},"metadata":{},"routing":{},"verification":{}}'
    return {
        "altered data": (key, value.replace(b'"number":1', b'"number":7'), "hash_mismatch"),
        "altered metadata": (key, value.replace(b'"forger@tests"', b'"victim@tests"'), "seal_mismatch"),
        "white space": (key, value.replace(b',"metadata"', b', "metadata"'), "malformed"),
        "other order": (key, b'{"metadata":{},' + value[1:], "malformed"),
        "duplicate key": (key, value.replace(b'"number":1', b'"number":1,"number":1'), "malformed"),
        "NaN": (key, value.replace(b'"number":1', b'"number":NaN'), "malformed"),
        "10 MB": (key, b'{"data":"' + b"x" * 10_000_000 + b'"}', "oversized"),
        "200,000 levels": (key, b'{"data":' + b"[" * 200_000 + b"]" * 200_000 + b"}", "malformed"),
        "wrong UTF-8": (key, value.replace(b"forger", b"forg\xffr"), "malformed"),
        "empty": (key, b"", "malformed"),
        "missing layers": (key, nothing, "malformed"),
        "expired": (expired_key, expired, "expired"),
        "another namespace": (other_key, other, "wrong_audience"),
        "another key": (b"another", value, "key_mismatch"),
    }


def append_by_hand(path: Path, records: dict[str, tuple[bytes, bytes, str]]) -> None:
    """Plain SQL, as somebody without the library would."""
    connection = sqlite3.connect(path, timeout=10)
    with connection:
        connection.execute("BEGIN IMMEDIATE")
        (part,) = connection.execute(
            "SELECT partitions.id FROM partitions JOIN topics ON topics.id = topic_id WHERE name = ? AND partition = 0",
            (TOPIC,),
        ).fetchone()
        for key, value, _ in records.values():
            (offset,) = connection.execute("SELECT next_offset FROM partitions WHERE id = ?", (part,)).fetchone()
            connection.execute(
                "INSERT INTO records (part, off, ts, key, value) VALUES (?, ?, ?, ?, ?)",
                (part, offset, time.time_ns() // 1_000_000, key, value),
            )
            connection.execute("UPDATE partitions SET next_offset = next_offset + 1 WHERE id = ?", (part,))
    connection.close()


async def dead_letters(url: str) -> list[DeadLetter]:
    transport = open_transport(url)
    try:
        return [letter async for letter in list_dead_letters(transport, "agents")]
    finally:
        await transport.close()


@pytest.mark.slow
def test_forgeries_are_dead_lettered_with_their_bytes_and_later_messages_handled(workers: Workers) -> None:
    process = workers.start()
    wait_until((workers.folder / "log.db").exists, 10, "the log is there")
    asyncio.run(_publish(workers.url, [100]))
    wait_until(lambda: workers.handled() == [100], 10, "the first is handled")
    forged = forge(workers.url)
    append_by_hand(workers.folder / "log.db", forged)
    asyncio.run(_publish(workers.url, [101, 102]))
    wait_until(lambda: sorted(workers.handled()) == [100, 101, 102], 45, "later messages are handled")
    wait_until(
        lambda: len(asyncio.run(dead_letters(workers.url))) == len(forged),
        20,
        "every forgery is dead\n" + workers.logs(),
    )
    found = sorted((letter.record.value or b"", letter.reason) for letter in asyncio.run(dead_letters(workers.url)))
    assert found == sorted((value, reason) for _, value, reason in forged.values())
    assert process.poll() is None


async def _publish(url: str, numbers: list[int]) -> None:
    async with connect(url, agent="tests@tests", env={}) as bus:
        for number in numbers:
            await bus.publish(Entry(number=number))
