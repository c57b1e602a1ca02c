"""What lies around a moment is read once, within a budget, and how far was looked is said."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from bus.clock import ManualClock
from bus.transports import open_transport
from bus.transports.base import NewRecord, Record, TopicSpec, Transport
from consumers.operations.lineage.log_reach import FAR_MS, LogReach

PLACES = [("a.b", 0), ("a.b", 1)]
BEGAN_MS = ManualClock().now_ms()


@pytest.fixture
async def log() -> AsyncIterator[Transport]:
    """A log of 1,000 records, one a second, in two partitions in turn."""
    clock = ManualClock()
    transport = open_transport("memory://", clock=clock)
    await transport.admin.create_topics([TopicSpec(name="a.b", partitions=2)])
    for number in range(1000):
        await transport.append([NewRecord("a.b", None, b"%d" % number, partition=number % 2)], timeout_s=5)
        clock.advance(1)
    yield transport
    await transport.close()


async def reach_of(log: Transport, most: int) -> LogReach:
    reach = LogReach(log, PLACES, limit=most)
    await reach.open()
    return reach


async def numbers(records: AsyncIterator[Record]) -> list[int]:
    return sorted([int(record.value or b"") async for record in records])


def at_s(second: float) -> int:
    return BEGAN_MS + round(second * 1000)


async def test_a_log_smaller_than_the_budget_is_read_whole(log: Transport) -> None:
    reach = await reach_of(log, 1000)
    assert [await numbers(ring) async for ring in reach.rings(at_s(500))] == [list(range(1000))]
    assert reach.looked.is_whole


async def test_rings_go_from_the_moment_outwards_and_never_over_the_same_record(log: Transport) -> None:
    reach, seen = await reach_of(log, 999), list[list[int]]()
    async for ring in reach.rings(at_s(500)):
        seen.append(await numbers(ring))
    flat = [number for ring in seen for number in ring]
    assert len(flat) == len(set(flat))
    assert seen[0] == [500]
    assert set(seen[1]) == {501, 502, 503, 504}
    assert set(flat) >= set(range(490, 620))


async def test_a_truncated_search_reports_its_range(log: Transport) -> None:
    reach = await reach_of(log, 50)
    flat = [number async for ring in reach.rings(at_s(500)) for number in await numbers(ring)]
    looked = reach.looked
    assert reach.is_cut
    assert looked.records == len(flat) <= 50
    assert sorted(flat) == [number for number in range(1000) if looked.since_ms <= at_s(number) < looked.until_ms]
    assert 500 in flat


async def test_a_moment_beyond_the_log_comes_to_an_end(log: Transport) -> None:
    for moment_ms in (0, FAR_MS - 1, (1 << 48) - 1):
        reach = await reach_of(log, 50)
        assert len([number async for ring in reach.rings(moment_ms) for number in await numbers(ring)]) <= 50


async def test_forwards_reads_nothing_that_came_before(log: Transport) -> None:
    reach, found = await reach_of(log, 300), set[int]()
    async for ring in reach.rings(at_s(900), forwards=True):
        found |= set(await numbers(ring))
    assert found == set(range(900, 1000))


async def test_records_after_given_offsets_are_read_within_the_budget(log: Transport) -> None:
    reach = await reach_of(log, 100)
    assert await numbers(reach.after({("a.b", 0): 490, ("a.b", 1): 495})) == [
        *range(980, 990, 2),
        *range(990, 1000),
    ]
    cut = await reach_of(log, 100)
    assert len(await numbers(cut.after({}))) == 100
    assert cut.is_cut


async def test_records_of_the_same_moment_are_bounded_too() -> None:
    transport = open_transport("memory://", clock=ManualClock())
    await transport.admin.create_topics([TopicSpec(name="a.b", partitions=2)])
    await transport.append([NewRecord("a.b", None, b"%d" % number) for number in range(1000)], timeout_s=5)
    reach = await reach_of(transport, 100)
    assert 0 < len([number async for ring in reach.rings(BEGAN_MS) for number in await numbers(ring)]) <= 100
    await transport.close()
