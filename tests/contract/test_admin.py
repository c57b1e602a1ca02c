"""Topics as data, and what retention leaves."""

import asyncio

import pytest

from bus.errors import NameRefusedError, OffsetOutOfRangeError, TopicMissingError
from bus.transports.base import NewRecord, PartitionRange, TopicSpec


async def start_of(transport):
    return (await transport.admin.ranges("a.b"))[0].start


async def until_start_moves(transport, start):
    async with asyncio.timeout(30):
        while await start_of(transport) != start:  # noqa: ASYNC110
            await asyncio.sleep(0.02)


async def test_topics_are_created_once(log):
    transport, other = log.open(), log.open()
    spec = TopicSpec(name="a.b", partitions=3, retention_ms=1000, retention_bytes=5000, compacted=True)
    assert list(await transport.admin.create_topics([spec])) == ["a.b"]
    assert list(await other.admin.create_topics([spec])) == []
    assert dict(await other.admin.topics()) == {"a.b": spec}


async def test_concurrent_creation_changes_each_topic_once(log):
    transports = [log.open() for _ in range(4)]
    specs = [TopicSpec(name=f"a.t{i}") for i in range(5)]
    changed = await asyncio.gather(*(t.admin.create_topics(specs) for t in transports))
    assert sorted(name for names in changed for name in names) == [spec.name for spec in specs]


async def test_the_partition_count_is_never_lowered(log):
    transport = log.open()
    await log.topic(transport, partitions=3)
    await log.topic(transport, partitions=1)
    assert (await transport.admin.topics())["a.b"].partitions == 3


async def planned(transport, *specs):
    return {
        (change.topic, change.setting): (change.found, change.wanted) for change in await transport.admin.plan(specs)
    }


async def test_a_plan_lists_missing_topics_and_creates_none(log):
    transport = log.open()
    plan = await planned(transport, TopicSpec(name="a.b", partitions=3, retention_ms=1000))
    assert plan["a.b", "partitions"] == (None, "3")
    assert plan["a.b", "retention.ms"] == (None, "1000")
    assert {found for found, _ in plan.values()} == {None}
    assert dict(await transport.admin.topics()) == {}


async def test_a_plan_lists_differences_and_changes_nothing(log):
    transport = log.open()
    await log.topic(transport, partitions=1, retention_ms=1000)
    wanted = TopicSpec(name="a.b", partitions=2, retention_ms=2000, retention_bytes=5000, compacted=True)
    assert await planned(transport, wanted) == {
        ("a.b", "partitions"): ("1", "2"),
        ("a.b", "cleanup.policy"): ("delete", "compact,delete"),
        ("a.b", "retention.ms"): ("1000", "2000"),
        ("a.b", "retention.bytes"): ("-1", "5000"),
    }
    assert (await transport.admin.topics())["a.b"] == TopicSpec(name="a.b", partitions=1, retention_ms=1000)


async def test_an_applied_plan_leaves_nothing_to_do(log):
    transport = log.open()
    await log.topic(transport, partitions=1, retention_ms=1000)
    specs = [TopicSpec(name="a.b", partitions=2, retention_ms=2000), TopicSpec(name="a.c", partitions=1)]
    assert list(await transport.admin.create_topics(specs)) == ["a.b", "a.c"]
    assert await planned(transport, *specs) == {}


async def test_a_plan_to_add_partitions_warns_that_keys_move(log):
    transport = log.open()
    await log.topic(transport, partitions=1)
    (change,) = await transport.admin.plan([TopicSpec(name="a.b", partitions=2)])
    assert "keys move" in change.note


async def test_a_plan_to_keep_less_warns_that_records_go(log):
    transport = log.open()
    await log.topic(transport, partitions=1, retention_ms=2000)
    (less,) = await transport.admin.plan([TopicSpec(name="a.b", partitions=1, retention_ms=1000)])
    (more,) = await transport.admin.plan([TopicSpec(name="a.b", partitions=1, retention_ms=3000)])
    assert "will be deleted" in less.note
    assert more.note == ""


async def test_more_partitions_than_wanted_are_accepted(log):
    transport = log.open()
    await log.topic(transport, partitions=3)
    assert await planned(transport, TopicSpec(name="a.b", partitions=1)) == {}


async def test_concurrent_alignment_ends_as_wanted(log):
    transports = [log.open() for _ in range(4)]
    await log.topic(transports[0], partitions=1, retention_ms=1000)
    spec = TopicSpec(name="a.b", partitions=3, retention_ms=2000)
    changed = await asyncio.gather(*(transport.admin.create_topics([spec]) for transport in transports))
    assert ["a.b"] in [list(names) for names in changed]
    assert (await transports[0].admin.topics())["a.b"] == spec


async def test_a_plan_refuses_the_names_that_creating_would_refuse(log):
    transport = log.open()
    with pytest.raises(NameRefusedError):
        await transport.admin.plan([TopicSpec(name="a b")])
    with pytest.raises(NameRefusedError):
        await transport.admin.plan([TopicSpec(name="a.b"), TopicSpec(name="a_b")])


@pytest.mark.parametrize("name", ["", ".", "..", "a b", "ä", "x" * 250])
async def test_illegal_names_are_refused_before_anything_is_created(log, name):
    transport = log.open()
    with pytest.raises(NameRefusedError):
        await transport.admin.create_topics([TopicSpec(name="good"), TopicSpec(name=name)])
    assert dict(await transport.admin.topics()) == {}


async def test_names_that_collide_are_refused(log):
    transport = log.open()
    with pytest.raises(NameRefusedError):
        await transport.admin.create_topics([TopicSpec(name="a.b"), TopicSpec(name="a_b")])
    await log.topic(transport)
    with pytest.raises(NameRefusedError):
        await log.topic(transport, "a_b")
    assert set(await transport.admin.topics()) == {"a.b"}


async def test_ranges_tell_start_and_end(log):
    transport = log.open()
    await log.topic(transport, partitions=2)
    await log.fill(transport, 3, partition=1)
    assert dict(await transport.admin.ranges("a.b")) == {0: PartitionRange(0, 0), 1: PartitionRange(0, 3)}
    with pytest.raises(TopicMissingError):
        await transport.admin.ranges("a.c")


async def test_offsets_are_found_by_the_time_of_append(log):
    transport = log.open()
    await log.topic(transport, partitions=2)
    appended = []
    for _ in range(5):
        appended += await log.fill(transport, 20, partition=1)
        await asyncio.sleep(0.01)
    places = [("a.b", 0), ("a.b", 1)]

    async def at(timestamp_ms):
        found = await transport.admin.offsets_at(places, timestamp_ms)
        assert found["a.b", 0] == 0
        return found["a.b", 1]

    assert (await at(0), await at(appended[-1].timestamp_ms + 1), await at(1 << 61)) == (0, 100, 100)
    for time_ms in {outcome.timestamp_ms for outcome in appended}:
        assert await at(time_ms) == min(out.offset for out in appended if out.timestamp_ms >= time_ms)
    with pytest.raises(TopicMissingError):
        await transport.admin.offsets_at([("a.c", 0)], 0)


async def test_offsets_are_found_by_time_where_records_are_gone(embedded_log):
    transport = embedded_log.open(retention_interval_s=0.1)
    await embedded_log.topic(transport, compacted=True)
    first = await embedded_log.append(transport, *(NewRecord("a.b", b"k", b"x", partition=0) for _ in range(50)))
    (last,) = await embedded_log.append(transport, NewRecord("a.b", b"l", b"x", partition=0))
    async with asyncio.timeout(30):
        while len(await transport.read("a.b", 0, 0, max_records=100, max_bytes=1 << 20)) > 2:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    found = await transport.admin.offsets_at([("a.b", 0)], first[0].timestamp_ms)
    assert 0 <= found["a.b", 0] <= 49
    assert (await transport.admin.offsets_at([("a.b", 0)], last.timestamp_ms + 1))["a.b", 0] == 51


async def test_committed_offsets_of_a_group_can_be_read(log):
    transport = log.open()
    await log.topic(transport, partitions=2)
    await log.fill(transport, 3)
    assert dict(await transport.admin.committed("g")) == {}
    member = await log.join(transport)
    await member.receive(3)
    (first,) = [assignment for assignment in member.subscription.assignments() if assignment.partition == 0]
    await member.subscription.commit({first: 2})
    assert dict(await transport.admin.committed("g")) == {("a.b", 0): 2, ("a.b", 1): 0}


async def test_retention_by_age_deletes_and_raises_the_start(embedded_log):
    transport = embedded_log.open(retention_interval_s=0.1)
    await embedded_log.topic(transport, retention_ms=1)
    await embedded_log.fill(transport, 2500)
    await until_start_moves(transport, 2500)
    assert [o.offset for o in await embedded_log.fill(transport, 1)] == [2500]


async def test_retention_by_size_keeps_the_newest(embedded_log):
    transport = embedded_log.open(retention_interval_s=0.1)
    await embedded_log.topic(transport, retention_bytes=1000)
    await embedded_log.append(transport, *(NewRecord("a.b", None, b"x" * 100, partition=0) for _ in range(35)))
    await until_start_moves(transport, 25)
    assert [r.offset for r in await transport.read("a.b", 0, 0, max_records=100, max_bytes=1 << 20)] == list(
        range(25, 35)
    )


async def test_a_compacted_topic_keeps_the_newest_record_of_each_key(embedded_log):
    transport = embedded_log.open(retention_interval_s=0.1)
    await embedded_log.topic(transport, compacted=True)
    await embedded_log.append(
        transport, *(NewRecord("a.b", key, b"", partition=0) for key in (b"a", b"b", b"a", b"c", b"b"))
    )
    async with asyncio.timeout(30):
        while len(left := await transport.read("a.b", 0, 0, max_records=9, max_bytes=1000)) > 3:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    assert [(r.offset, r.key) for r in left] == [(2, b"a"), (3, b"c"), (4, b"b")]


async def assert_stopped_by_deletion(log, transport, *, offset):
    """Retention takes the five records there are; whoever would go on at *offset* is told."""
    await log.topic(transport, retention_ms=1)
    await until_start_moves(transport, 5)
    again = await log.join(transport)
    with pytest.raises(OffsetOutOfRangeError, match=rf"a.b partition 0: offset {offset} .* 5 to 5"):
        await again.poll(timeout_s=5)


async def test_a_group_whose_records_were_deleted_is_stopped(embedded_log):
    transport = embedded_log.open(retention_interval_s=0.1)
    await embedded_log.topic(transport)
    await embedded_log.fill(transport, 5)
    member = await embedded_log.join(transport)
    await member.receive(5)
    await member.subscription.commit({member.subscription.assignments()[0]: 2})
    await member.subscription.close()
    await assert_stopped_by_deletion(embedded_log, transport, offset=2)


async def test_a_group_whose_first_records_were_deleted_before_it_read_any_is_stopped(embedded_log):
    transport = embedded_log.open(retention_interval_s=0.1)
    await embedded_log.topic(transport)
    member = await embedded_log.join(transport)
    await embedded_log.eventually(lambda: len(member.holds()) == 1, member)
    await member.subscription.close()
    await embedded_log.fill(transport, 5)
    await assert_stopped_by_deletion(embedded_log, transport, offset=0)


async def test_a_group_that_comes_after_records_were_deleted_begins_at_the_oldest_kept(embedded_log):
    transport = embedded_log.open(retention_interval_s=0.1)
    await embedded_log.topic(transport, retention_ms=1)
    await embedded_log.fill(transport, 5)
    await until_start_moves(transport, 5)
    await embedded_log.topic(transport)
    await embedded_log.fill(transport, 1)
    member = await embedded_log.join(transport)
    assert [record.offset for record in await member.receive(1)] == [5]
