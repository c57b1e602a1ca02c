"""`publish_many`: one outcome per message in order, in bounded memory; what a slow source has given leaves at once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any

import msgspec
import pytest

from bus.clock import ManualClock
from bus.errors import AppendUnknownError, RecordTooLargeError
from bus.payloads.payload_types import payload
from bus.protocol import sealing
from bus.settings.loading import load
from bus.telemetry.metrics import Metrics
from bus.transports.base import Appended, AppendOutcome, Features, NewRecord
from producers.connection import Bus, make_publisher
from producers.outcomes import PublishRejected, PublishUnknown, Receipt
from producers.sealing.options import Outgoing


@payload("row.added")
class Row(msgspec.Struct, frozen=True, kw_only=True):
    n: int
    filler: str = ""


class FakeLog:
    """Counts offsets, notes how much each append brought, and waits where it is told to."""

    features = Features(
        name="fake", durable=True, between_processes=False, max_record_bytes=1 << 30, creates_topics_at_start=False
    )

    def __init__(self) -> None:
        self.appends: list[int] = []
        self.rows: list[int] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.answers: dict[int, AppendOutcome] = {}

    async def append(self, records: Sequence[NewRecord], *, timeout_s: float, **_: object) -> Sequence[AppendOutcome]:
        self.appends.append(len(records))
        await self.gate.wait()
        return [self._write(record) for record in records]

    def _write(self, record: NewRecord) -> AppendOutcome:
        row = msgspec.json.decode(sealing.parse(record.value).data)["n"]
        if row in self.answers:
            return self.answers[row]
        self.rows.append(row)
        return Appended(record.topic, 0, len(self.rows) - 1, 0)

    async def close(self) -> None:
        return None


@pytest.fixture
def log() -> FakeLog:
    return FakeLog()


@pytest.fixture
async def bus(log: FakeLog) -> Bus:
    settings = load(flags={"topics.create": False}, env={}, file=None).settings
    return Bus(make_publisher(log, settings, "a@b", clock=ManualClock(), metrics=Metrics()), log)


async def turns(count: int = 20) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def results(bus: Bus, source: Any) -> list[Any]:
    return [result async for result in bus.publish_many(source)]


async def test_every_message_has_its_receipt_in_the_order_of_the_source(bus: Bus, log: FakeLog) -> None:
    told = await results(bus, (Row(n=number) for number in range(5_000)))
    assert [receipt.offset for receipt in told] == list(range(5_000))
    assert log.rows == list(range(5_000))
    assert len(log.appends) <= 20


async def test_an_asynchronous_source_gives_the_same(bus: Bus, log: FakeLog) -> None:
    async def source() -> AsyncIterator[Row]:
        for number in range(1_200):
            if number % 7 == 0:
                await asyncio.sleep(0)
            yield Row(n=number)

    told = await results(bus, source())
    assert [receipt.offset for receipt in told] == list(range(1_200))
    assert log.rows == list(range(1_200))


class Growing(list[Row]):
    """Gives more than it holds: what a list does when it is gone through is its own affair."""

    def __iter__(self) -> Iterator[Row]:
        yield from super().__iter__()
        yield Row(n=len(self))


@pytest.mark.parametrize("kind", [list, tuple, Growing])
async def test_a_sequence_gives_the_same(bus: Bus, log: FakeLog, kind: Any) -> None:
    rows = [Row(n=number) for number in range(2_500)]
    mixed = [Outgoing(row, key="k") if row.n % 3 else row for row in rows[:1_300]]
    told = await results(bus, kind(rows if kind is Growing else [*mixed, *rows[1_300:]]))
    count = 2_501 if kind is Growing else 2_500
    assert [receipt.offset for receipt in told] == list(range(count))
    assert log.rows == list(range(count))


async def test_what_large_messages_of_a_sequence_take_is_bounded(bus: Bus, log: FakeLog) -> None:
    await results(bus, [Row(n=number, filler="x" * 500_000) for number in range(30)])
    assert max(log.appends) <= 10


async def test_an_empty_source_gives_nothing(bus: Bus, log: FakeLog) -> None:
    assert await results(bus, []) == []
    assert log.appends == []


async def test_each_outcome_keeps_its_place(bus: Bus, log: FakeLog) -> None:
    log.answers = {1: RecordTooLargeError("x"), 3: AppendUnknownError("x")}
    told = await results(bus, [Row(n=0), Row(n=1), Row(n="x"), Row(n=3), Row(n=4)])
    assert [type(result) for result in told] == [Receipt, PublishRejected, PublishRejected, PublishUnknown, Receipt]
    assert msgspec.json.decode(told[3].message.data)["n"] == 3


async def test_drafts_carry_their_own_options(bus: Bus, log: FakeLog) -> None:
    told = await results(bus, [Outgoing(Row(n=0), message_id="m-1"), Outgoing(Row(n=1), ttl_s=-1)])
    assert [type(result) for result in told] == [Receipt, PublishRejected]
    assert told[0].message_id == "m-1"


async def test_payloads_of_a_slow_source_are_sent_at_once(bus: Bus, log: FakeLog) -> None:
    more = asyncio.Event()

    async def source() -> AsyncIterator[Row]:
        yield Row(n=0)
        await more.wait()
        yield Row(n=1)

    stream = bus.publish_many(source()).__aiter__()
    first = await asyncio.wait_for(anext(stream), 30)
    assert isinstance(first, Receipt)
    assert log.rows == [0]
    more.set()
    assert isinstance(await anext(stream), Receipt)
    with pytest.raises(StopAsyncIteration):
        await anext(stream)


async def test_a_source_is_read_only_as_far_ahead_as_memory_is_bounded(bus: Bus, log: FakeLog) -> None:
    given = 0

    def source() -> Iterator[Row]:
        nonlocal given
        for number in range(1_000_000):
            given += 1
            yield Row(n=number)

    log.gate.clear()
    stream = bus.publish_many(source()).__aiter__()
    waiting = asyncio.ensure_future(anext(stream))
    await turns(200)
    assert given < 20_000
    log.gate.set()
    await waiting
    await stream.aclose()  # type: ignore[attr-defined]
    assert given < 40_000


async def test_large_messages_count_by_their_bytes(bus: Bus, log: FakeLog) -> None:
    given = 0

    def source() -> Iterator[Row]:
        nonlocal given
        for number in range(1_000):
            given += 1
            yield Row(n=number, filler="x" * 500_000)

    log.gate.clear()
    stream = bus.publish_many(source()).__aiter__()
    waiting = asyncio.ensure_future(anext(stream))
    await turns(200)
    assert given < 60
    log.gate.set()
    await waiting
    await stream.aclose()  # type: ignore[attr-defined]


async def told_before(bus: Bus, source: Any, failure: type[BaseException]) -> list[type]:
    """What came of the source until it broke."""
    told: list[type] = []
    with pytest.raises(failure, match="the source broke"):  # noqa: PT012 - what comes before counts
        async for result in bus.publish_many(source):
            told.append(type(result))  # noqa: PERF401 - what came before the exception is kept
    return told


async def test_an_exception_of_the_source_comes_after_what_it_gave(bus: Bus, log: FakeLog) -> None:
    def source() -> Iterator[Row]:
        yield Row(n=0)
        yield Row(n=1)
        raise LookupError("the source broke")

    assert await told_before(bus, source(), LookupError) == [Receipt, Receipt]
    assert log.rows == [0, 1]


class HarshError(BaseException):
    """Nothing that `except Exception` sees."""


async def test_not_even_a_harsh_error_of_the_source_passes_for_its_end(bus: Bus, log: FakeLog) -> None:
    async def source() -> AsyncIterator[Row]:
        yield Row(n=0)
        raise HarshError("the source broke")

    assert await told_before(bus, source(), HarshError) == [Receipt]
    assert log.rows == [0]


async def test_an_invalid_source_is_an_error(bus: Bus) -> None:
    with pytest.raises(TypeError):
        await results(bus, 5)


class Watched:
    """A source of *count* rows and silence after them, which notes its end; that takes it some turns."""

    def __init__(self, count: int) -> None:
        self.closed = False
        self._count = count

    async def rows(self) -> AsyncIterator[Row]:
        try:
            for number in range(self._count):
                yield Row(n=number)
            await asyncio.Event().wait()
        finally:
            await turns(5)
            self.closed = True


@pytest.mark.medium
@pytest.mark.parametrize("count", [1, 1_000_000], ids=["it_waits", "it_is_ahead"])
async def test_a_source_has_ended_when_the_stream_of_outcomes_is_closed(bus: Bus, log: FakeLog, count: int) -> None:
    source = Watched(count)
    # Held here, so that no collection of garbage ends it.
    given = source.rows()
    stream = bus.publish_many(given)
    async for _ in stream:
        break
    await stream.aclose()  # type: ignore[attr-defined]
    assert source.closed


@pytest.mark.parametrize("count", [0, 1_000_000], ids=["it_waits", "it_is_ahead"])
async def test_a_source_has_ended_when_whoever_reads_the_outcomes_was_cancelled(
    bus: Bus, log: FakeLog, count: int
) -> None:
    log.gate.clear()
    source = Watched(count)
    given = source.rows()
    reading = asyncio.ensure_future(results(bus, given))
    await turns()
    reading.cancel()
    await asyncio.wait([reading])
    assert reading.cancelled()
    assert source.closed
    log.gate.set()
    await bus.publisher.close()


async def test_an_error_of_the_source_reaches_the_closer_of_the_stream(bus: Bus, log: FakeLog) -> None:
    async def source() -> AsyncIterator[Row]:
        try:
            yield Row(n=0)
            await asyncio.Event().wait()
        finally:
            raise LookupError("the source broke")

    stream = bus.publish_many(source())
    await anext(stream)
    with pytest.raises(LookupError, match="the source broke"):
        await stream.aclose()  # type: ignore[attr-defined]


@pytest.mark.parametrize("timeout_s", [0, -1, float("nan")])
async def test_a_past_deadline_is_refused_before_sending(bus: Bus, log: FakeLog, timeout_s: float) -> None:
    with pytest.raises(PublishRejected, match="timeout_s"):
        await anext(bus.publish_many([Row(n=0)], timeout_s=timeout_s))
    await bus.publisher.close()
    assert log.appends == []
