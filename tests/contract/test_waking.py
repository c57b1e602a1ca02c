"""Who waits is woken, with the heartbeat too far away to help."""

import asyncio
import time

import pytest

from bus.errors import ClosedError, TopicMissingError

MIB = 1 << 20
DEAF = {"heartbeat_s": 30.0, "session_timeout_s": 120.0}


@pytest.mark.medium
async def test_a_waiting_member_is_woken_by_an_append(log):
    transport, other = log.open(**DEAF), log.open(**DEAF)
    await log.topic(transport)
    member = await log.join(transport)
    for _ in range(3):
        waiting = asyncio.create_task(member.poll(timeout_s=20))
        await asyncio.sleep(0.1)
        await log.fill(other, 1)
        appended_s = time.monotonic()
        assert len(await waiting) == 1
        assert time.monotonic() - appended_s < 10


async def test_a_waiting_reader_is_woken_by_an_append(log):
    transport, other = log.open(**DEAF), log.open(**DEAF)
    await log.topic(transport)
    waiting = asyncio.create_task(transport.read("a.b", 0, 0, max_records=10, max_bytes=MIB, wait_s=20))
    await asyncio.sleep(0.1)
    await log.fill(other, 2)
    appended_s = time.monotonic()
    assert [r.offset for r in await waiting] == [0, 1]
    assert time.monotonic() - appended_s < 10


async def test_a_waiting_member_is_woken_by_another_process(shared_log):
    transport = shared_log.open(**DEAF)
    await shared_log.topic(transport)
    member = await shared_log.join(transport)
    await shared_log.eventually(lambda: len(member.holds()) == 1, member)
    waiting = asyncio.create_task(member.poll(timeout_s=20))
    child = await shared_log.child("child_append.py", "1")
    await child.stdout.readline()
    acknowledged_s = time.monotonic()
    assert len(await waiting) == 20
    assert time.monotonic() - acknowledged_s < 10
    await child.communicate()


async def test_a_rebalance_does_not_wait_for_a_heartbeat(embedded_log):
    transport = embedded_log.open(**DEAF)
    await embedded_log.topic(transport, partitions=4)
    one = await embedded_log.join(transport, "one")
    await embedded_log.eventually(lambda: len(one.holds()) == 4, one)
    two = await embedded_log.join(embedded_log.open(**DEAF), "two")
    await embedded_log.eventually(lambda: len(one.holds()) == len(two.holds()) == 2, one, two, within_s=15)
    await one.subscription.close()
    await embedded_log.eventually(lambda: len(two.holds()) == 4, two, within_s=15)


async def test_closing_wakes_waiting_readers(log):
    transport = log.open(**DEAF)
    await log.topic(transport)
    member = await log.join(transport)
    waiting = [
        asyncio.create_task(member.poll(timeout_s=20)),
        asyncio.create_task(transport.read("a.b", 0, 0, max_records=1, max_bytes=MIB, wait_s=20)),
    ]
    await asyncio.sleep(0.1)
    await transport.close()
    for task in waiting:
        with pytest.raises(ClosedError):
            await asyncio.wait_for(task, 10)


async def test_closing_ends_who_is_about_to_wait(log):
    transport = log.open(**DEAF)
    await log.topic(transport)
    tasks = asyncio.all_tasks()
    reading = asyncio.create_task(transport.read("a.b", 0, 0, max_records=1, max_bytes=MIB, wait_s=20))
    await asyncio.sleep(0)
    await transport.close()
    with pytest.raises(ClosedError):
        await asyncio.wait_for(reading, 10)
    assert not asyncio.all_tasks() - tasks


async def test_a_missing_topic_cannot_be_read(log):
    with pytest.raises(TopicMissingError):
        await log.open().read("a.b", 0, 0, max_records=1, max_bytes=MIB)
