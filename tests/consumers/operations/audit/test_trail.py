"""The audit goes on past every record: hostile ones, those that a store refuses, and partitions that fail."""

from __future__ import annotations

from base64 import b64decode
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from bus.clock import ManualClock, SystemClock
from bus.errors import UnstorableError
from bus.payloads.payload_types import Registry
from bus.settings.loading import load
from bus.topics.names import message_topic
from bus.transports import open_transport
from bus.transports.base import NewRecord, Record, TopicSpec, Transport
from consumers.operations.audit.databases import AuditDatabase, Statements, open_database
from consumers.operations.audit.metrics import AuditMetrics
from consumers.operations.audit.rows import UNSTORABLE
from consumers.operations.audit.store import AuditHead, AuditRecord, AuditStore
from consumers.operations.audit.trail import AuditTrail, TrailSettings
from consumers.operations.audit.verification import verify_chain
from producers.connection import make_publisher
from sealbus import Outgoing, payload
from sealbus.errors import InboxError, UnreachableError
from sealbus.telemetry import Metrics
from sealbus.trust import Security
from tests.databases import Postgres

SETTINGS = TrailSettings(
    namespace="agents", holder="tests", max_message_bytes=1 << 20, checkpoint_s=3600, keep_s=0, keep_sensitive_s=0
)
FIRST, SECOND = message_topic("agents", "a.first"), message_topic("agents", "b.second")
HOSTILE = [
    NewRecord("agents.a.first.dlq", b"k\0", b"\0", (("__dlq.errors.topic", b"\0"), ("sb-dlq-reason", b"a\0b"))),
    NewRecord("agents.a.first.dlq", None, b"{}", (("__dlq.errors.topic", b"x"), ("sb-dlq-reason", b"\xed\xa0\x80\0"))),
    NewRecord(FIRST, None, b'{"metadata":{"message_id":"\\u0000"}}'),
    NewRecord(FIRST, b"\xff", b"[" * 10_000),
    NewRecord(FIRST, None, None),
    NewRecord("agents._deadletters", b"\0", b'{"state":"\\u0000\\ud800"}'),
    NewRecord("agents._audit", None, b'["\\u0000", 1e400, 123456789012345678901234567890]'),
]


@pytest.fixture
async def log() -> AsyncIterator[Transport]:
    transport = open_transport("memory://", clock=ManualClock())
    names = (FIRST, SECOND, "agents.a.first.dlq", "agents._deadletters", "agents._audit")
    await transport.admin.create_topics([TopicSpec(name=name, partitions=1) for name in names])
    yield transport
    await transport.close()


@pytest.fixture(params=["sqlite", "postgres"])
async def database(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/audit.db"
    server: Postgres = request.getfixturevalue("postgres")
    return await server.create_database()


@asynccontextmanager
async def opened(database: AuditDatabase) -> AsyncGenerator[AuditStore]:
    store = AuditStore(database, namespace="agents")
    await store.open(create=True)
    try:
        yield store
    finally:
        await store.close()


def trail_of(log: Transport, store: AuditStore, clock: Any = None, metrics: AuditMetrics | None = None) -> AuditTrail:
    return AuditTrail(
        log,
        store,
        SETTINGS,
        registry=Registry(()),
        verifier=None,
        publisher=None,
        clock=clock or SystemClock(),
        metrics=metrics,
    )


async def rows_of(store: AuditStore, topic: str) -> list[AuditRecord]:
    return [row async for row in store.rows(topic, 0)]


async def assert_whole(store: AuditStore) -> None:
    for place, head in (await store.heads()).items():
        assert not await faults_of(store, place, head)


async def faults_of(store: AuditStore, place: tuple[str, int], head: AuditHead) -> list[str]:
    """What is wrong with the rows of *place*, of which *head* was read before."""

    async def later() -> AuditHead:
        return (await store.heads())[place]

    return [fault.kind for fault in (await verify_chain(store.rows(*place), head, {}, later)).faults]


async def test_rows_that_are_recorded_while_it_is_verified_are_no_fault(log: Transport, database: str) -> None:
    await log.append([NewRecord(FIRST, None, b"x")], timeout_s=5)
    async with opened(open_database(database)) as store:
        trail = trail_of(log, store)
        await trail.run(until_caught_up=True)
        head = (await store.heads())[FIRST, 0]
        await log.append([NewRecord(FIRST, None, b"y"), NewRecord(FIRST, None, b"z")], timeout_s=5)
        await trail.run(until_caught_up=True)
        assert await faults_of(store, (FIRST, 0), head) == []
        # A head that does not know them, before and after, is a fault as ever.
        later = (await store.heads())[FIRST, 0]

        async def unmoved() -> AuditHead:
            return head

        report = await verify_chain(store.rows(FIRST, 0), head, {}, unmoved)
        assert [fault.kind for fault in report.faults] == ["inserted"]
        wrong = AuditHead(**{name: getattr(later, name) for name in later.__struct_fields__} | {"hash": "0" * 64})
        assert await faults_of(store, (FIRST, 0), wrong) == ["cut"]


async def test_hostile_records_are_recorded_and_stop_nothing(log: Transport, database: str) -> None:
    await log.append([*HOSTILE, NewRecord(SECOND, None, b"x")], timeout_s=5)
    async with opened(open_database(database)) as store:
        await trail_of(log, store).run(until_caught_up=True)
        assert {place[0]: head.next_offset for place, head in (await store.heads()).items()} == {
            FIRST: 3,
            SECOND: 1,
            "agents.a.first.dlq": 2,
            "agents._deadletters": 1,
            "agents._audit": 1,
        }
        letters = await rows_of(store, "agents.a.first.dlq")
        assert letters[0].row.reason == "a\0b"
        await assert_whole(store)


async def test_a_classification_of_nul_is_recorded_as_it_is(log: Transport, database: str) -> None:
    settings = load(flags={"bus.url": "memory://"}, env={}, file=None).settings
    publisher = make_publisher(log, settings, "a@svc", clock=SystemClock(), metrics=Metrics())
    said = Outgoing(Said(text="x"), security=Security(data_classification="\0"))
    await publisher.publish(said)
    async with opened(open_database(database)) as store:
        await trail_of(log, store).run(until_caught_up=True)
        (row,) = await rows_of(store, FIRST)
        assert row.content is not None
        assert row.content.classification == "\0"
        await assert_whole(store)


@payload("a.first", version="1.0.0")
class Said(msgspec.Struct, frozen=True, kw_only=True):
    text: str


class Choosy(AuditDatabase):
    """A database that refuses facts with one word in them."""

    def __init__(self, inner: AuditDatabase, word: str, error: type[Exception]) -> None:
        self._inner = inner
        self.bytes_type = inner.bytes_type
        self.word = word
        self.error = error

    async def open(self) -> None:
        await self._inner.open()

    async def now_ms(self) -> int:
        return await self._inner.now_ms()

    @asynccontextmanager
    async def transaction(self) -> AsyncGenerator[Statements]:
        async with self._inner.transaction() as statements:
            yield _Choosing(statements, self)

    async def read(self, statement: str, *arguments: Any) -> list[tuple[Any, ...]]:
        return await self._inner.read(statement, *arguments)

    async def close(self) -> None:
        await self._inner.close()


class _Choosing(Statements):
    def __init__(self, inner: Statements, database: Choosy) -> None:
        self._inner = inner
        self._database = database

    async def fetch(self, statement: str, *arguments: Any) -> list[tuple[Any, ...]]:
        return await self._inner.fetch(statement, *arguments)

    async def many(self, statement: str, rows: Sequence[Sequence[Any]]) -> None:
        if any(self._database.word in str(row) for row in rows):
            raise self._database.error("no such thing here\0")
        await self._inner.many(statement, rows)


async def test_a_record_that_the_store_refuses_is_a_row_with_its_bytes(log: Transport, tmp_path: Path) -> None:
    def said(number: int) -> NewRecord:
        value = msgspec.json.encode({"n": f"poison{'' if number in (3, 4, 9) else number}."})
        return NewRecord("agents._deadletters", b"key", value, (("h\xe4", b"\0"),))

    await log.append([said(number) for number in range(12)], timeout_s=5)
    metrics = AuditMetrics()
    async with opened(Choosy(open_database(f"sqlite:///{tmp_path}/a.db"), '"poison."', UnstorableError)) as store:
        await trail_of(log, store, metrics=metrics).run(until_caught_up=True)
        rows = await rows_of(store, "agents._deadletters")
        assert [row.row.offset for row in rows] == list(range(12))
        assert [row.row.offset for row in rows if row.row.verdict == UNSTORABLE] == [3, 4, 9]
        content = rows[3].content
        assert content is not None
        facts = msgspec.json.decode(content.facts)
        assert b64decode(facts["value"]) == said(3).value
        assert (b64decode(facts["key"]), b64decode(facts["headers"][0][1])) == (b"key", b"\0")
        assert content.classification == "restricted"
        await assert_whole(store)
    assert metrics.registry.get_sample_value("sealbus_audit_unstorable_total") == 3


async def test_an_unstorable_record_becomes_a_row_with_its_bytes(
    log: Transport, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def strange(record: Record) -> object:
        raise RecursionError("too deep")

    monkeypatch.setattr("consumers.operations.audit.trail.read_dead_letter", strange)
    await log.append([NewRecord("agents.a.first.dlq", None, b"x"), NewRecord(FIRST, None, b"y")], timeout_s=5)
    async with opened(open_database(f"sqlite:///{tmp_path}/a.db")) as store:
        await trail_of(log, store).run(until_caught_up=True)
        (letter,) = await rows_of(store, "agents.a.first.dlq")
        assert (letter.row.verdict, len(await rows_of(store, FIRST))) == (UNSTORABLE, 1)


async def test_a_partition_that_the_store_fails_stops_no_other(log: Transport, tmp_path: Path) -> None:
    await log.append([NewRecord(topic, None, b"x") for topic in (FIRST, SECOND)], timeout_s=5)
    metrics, clock = AuditMetrics(), ManualClock()
    database = Choosy(open_database(f"sqlite:///{tmp_path}/a.db"), FIRST, InboxError)
    async with opened(database) as store:
        trail = trail_of(log, store, clock, metrics)
        with pytest.raises(InboxError):
            await trail.run(until_caught_up=True)
        assert {place[0] for place in await store.heads()} == {SECOND}
        assert behind(metrics, FIRST) == 1
        assert behind(metrics, SECOND) == 0
        assert metrics.registry.get_sample_value("sealbus_audit_up") == 0
        database.word = "nothing like it"
        clock.advance(5)
        await trail.run(until_caught_up=True)
        assert {place[0] for place in await store.heads()} == {FIRST, SECOND}
        assert metrics.registry.get_sample_value("sealbus_audit_up") == 1


async def test_a_partition_that_cannot_be_read_stops_no_other(
    log: Transport, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await log.append([NewRecord(topic, None, b"x") for topic in (FIRST, SECOND)], timeout_s=5)
    read, ranges = log.read, log.admin.ranges

    async def deaf(topic: str, *arguments: Any, **options: Any) -> Sequence[Record]:
        if topic == FIRST:
            raise UnreachableError("no leader")
        return await read(topic, *arguments, **options)

    async def deaf_ranges(topic: str) -> Any:
        if topic == "agents.a.first.dlq":
            raise UnreachableError("no leader")
        return await ranges(topic)

    monkeypatch.setattr(log, "read", deaf)
    monkeypatch.setattr(log.admin, "ranges", deaf_ranges)
    async with opened(open_database(f"sqlite:///{tmp_path}/a.db")) as store:
        with pytest.raises(UnreachableError):
            await trail_of(log, store).run(until_caught_up=True)
        assert {place[0] for place in await store.heads()} == {SECOND}


def behind(metrics: AuditMetrics, topic: str) -> float | None:
    labels = {"topic": topic, "partition": "0"}
    return metrics.registry.get_sample_value("sealbus_audit_partition_behind_records", labels)
