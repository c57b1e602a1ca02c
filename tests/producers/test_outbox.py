"""A message in an outbox shares the fate of the transaction it was added in, and is published once that is
committed."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sqlite3
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from bus.clock import ManualClock
from bus.errors import (
    AppendUnknownError,
    ConfigurationError,
    InboxError,
    RecordTooLargeError,
    TopicMissingError,
    UnreachableError,
)
from bus.protocol import sealing
from bus.transports import open_transport
from bus.transports.base import AppendOutcome, NewRecord
from producers.outbox import Outbox
from producers.outbox.open import open_rows
from producers.outbox.sqlite import SqliteRows
from producers.outcomes import PublishRejected
from tests.databases import Postgres
from tests.producers.shops import FakeLog, OrderPlaced, Shop, number_of

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(params=["sqlite", "postgresql"])
async def shop(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Shop]:
    if request.param == "sqlite":
        made = Shop(f"sqlite:///{tmp_path}/shop.db")
    else:
        made = Shop(await request.getfixturevalue("postgres").create_database())
    await made.create()
    yield made
    await made.close()


@pytest.fixture
def log() -> FakeLog:
    return FakeLog()


@contextlib.asynccontextmanager
async def relaying(shop: Shop, log: FakeLog, **options: Any) -> AsyncIterator[None]:
    relay = shop.relay(log, interval_s=0.02, **options)
    running = asyncio.ensure_future(relay.run())
    try:
        yield
    finally:
        relay.stop()
        await running


async def until(log: FakeLog, count: int) -> None:
    await eventually(lambda: asyncio.sleep(0, len(log.records) >= count))


async def eventually(holds: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(30):
        while True:
            if await holds():
                return
            await asyncio.sleep(0.02)


# --- adding -----------------------------------------------------------------------------------------------------------


async def test_committed_it_is_published_once_and_forgotten(shop: Shop, log: FakeLog) -> None:
    (message_id,) = await shop.place(7, key="customer-3", idempotency_key="order-7")
    relay = shop.relay(log)
    assert (await relay.run_once()).sent == 1
    (record,) = log.records
    message = sealing.parse(record.value)
    assert (record.topic, record.key, message.message_id, message.routing.idempotency_key) == (
        "agents.order.placed",
        b"customer-3",
        message_id,
        "order-7",
    )
    assert message.metadata.sender.id == "shop@svc"
    assert dict(record.headers)["sb-id"] == message_id.encode()
    assert (await relay.run_once()).sent == 0
    assert await shop.backlog() == []


async def test_rolled_back_nothing_is_published(shop: Shop, log: FakeLog) -> None:
    class OutOfStockError(Exception):
        pass

    async def order() -> None:
        async with shop.transaction() as connection:
            await shop.add(connection, 7)
            raise OutOfStockError

    with pytest.raises(OutOfStockError):
        await order()
    assert (await shop.relay(log).run_once()).sent == 0
    assert log.records == []


async def test_what_receivers_would_refuse_is_refused_at_the_door(shop: Shop) -> None:
    async with shop.transaction() as connection:
        with pytest.raises(PublishRejected, match="ttl_s"):
            shop.outbox.add(connection, OrderPlaced(number=1), ttl_s=-1)
        with pytest.raises(PublishRejected, match="number"):
            shop.outbox.add(connection, OrderPlaced(number="x"))
    assert await shop.backlog() == []


async def test_creating_the_table_again_changes_nothing(shop: Shop) -> None:
    await shop.place(1)
    await asyncio.gather(*(shop.create() for _ in range(3)))
    assert [each.pending for each in await shop.backlog()] == [1]


def test_an_agent_that_receivers_would_refuse_has_no_outbox() -> None:
    with pytest.raises(ConfigurationError):
        Outbox("", env={})


def test_a_connection_of_another_kind_is_refused_by_name() -> None:
    with pytest.raises(TypeError, match="sqlite3 or asyncpg"):
        Outbox("shop", env={}).add(object(), OrderPlaced(number=1))  # type: ignore[call-overload]


def test_other_drivers_insert_the_row_themselves(tmp_path: Path) -> None:
    row = Outbox("shop", namespace="market", env={}).seal(OrderPlaced(number=1), key="k")
    assert (row.topic, row.key) == ("market.order.placed", b"k")
    assert sealing.parse(row.value).message_id == row.message_id


def test_adding_neither_begins_nor_ends_a_transaction() -> None:
    connection = sqlite3.connect(":memory:", isolation_level=None)
    outbox = Outbox("shop", env={})
    connection.execute("BEGIN")
    outbox.create(connection)
    outbox.add(connection, OrderPlaced(number=1))
    assert connection.in_transaction
    connection.execute("ROLLBACK")
    assert connection.execute("SELECT count(*) FROM sqlite_master WHERE name = 'sealbus_outbox'").fetchone() == (0,)
    connection.close()


# --- relaying ---------------------------------------------------------------------------------------------------------


async def test_rows_of_a_key_are_sent_in_order_and_keys_side_by_side(shop: Shop, log: FakeLog) -> None:
    for start in range(0, 60, 6):
        await shop.place(start, start + 2, start + 4, key="even")
        await shop.place(start + 1, start + 3, start + 5, key="odd")
    assert (await shop.relay(log, batch=7).run_once()).sent == 60
    assert [number for number in log.numbers() if number % 2 == 0] == list(range(0, 60, 2))
    assert [number for number in log.numbers() if number % 2] == list(range(1, 60, 2))


async def test_a_running_relay_sends_what_is_committed_later(shop: Shop, log: FakeLog) -> None:
    async with relaying(shop, log):
        await shop.place(1)
        await until(log, 1)
        await shop.place(2, 3)
        await until(log, 3)
    assert sorted(log.numbers()) == [1, 2, 3]


async def test_a_record_of_unknown_fate_is_resent_unchanged_before_later_ones(shop: Shop, log: FakeLog) -> None:
    tried: list[NewRecord] = []

    def answer(record: NewRecord) -> AppendOutcome | None:
        tried.append(record)
        return AppendUnknownError("the connection broke") if len(tried) < 3 else None

    log.answer = answer
    await shop.place(1, 2, key="k")
    async with relaying(shop, log):
        await until(log, 2)
    assert tried[0] == tried[1] == tried[2]
    assert log.numbers() == [1, 2]


async def test_a_permanently_refused_row_is_kept_and_does_not_block_its_key(shop: Shop, log: FakeLog) -> None:
    log.answer = lambda record: RecordTooLargeError("larger than the topic takes") if number_of(record) == 2 else None
    await shop.place(1, 2, 3, key="k")
    done = await shop.relay(log).run_once()
    assert (done.sent, done.failed, done.trouble) == (2, 1, None)
    assert log.numbers() == [1, 3]
    (backlog,) = await shop.backlog()
    assert (backlog.pending, backlog.failed, backlog.error) == (0, 1, "larger than the topic takes")


@pytest.mark.parametrize("topic", ["", "a b", "a" * 250, "agents.order\u00e4", ".."])
async def test_a_row_with_an_illegal_topic_is_refused_without_blocking_others(
    shop: Shop, log: FakeLog, topic: str
) -> None:
    await shop.place(1, 2, key="k")
    async with shop.transaction() as connection:
        # From above.
        renamed = connection.execute(f"UPDATE sealbus_outbox SET topic = '{topic}' WHERE id = 1")  # noqa: S608
        _ = renamed if isinstance(renamed, sqlite3.Cursor) else await renamed
    done = await shop.relay(log).run_once()
    assert (done.sent, done.failed, done.trouble) == (1, 1, None)
    assert log.numbers() == [2]
    (backlog,) = await shop.backlog()
    assert (backlog.topic, backlog.pending, backlog.failed) == (topic, 0, 1)
    assert "illegal topic name" in str(backlog.error)


async def place_otherwise(shop: Shop, number: int, column: str, expression: str) -> None:
    """An order of the key k by a driver that gives a column another type, which SQLite keeps."""
    (message_id,) = await shop.place(number, key="k")
    async with shop.transaction() as connection:
        update = f"UPDATE sealbus_outbox SET {column} = {expression} WHERE message_id = ?"  # noqa: S608 - from below
        connection.execute(update, (message_id,))


@pytest.fixture
async def file(tmp_path: Path) -> AsyncIterator[Shop]:
    shop = Shop(f"sqlite:///{tmp_path}/shop.db")
    await shop.create()
    yield shop
    await shop.close()


@pytest.mark.parametrize(
    ("column", "expression"),
    [
        ("key", "'k'"),
        ("value", "CAST(value AS TEXT)"),
        ("topic", "CAST(topic AS BLOB)"),
        ("headers", "''"),
        ("message_id", "CAST(message_id AS BLOB)"),
        ("message_id", "x'ff'"),
        ("added_ms", "'2026-01-01'"),
    ],
)
async def test_values_from_other_drivers_are_sent_as_the_same_bytes(
    file: Shop, log: FakeLog, column: str, expression: str
) -> None:
    await place_otherwise(file, 1, column, expression)
    (backlog,) = await file.backlog()
    assert (backlog.topic, backlog.pending, type(backlog.oldest_ms)) == ("agents.order.placed", 1, int)
    await file.place(2, key="k")
    done = await file.relay(log).run_once()
    assert (done.sent, done.failed, done.trouble) == (2, 0, None)
    assert [(record.topic, record.key, type(record.value)) for record in log.records] == [
        ("agents.order.placed", b"k", bytes)
    ] * 2
    assert log.numbers() == [1, 2]


async def test_a_number_in_place_of_bytes_is_sent_as_its_digits(file: Shop, log: FakeLog) -> None:
    await place_otherwise(file, 1, "(key, value)", "(5, 7)")
    await file.relay(log).run_once()
    assert [(record.key, record.value) for record in log.records] == [(b"5", b"7")]


@pytest.mark.parametrize(
    ("column", "expression"),
    [
        ("headers", "'text'"),
        ("headers", "7"),
        ("headers", "x'9192a1ffc40178'"),
        ("topic", "x'ff61'"),
        ("topic", "x'6100'"),
    ],
)
async def test_an_invalid_row_is_refused_with_its_reason_without_blocking_others(
    file: Shop, log: FakeLog, column: str, expression: str
) -> None:
    await place_otherwise(file, 1, column, expression)
    await file.place(2, key="k")
    done = await file.relay(log).run_once()
    assert (done.sent, done.failed, done.trouble) == (1, 1, None)
    assert log.numbers() == [2]
    assert [each.pending for each in await file.backlog()] == [0]
    assert all(each.error for each in await file.backlog())


async def test_the_rows_of_a_missing_topic_wait_alone_whatever_type_their_topic_was_given(
    file: Shop, log: FakeLog
) -> None:
    log.answer = lambda record: TopicMissingError("no topic") if record.topic == "agents.order.gone" else None
    await place_otherwise(file, 1, "topic", "CAST('agents.order.gone' AS BLOB)")
    await file.place(2, key="k")
    done = await file.relay(log, batch=1).run_once()
    assert (done.sent, done.failed, type(done.trouble)) == (1, 0, TopicMissingError)
    assert log.numbers() == [2]


async def test_an_expired_message_is_sent_all_the_same(shop: Shop, log: FakeLog) -> None:
    await shop.place(1, ttl_s=0.001)
    await asyncio.sleep(0.01)
    assert (await shop.relay(log).run_once()).sent == 1


async def test_a_topic_that_is_missing_waits_alone(shop: Shop, log: FakeLog) -> None:
    log.answer = lambda record: TopicMissingError("no topic") if number_of(record) < 3 else None
    await shop.place(1, 2)
    other = Outbox("shop@svc", namespace="market", env={})
    async with shop.transaction() as connection:
        added = other.add(connection, OrderPlaced(number=9))
        _ = added if isinstance(added, str) else await added
    done = await shop.relay(log, batch=2).run_once()
    assert log.numbers() == [9]
    assert isinstance(done.trouble, TopicMissingError)
    assert [(each.topic, each.pending) for each in await shop.backlog()] == [("agents.order.placed", 2)]


async def test_a_log_that_is_away_is_waited_for(shop: Shop, log: FakeLog) -> None:
    log.answer = lambda _: UnreachableError("no broker")
    await shop.place(1, 2, key="k")
    async with relaying(shop, log):
        await asyncio.sleep(0.05)
        assert log.records == []
        log.answer = lambda _: None
        await until(log, 2)
    assert log.numbers() == [1, 2]


async def test_rows_that_cannot_be_deleted_are_sent_once(shop: Shop, log: FakeLog) -> None:
    """As where the database is a standby by now, or its disk is full."""
    relay = shop.relay(log)
    settle = relay._rows.settle

    async def refused(*_: object) -> bool:
        raise InboxError("cannot execute DELETE in a read-only transaction")

    relay._rows.settle = refused
    await shop.place(1, 2, key="k")
    for _ in range(3):
        with pytest.raises(InboxError):
            await relay.run_once()
    await shop.place(3, key="k")
    relay._rows.settle = settle
    assert (await relay.run_once()).sent == 3
    assert log.numbers() == [1, 2, 3]
    assert not await shop.backlog()


async def test_relaying_once_reports_the_remaining_rows_and_why(shop: Shop, log: FakeLog) -> None:
    log.answer = lambda _: UnreachableError("no broker")
    await shop.place(1)
    done = await shop.relay(log).run_once()
    assert done.sent == 0
    assert isinstance(done.trouble, UnreachableError)


async def test_one_relay_works_and_the_other_takes_over_when_it_ends(shop: Shop, log: FakeLog) -> None:
    second_log = FakeLog()
    first = shop.relay(log, interval_s=0.02)
    running = asyncio.ensure_future(first.run())
    await shop.place(1)
    await until(log, 1)
    with pytest.raises(InboxError, match="another relay"):
        await shop.relay(second_log).run_once()
    async with relaying(shop, second_log):
        await shop.place(2)
        await until(log, 2)
        assert second_log.records == []
        first.stop()
        await running
        await first.close()
        await shop.place(3)
        await until(second_log, 1)
    assert (log.numbers(), second_log.numbers()) == ([1, 2], [3])


@pytest.mark.parametrize("turns", range(8))
async def test_a_relay_that_is_cancelled_while_a_pause_ends_is_cancelled(file: Shop, log: FakeLog, turns: int) -> None:
    clock = ManualClock()
    relay = file.relay(log, clock=clock, interval_s=1)
    running = asyncio.ensure_future(relay.run())
    await eventually(lambda: asyncio.sleep(0, has_timer(clock, 1)))
    clock.advance(1)
    for _ in range(turns):
        await asyncio.sleep(0)
    running.cancel()
    await asyncio.wait([running], timeout=5)
    assert running.cancelled()


def has_timer(clock: ManualClock, due_s: float) -> bool:
    """Whether one is due in *due_s*, which only the relay's pause is."""
    return clock.next_due_s() == due_s


async def test_a_relay_that_is_stopped_while_it_pauses_ends_at_once(file: Shop, log: FakeLog) -> None:
    clock = ManualClock()
    relay = file.relay(log, clock=clock, interval_s=1)
    running = asyncio.ensure_future(relay.run())
    await eventually(lambda: asyncio.sleep(0, has_timer(clock, 1)))
    relay.stop()
    async with asyncio.timeout(30):
        await running
    assert clock.monotonic_s() == 0


async def test_a_relay_that_is_cancelled_while_it_takes_the_lead_keeps_nobody_waiting(file: Shop) -> None:
    clock = ManualClock()
    first, second = (SqliteRows(file.url.removeprefix("sqlite:///"), clock) for _ in range(2))
    await first.open()
    leading = asyncio.ensure_future(first.lead())
    for _ in range(2):
        await asyncio.sleep(0)
    leading.cancel()
    await asyncio.wait([leading])
    assert leading.cancelled()
    await first.close()
    await second.open()
    assert await second.lead()
    await second.close()


async def test_a_database_without_an_outbox_raises_with_the_fix(postgres: Postgres, tmp_path: Path) -> None:
    sqlite3.connect(tmp_path / "empty.db").executescript("CREATE TABLE x (y); ").connection.close()
    for url in (await postgres.create_database(), f"sqlite:///{tmp_path}/empty.db"):
        with pytest.raises(ConfigurationError, match=r"outbox\.create"):
            await Shop(url).backlog()


async def test_rows_of_a_replaced_database_are_sent(tmp_path: Path, log: FakeLog) -> None:
    first, second = Shop(f"sqlite:///{tmp_path}/shop.db"), Shop(f"sqlite:///{tmp_path}/restored.db")
    await first.create()
    await first.place(1)
    async with relaying(first, log):
        await until(log, 1)
        await second.create()
        await second.place(2)
        (tmp_path / "restored.db").rename(tmp_path / "shop.db")
        await until(log, 2)
    assert log.numbers() == [1, 2]
    assert not await first.backlog()
    await first.close()


async def test_a_table_that_is_gone_is_not_taken_for_another_relay_at_work(postgres: Postgres) -> None:
    shop = Shop(await postgres.create_database())
    rows = open_rows(shop.url, clock=ManualClock())
    await rows.open()
    assert await rows.lead()
    async with shop.transaction() as connection:
        await connection.execute("DROP TABLE sealbus_outbox")
    for ask in (lambda: rows.pending(1), rows.lead):
        with pytest.raises(InboxError, match="sealbus_outbox"):
            await ask()
    await shop.create()
    assert await rows.lead()
    await rows.close()


@pytest.mark.parametrize("url", ["postgresql://nobody@127.0.0.1:1/none", "sqlite:////nowhere/shop.db"])
async def test_a_database_that_is_not_there_is_an_error_and_is_not_made(url: str) -> None:
    with pytest.raises(InboxError):
        await Shop(url).backlog()


@pytest.mark.parametrize("url", ["mysql://host/db", "memory://", "shop.db", "sqlite:///"])
def test_a_database_of_another_kind_is_refused(url: str) -> None:
    with pytest.raises(ConfigurationError):
        open_rows(url, clock=None)


@pytest.mark.slow  # stops PostgreSQL, and waits for its recovery
async def test_a_restart_of_the_server_is_waited_for(postgres: Postgres, log: FakeLog) -> None:
    shop = Shop(await postgres.create_database())
    await shop.create()
    async with relaying(shop, log):
        await shop.place(1)
        await until(log, 1)
        postgres.restart()
        await shop.place(2)
        # The restart may have come before the relay could forget the first row, which is sent again then.
        await eventually(lambda: asyncio.sleep(0, 2 in log.numbers()))
    await shop.close()
    assert log.numbers()[-1] == 2


# --- killed -----------------------------------------------------------------------------------------------------------


async def relay_process(shop: Shop, folder: Path, *arguments: str, failpoint: str = "") -> asyncio.subprocess.Process:
    env = {name: value for name, value in os.environ.items() if not name.startswith("SEALBUS_")} | {
        "PYTHONPATH": str(ROOT)
    }
    command = (
        sys.executable,
        "-m",
        "consumers.cli",
        "serve",
        "outbox",
        shop.url,
        "--bus",
        "sqlite:///log.db",
        *arguments,
    )
    streams = {"stdout": asyncio.subprocess.PIPE, "stderr": asyncio.subprocess.PIPE}
    return await asyncio.create_subprocess_exec(
        *command, cwd=folder, env=env | {"SEALBUS_FAILPOINT": failpoint}, **streams
    )


async def is_empty(shop: Shop) -> bool:
    return not await shop.backlog()


async def read_ids(folder: Path) -> list[str]:
    transport = open_transport(f"sqlite:///{folder}/log.db")
    try:
        pages = [
            await transport.read("agents.order.placed", number, 0, max_records=1000, max_bytes=1 << 24)
            for number in range(4)
        ]
        return [sealing.parse(record.value).message_id for page in pages for record in page]
    finally:
        await transport.close()


@pytest.mark.slow  # relays in processes of their own, and leases that end
async def test_a_relay_killed_between_acknowledgement_and_mark_sends_the_same_again(shop: Shop, tmp_path: Path) -> None:
    ids = await shop.place(1, 2, 3)
    killed = await relay_process(shop, tmp_path, failpoint="sent:1")
    assert await killed.wait() == -signal.SIGKILL
    standby = await relay_process(shop, tmp_path)
    await eventually(lambda: is_empty(shop))
    standby.terminate()
    assert await standby.wait() == 143
    await standby.communicate()
    await killed.communicate()
    assert sorted(await read_ids(tmp_path)) == sorted(ids * 2)


async def test_once_from_the_command_line(shop: Shop, tmp_path: Path) -> None:
    ids = await shop.place(1, 2, 3)
    process = await relay_process(shop, tmp_path, "--once")
    out, err = await process.communicate()
    assert (process.returncode, out) == (0, b""), err
    assert b"3 sent, 0 refused for good" in err
    assert sorted(await read_ids(tmp_path)) == sorted(ids)
