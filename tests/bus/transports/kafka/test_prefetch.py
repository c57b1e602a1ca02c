"""What is fetched ahead: enough for whoever may be read, whatever lies there of those that may not, and never without
bound."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from types import SimpleNamespace

import pytest
from aiokafka import TopicPartition
from aiokafka.util import commit_structure_validate

from bus.clock import SystemClock
from bus.transports.base import Assignment, Record
from bus.transports.kafka.consumer.consumer import Committing
from bus.transports.kafka.consumer.held_partitions import _AHEAD_BYTES
from bus.transports.kafka.consumer.subscription import KafkaSubscription

WAITING, OTHER = Assignment("waiting", 0, 1), Assignment("other", 0, 1)
FETCH = 500


class Full:
    """A library's consumer that has one whole fetch of records for each partition in turn, as long as it is not
    paused."""

    def __init__(self, topics: Iterable[str], value: bytes) -> None:
        self._value = value
        self._offsets = dict.fromkeys((TopicPartition(topic, 0) for topic in topics), 0)
        self._paused: set[TopicPartition] = set()

    async def fetch(self, timeout_s: float) -> Mapping[TopicPartition, Sequence[Record]]:
        for place in self._offsets:
            if place not in self._paused:
                begin = self._offsets[place]
                self._offsets[place] += FETCH
                return {
                    place: [Record(place.topic, 0, begin + number, 0, None, self._value, ()) for number in range(FETCH)]
                }
        await asyncio.sleep(timeout_s)
        return {}

    def pause(self, places: Iterable[TopicPartition]) -> None:
        self._paused |= set(places)

    def resume(self, places: Iterable[TopicPartition]) -> None:
        self._paused -= set(places)

    def seek(self, place: TopicPartition, offset: int) -> None:
        self._offsets[place] = offset

    async def commit(self, offsets: Mapping[TopicPartition, int], is_current: object) -> Committing:
        commit_structure_validate(offsets)
        return Committing.TAKEN

    def position(self, place: TopicPartition) -> int:
        return self._offsets[place]


def reading(*assignments: Assignment, value: bytes = b"v") -> KafkaSubscription:
    """A member that holds *assignments*, each from its beginning."""
    subscription = KafkaSubscription("g", [], None, member="m", link=SimpleNamespace(clock=SystemClock(), options=None))
    subscription._life.polled = lambda: None
    subscription._life.consumer = Full((assignment.topic for assignment in assignments), value)
    for held in subscription._holdings.add(assignments):
        held.position = 0
    return subscription


async def polled(subscription: KafkaSubscription, count: int) -> list[Record]:
    return list(await subscription.poll(timeout_s=1, max_records=count, max_bytes=10_000_000))


@pytest.mark.parametrize("how", ["paused", "leaving"])
async def test_buffered_records_of_a_paused_partition_do_not_block_fetching_others(
    how: str,
) -> None:
    subscription = reading(WAITING, OTHER)
    held = subscription._holdings.get(WAITING)
    assert held is not None
    while len(held.buffer) != FETCH:
        # The second fetch brings more than is missing: as much is taken as leaves one fetch.
        await polled(subscription, max(1, len(held.buffer) - FETCH))
    if how == "paused":
        subscription.pause([WAITING])
    else:
        held.leaving = True
        subscription._life.consumer.pause([held.location])
    assert len(held.buffer) == FETCH
    assert [record.topic for record in await polled(subscription, 1)] == ["other"]
    subscription._closed = True


async def test_prefetched_records_are_bounded_in_bytes() -> None:
    size = _AHEAD_BYTES // 400
    subscription = reading(OTHER, value=bytes(size))
    held = subscription._holdings.get(OTHER)
    assert held is not None
    for _ in range(2 * FETCH):
        await polled(subscription, 1)
        # A fetch is begun while less than the bound lies here, and brings what it brings.
        assert len(held.buffer) * size < _AHEAD_BYTES + FETCH * size
        assert held.buffered_bytes == len(held.buffer) * size
    held.drop()
    assert held.buffered_bytes == 0
    subscription._closed = True


async def test_buffered_records_of_paused_partitions_are_bounded_and_keep_their_order() -> None:
    assignments = [Assignment(f"topic-{number}", 0, 1) for number in range(20)]
    subscription = reading(*assignments)
    for assignment in assignments:
        while not [record for record in await polled(subscription, 1) if record.topic == assignment.topic]:
            pass
        await asyncio.sleep(0)
        subscription.pause([assignment])
        assert subscription._holdings.paused_share <= 1
    for assignment in assignments:
        held = subscription._holdings.get(assignment)
        assert held is not None
        next_offset = held.position
        subscription.resume([assignment])
        found: list[Record] = []
        while not found:
            found = await polled(subscription, 1)
        assert (found[0].topic, found[0].offset) == (assignment.topic, next_offset)
        subscription.pause([assignment])
    subscription._closed = True


async def test_an_offset_is_not_committed_twice_by_concurrent_commits() -> None:
    subscription = reading(OTHER)
    held = subscription._holdings.get(OTHER)
    assert held is not None
    committing = [subscription._commit(subscription._life.consumer, {held: 7}) for _ in range(2)]
    assert await asyncio.gather(*committing) == [Committing.TAKEN, Committing.TAKEN]
    assert held.committed == 7
    subscription._closed = True
