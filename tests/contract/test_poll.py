"""Fetching: limits, fairness, pause, resume, seek."""

import asyncio
import time

import pytest

from bus.transports.base import NewRecord

MIB = 1 << 20


async def joined(log, partitions=1):
    transport = log.open()
    await log.topic(transport, partitions=partitions)
    member = await log.join(transport)
    await log.eventually(lambda: len(member.holds()) == partitions, member)
    return transport, member


async def test_a_poll_returns_at_most_what_was_asked(log):
    transport, member = await joined(log)
    await log.fill(transport, 10)
    assert [r.offset for r in await member.poll(timeout_s=5, max_records=3)] == [0, 1, 2]
    assert [r.offset for r in await member.poll(timeout_s=5, max_records=100)] == [3, 4, 5, 6, 7, 8, 9]


async def test_a_poll_returns_no_more_bytes_than_asked(log):
    transport, member = await joined(log)
    await log.fill(transport, 100)
    sizes: list[int] = []
    while sum(sizes) < 100:
        sizes.append(len(await member.poll(timeout_s=5, max_bytes=30)))
    assert 1 <= max(sizes) <= 30


async def test_a_record_larger_than_the_limit_is_returned_alone(log):
    transport, member = await joined(log)
    big = b"x" * (10 * MIB)
    await log.append(transport, *(NewRecord("a.b", None, value, partition=0) for value in (b"1", big, b"2")))
    batches = [[r.value for r in await member.poll(timeout_s=5, max_bytes=MIB)] for _ in range(3)]
    assert batches == [[b"1"], [big], [b"2"]]


async def test_a_batch_larger_than_any_limit_arrives_whole_and_in_order(log):
    transport, member = await joined(log)
    await log.fill(transport, 5000)
    assert [r.value for r in await member.receive(5000)] == [b"%d" % i for i in range(5000)]


async def test_asking_for_no_records_fetches_none(log):
    transport, member = await joined(log)
    await log.fill(transport, 1)
    assert list(await member.poll(timeout_s=0.05, max_records=0)) == []
    assert len(await member.receive(1)) == 1


async def test_a_poll_without_time_does_not_wait(log):
    _, member = await joined(log)
    started_s = time.monotonic()
    for _ in range(20):
        assert list(await member.poll(timeout_s=0)) == []
    assert time.monotonic() - started_s < 10


async def test_no_partition_starves(log):
    transport = log.open()
    await log.topic(transport, partitions=3)
    for partition in range(3):
        await log.fill(transport, 300, partition=partition)
    member = await log.join(transport)
    records = await member.receive(900, max_records=10)
    assert {r.partition for r in records[:700]} == {0, 1, 2}


async def test_each_partition_arrives_in_order(log):
    transport, member = await joined(log, partitions=3)
    for partition in range(3):
        await log.fill(transport, 50, partition=partition)
    records = await member.receive(150, max_records=7)
    for partition in range(3):
        assert [r.offset for r in records if r.partition == partition] == list(range(50))


async def test_a_paused_partition_is_left_alone_until_it_is_resumed(log):
    transport, member = await joined(log, partitions=2)
    paused = next(a for a in member.subscription.assignments() if a.partition == 0)
    member.subscription.pause([paused])
    for partition in range(2):
        await log.fill(transport, 2, partition=partition)
    assert {r.partition for r in await member.receive(2)} == {1}
    await member.receive_nothing()
    waiting = asyncio.create_task(member.poll(timeout_s=55))
    await asyncio.sleep(0)
    member.subscription.resume([paused])
    assert [(r.partition, r.offset) for r in await asyncio.wait_for(waiting, 45)] == [(0, 0), (0, 1)]


async def test_seek_chooses_the_next_record(log):
    transport, member = await joined(log)
    await log.fill(transport, 5)
    await member.receive(5)
    member.subscription.seek(member.subscription.assignments()[0], 3)
    assert [r.offset for r in await member.receive(2)] == [3, 4]


async def test_a_cancelled_poll_loses_nothing(log):
    transport, member = await joined(log)
    await log.fill(transport, 50)
    got = []
    for delay in range(30):
        task = asyncio.create_task(member.poll(timeout_s=1, max_records=1))
        for _ in range(delay % 7):
            await asyncio.sleep(0)
        if task.done() or not task.cancel() or not await cancelled(task):
            got += task.result()
    got += await member.receive(50 - len(got))
    assert [r.offset for r in got] == list(range(50))


@pytest.mark.medium
async def test_a_poll_begun_before_a_cancelled_one_has_ended_ends_in_its_time(log):
    _, member = await joined(log)
    cancelled_one = asyncio.create_task(member.poll(timeout_s=20, max_records=0))
    await asyncio.sleep(0.1)
    cancelled_one.cancel()
    async with asyncio.timeout(15):
        assert list(await member.poll(timeout_s=0.2, max_records=0)) == []


async def cancelled(task):
    try:
        await task
    except asyncio.CancelledError:
        return True
    return False


@pytest.mark.parametrize("wait_s", [0.0, 0.05])
async def test_reading_without_a_group_ends_at_the_end(log, wait_s):
    transport = log.open()
    await log.topic(transport)
    await log.fill(transport, 3)
    read = await transport.read("a.b", 0, 1, max_records=10, max_bytes=MIB, wait_s=wait_s)
    assert [r.offset for r in read] == [1, 2]
    assert list(await transport.read("a.b", 0, 3, max_records=10, max_bytes=MIB, wait_s=wait_s)) == []
