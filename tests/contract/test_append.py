"""Appending: outcomes, order, placement, refusals."""

import asyncio
import threading

import pytest

from bus.errors import ClosedError, DeadlineError, RecordTooLargeError, TopicMissingError
from bus.transports.base import Appended, NewRecord
from bus.transports.partitioner import partition_of


async def everything(transport, topic="a.b", partition=0):
    records, offset = [], 0
    while batch := await transport.read(topic, partition, offset, max_records=1000, max_bytes=1 << 26):
        records += batch
        offset = batch[-1].offset + 1
    return records


async def test_offsets_of_a_batch_are_contiguous(log):
    transport = log.open()
    await log.topic(transport)
    assert [o.offset for o in await log.fill(transport, 70)] == list(range(70))
    assert [o.offset for o in await log.fill(transport, 3)] == [70, 71, 72]


async def test_records_of_a_partition_keep_their_order(log):
    transport = log.open()
    await log.topic(transport, partitions=3)
    await log.append(transport, *(NewRecord("a.b", b"k", b"%d" % i) for i in range(200)))
    partition = partition_of(b"k", 3)
    assert [r.value for r in await everything(transport, partition=partition)] == [b"%d" % i for i in range(200)]


async def test_concurrent_appends_get_distinct_offsets(log):
    transport = log.open()
    await log.topic(transport)
    outcomes = await asyncio.gather(*(log.fill(transport, 7) for _ in range(50)))
    assert sorted(o.offset for batch in outcomes for o in batch) == list(range(350))


async def test_the_key_chooses_the_partition_as_kafka_does(log):
    transport = log.open()
    await log.topic(transport, partitions=7)
    keys = [b"21", b"foobar", b"abc", b"\xff\x00"]
    outcomes = await log.append(transport, *(NewRecord("a.b", key, b"") for key in keys))
    assert [o.partition for o in outcomes] == [partition_of(key, 7) for key in keys]


async def test_records_without_a_key_use_every_partition(log):
    transport = log.open()
    await log.topic(transport, partitions=4)
    outcomes = [(await log.append(transport, NewRecord("a.b", None, b"")))[0] for _ in range(40)]
    assert {o.partition for o in outcomes} == {0, 1, 2, 3}


async def test_key_value_and_headers_come_back_unchanged(log):
    transport = log.open()
    await log.topic(transport)
    headers = (("a", b""), ("a", b"\x00\xff"), ("ü", b"x"))
    cases = [
        (None, None, ()),
        (b"", b"", headers),
        (b"k", None, headers),
        (None, b"v", ()),
        (b"\x00\xff", b"\xff" * 5000, headers),
    ]
    await log.append(transport, *(NewRecord("a.b", key, value, headers, 0) for key, value, headers in cases))
    assert [(r.key, r.value, r.headers) for r in await everything(transport)] == cases


async def test_the_outcome_tells_the_time_and_place_that_lie_in_the_log(log):
    transport = log.open()
    await log.topic(transport, partitions=2)
    (outcome,) = await log.append(transport, NewRecord("a.b", None, b"v", partition=1))
    (record,) = await everything(transport, partition=1)
    assert outcome == Appended(record.topic, record.partition, record.offset, record.timestamp_ms)


async def test_a_record_that_is_too_large_is_an_outcome_and_its_neighbours_are_appended(log):
    transport = log.open(max_record_bytes=1000)
    limit = transport.features.max_record_bytes
    await log.topic(transport)
    values = [b"a", b"b" * (limit + 1), b"c" * limit]
    outcomes = await transport.append([NewRecord("a.b", None, value, partition=0) for value in values], timeout_s=20)
    assert isinstance(outcomes[1], RecordTooLargeError)
    assert [r.value for r in await everything(transport)] == [values[0], values[2]]


async def test_a_missing_topic_is_an_outcome_and_is_not_created(log):
    transport = log.open()
    await log.topic(transport)
    outcomes = await transport.append(
        [NewRecord("a.b", None, b"1", partition=0), NewRecord("a.typo", None, b"2")], timeout_s=20
    )
    assert isinstance(outcomes[0], Appended)
    assert isinstance(outcomes[1], TopicMissingError)
    assert set(await transport.admin.topics()) == {"a.b"}


async def test_a_missing_partition_is_an_outcome(log):
    transport = log.open()
    await log.topic(transport, partitions=2)
    (outcome,) = await transport.append([NewRecord("a.b", None, b"1", partition=2)], timeout_s=20)
    assert isinstance(outcome, TopicMissingError)


async def test_without_time_every_outcome_is_a_deadline(log):
    transport = log.open()
    await log.topic(transport)
    outcomes = await transport.append([NewRecord("a.b", None, b"1")] * 3, timeout_s=0)
    assert [type(o) for o in outcomes] == [DeadlineError] * 3
    assert await everything(transport) == []


async def test_a_closed_transport_raises(log):
    transport = log.open()
    await transport.close()
    await transport.close()
    with pytest.raises(ClosedError):
        await transport.append([NewRecord("a.b", None, b"1")], timeout_s=1)


async def test_a_close_that_is_cancelled_goes_on(log):
    tasks, threads = asyncio.all_tasks(), set(threading.enumerate())
    transport = log.open()
    await log.topic(transport)
    await log.fill(transport, 1)
    await log.join(transport)
    closing = asyncio.create_task(transport.close())
    await asyncio.sleep(0)
    closing.cancel()
    await asyncio.wait([closing])
    assert closing.cancelled()
    await transport.close()
    assert not asyncio.all_tasks() - tasks
    assert not [thread for thread in set(threading.enumerate()) - threads if thread.name.startswith("sealbus")]


async def test_nothing_at_all_can_be_appended(log):
    assert list(await log.open().append([], timeout_s=1)) == []
