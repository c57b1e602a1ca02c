"""Reading without a group: clients whose brokers have gone elsewhere, more partitions than clients are kept for, and
closing meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from unittest import mock

import pytest
from aiokafka import TopicPartition

from bus.clock import ManualClock
from bus.errors import ClosedError, UnreachableError
from bus.transports.base import PartitionRange
from bus.transports.kafka.consumer import reader as reading
from bus.transports.kafka.consumer.reader import Reading
from bus.transports.kafka.options import KafkaOptions

PLACE = TopicPartition("a.b", 0)


class Astray:
    """A library's consumer whose brokers have new addresses: it fetches nothing, and its fetcher, waiting to try again,
    ends as cancelled."""

    clock: ManualClock
    let_go: list[Astray]

    def __init__(self, **_: object) -> None:
        self._coordinator = self._fetcher = None
        self._client = self

    async def start(self) -> None: ...

    def assign(self, places: Sequence[TopicPartition]) -> None: ...

    def seek(self, place: TopicPartition, offset: int) -> None: ...

    async def position(self, place: TopicPartition) -> int:
        return 0

    async def getmany(self, place: TopicPartition, timeout_ms: int) -> Mapping[TopicPartition, Sequence[object]]:
        self.clock.advance(timeout_ms / 1000)
        return {}

    async def stop(self) -> None:
        raise asyncio.CancelledError

    async def close(self) -> None:
        self.let_go.append(self)


class Steady:
    """A library's consumer of an empty partition. It starts when it may, and says when it is stopped."""

    may_start: asyncio.Event
    may_stop: asyncio.Event
    starting: asyncio.Event
    running: set[Steady]

    def __init__(self, **_: object) -> None:
        self._fetcher = None

    async def start(self) -> None:
        self.starting.set()
        await self.may_start.wait()
        self.running.add(self)

    def assign(self, places: Sequence[TopicPartition]) -> None: ...

    def seek(self, place: TopicPartition, offset: int) -> None: ...

    async def position(self, place: TopicPartition) -> int:
        return 1

    async def stop(self) -> None:
        await self.may_stop.wait()
        self.running.discard(self)


class Link:
    """Answers, and knows of one record."""

    async def topic(self, _: str) -> SimpleNamespace:
        return SimpleNamespace(partitions=1)

    async def spans(self, places: Sequence[TopicPartition]) -> Mapping[TopicPartition, PartitionRange]:
        return dict.fromkeys(places, PartitionRange(0, 1))


@pytest.fixture
def astray() -> Reading:
    Astray.clock, Astray.let_go = ManualClock(), []
    return Reading(KafkaOptions(bootstrap=("localhost:1",)), Link(), Astray.clock)


async def test_a_reader_of_a_disconnected_client_gets_an_error_instead_of_a_cancellation(astray: Reading) -> None:
    with mock.patch.object(reading, "AIOKafkaConsumer", Astray):
        for number in range(2):
            with pytest.raises(UnreachableError, match=r"a\.b partition 0 was not answered"):
                await astray.read("a.b", 0, 0, max_records=1, max_bytes=1, wait_s=5)
            assert len(Astray.let_go) == number + 1
    await astray.close()


@pytest.fixture
def steady(monkeypatch: pytest.MonkeyPatch) -> Reading:
    Steady.may_start, Steady.may_stop, Steady.starting, Steady.running = (
        asyncio.Event(),
        asyncio.Event(),
        asyncio.Event(),
        set(),
    )
    monkeypatch.setattr(reading, "AIOKafkaConsumer", Steady)
    return Reading(KafkaOptions(bootstrap=("localhost:1",)), Link(), ManualClock())


async def test_more_partitions_at_once_than_clients_are_kept_for_can_be_read(steady: Reading) -> None:
    async def read(number: int) -> None:
        await steady.read(f"t{number}", 0, 0, max_records=1, max_bytes=1, wait_s=0)

    Steady.may_start.set()
    for number in range(16):
        await read(number)
    Steady.may_start.clear()
    several = [asyncio.create_task(read(number)) for number in range(16, 22)]
    await asyncio.sleep(0)
    for event in (Steady.may_start, Steady.may_stop):
        event.set()
    await asyncio.gather(*several)
    assert len(Steady.running) == 16
    await steady.close()
    assert not Steady.running


async def test_a_client_stays_open_for_readers_waiting_for_its_partition(steady: Reading) -> None:
    async def read(number: int) -> None:
        await steady.read(f"t{number}", 0, 0, max_records=1, max_bytes=1, wait_s=0)

    several = [asyncio.create_task(read(number)) for number in (0, *range(17))]
    await asyncio.sleep(0)
    for event in (Steady.may_start, Steady.may_stop):
        event.set()
    await asyncio.gather(*several)
    await steady.close()
    assert not Steady.running


async def test_a_client_that_starts_while_reading_is_closed_is_stopped(steady: Reading) -> None:
    Steady.may_stop.set()
    task = asyncio.create_task(steady.read("a.b", 0, 0, max_records=1, max_bytes=1, wait_s=0))
    await Steady.starting.wait()
    await steady.close()
    Steady.may_start.set()
    with pytest.raises(ClosedError):
        await task
    assert not Steady.running


async def test_asking_for_a_partition_end_during_close_raises(steady: Reading, monkeypatch: pytest.MonkeyPatch) -> None:
    asked, answered, spans = asyncio.Event(), asyncio.Event(), Link.spans

    async def late(link: Link, places: Sequence[TopicPartition]) -> Mapping[TopicPartition, PartitionRange]:
        asked.set()
        await answered.wait()
        return await spans(link, places)

    monkeypatch.setattr(Link, "spans", late)
    for event in (Steady.may_start, Steady.may_stop):
        event.set()
    task = asyncio.create_task(steady.read("a.b", 0, 0, max_records=1, max_bytes=1, wait_s=0))
    await asked.wait()
    await steady.close()
    answered.set()
    with pytest.raises(ClosedError):
        await task
