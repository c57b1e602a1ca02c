"""Members, leases and commits."""

import asyncio

import pytest

from bus.errors import ClosedError, GroupBusyError, NameRefusedError, OffsetOutOfRangeError, TopicMissingError
from bus.transports.base import NewRecord

BOTH = {("a.b", 0), ("a.b", 1), ("a.b", 2), ("a.b", 3)}


async def test_the_only_member_gets_every_partition(log):
    transport = log.open()
    await log.topic(transport, partitions=4)
    member = await log.join(transport)
    await log.eventually(lambda: member.holds() == BOTH, member)
    assert {(a.topic, a.partition) for a in member.told("assigned")} == BOTH


async def test_two_members_share_and_take_over_when_one_leaves(log):
    transport = log.open()
    await log.topic(transport, partitions=4)
    one = await log.join(transport, "one")
    await log.eventually(lambda: one.holds() == BOTH, one)
    two = await log.join(log.open(), "two")
    await log.eventually(lambda: len(one.holds()) == len(two.holds()) == 2, one, two)
    assert one.holds() | two.holds() == BOTH
    await one.subscription.close()
    await log.eventually(lambda: two.holds() == BOTH, two)


async def test_a_partition_changes_hands_only_after_it_was_drained_and_with_a_new_epoch(log):
    transport = log.open()
    await log.topic(transport, partitions=2)
    await log.fill(transport, 3, partition=0)
    await log.fill(transport, 3, partition=1)
    one = await log.join(transport, "one")
    await one.receive(6)
    one.drained.clear()
    two = await log.join(log.open(), "two")
    await log.eventually(lambda: len(one.told("revoked")) >= 1, one, two)
    leaving = one.told("revoked")
    await two.receive_nothing()
    assert list(await one.subscription.commit(dict.fromkeys(leaving, 2))) == []
    one.drained.set()
    (record,) = await two.receive(1)
    (taken,) = two.told("assigned")
    (left,) = [assignment for assignment in leaving if assignment.partition == taken.partition]
    assert (record.partition, record.offset) == (taken.partition, 2)
    assert taken.epoch > left.epoch


async def test_a_late_commit_is_refused(log):
    transport = log.open()
    await log.topic(transport, partitions=2)
    one = await log.join(transport, "one")
    await log.eventually(lambda: len(one.holds()) == 2, one)
    two = await log.join(log.open(), "two")
    await log.eventually(lambda: len(two.holds()) == 1, one, two)
    gone = one.told("revoked")
    (kept,) = one.subscription.assignments()
    assert list(await one.subscription.commit({**dict.fromkeys(gone, 1), kept: 0})) == gone
    (info,) = await transport.admin.groups()
    assert all(info.committed.get((assignment.topic, assignment.partition), 0) == 0 for assignment in gone)


async def test_a_commit_never_goes_back(log):
    transport = log.open()
    member = await log.reader(transport, 5)
    (held,) = member.subscription.assignments()
    for offset in (4, 2):
        assert list(await member.subscription.commit({held: offset})) == []
    (info,) = await transport.admin.groups()
    assert info.committed == {("a.b", 0): 4}
    assert list(info.members.values()) == [(("a.b", 0),)]


async def test_reading_goes_on_at_the_commit(log):
    transport = log.open()
    member = await log.reader(transport, 5)
    await member.subscription.commit({member.subscription.assignments()[0]: 3})
    await member.subscription.close()
    again = await log.join(log.open())
    assert [r.offset for r in await again.receive(2)] == [3, 4]


async def test_a_group_stands_where_it_began_before_it_has_settled_anything(log):
    """Else what retention deletes before that would be missed by nobody."""
    transport = log.open()
    await log.topic(transport, partitions=2)
    await log.fill(transport, 3)
    member = await log.join(transport)
    await member.receive(3)
    await member.subscription.close()
    assert await transport.admin.committed("g") == {("a.b", 0): 0, ("a.b", 1): 0}


async def test_groups_are_independent(log):
    transport = log.open()
    await log.topic(transport)
    await log.fill(transport, 3)
    one, two = await log.join(transport, group="one"), await log.join(log.open(), group="two")
    assert len(await one.receive(3)) == len(await two.receive(3)) == 3
    await one.subscription.commit({one.subscription.assignments()[0]: 3})
    assert {g.name: g.committed for g in await transport.admin.groups()} == {
        "one": {("a.b", 0): 3},
        "two": {("a.b", 0): 0},
    }


async def test_added_partitions_are_assigned_and_written_to(log):
    transport, other = log.open(), log.open()
    await log.topic(transport)
    member = await log.join(transport)
    await log.eventually(lambda: len(member.holds()) == 1, member)
    await log.topic(other, partitions=4)
    await log.eventually(lambda: member.holds() == BOTH, member)
    await log.fill(transport, 1, partition=3)
    assert [r.partition for r in await member.receive(1)] == [3]


async def test_a_member_of_two_topics_reads_both(log):
    transport = log.open()
    for name in ("a.b", "a.c"):
        await log.topic(transport, name)
        await log.fill(transport, 2, name)
    member = await log.join(transport, topics=["a.b", "a.c"])
    assert {r.topic for r in await member.receive(4)} == {"a.b", "a.c"}


async def test_a_missing_topic_cannot_be_subscribed_to(log):
    with pytest.raises(TopicMissingError):
        await log.join(log.open())


async def test_an_illegal_group_name_is_refused(log):
    transport = log.open()
    await log.topic(transport)
    with pytest.raises(NameRefusedError):
        await log.join(transport, group="a group")


async def test_a_closed_subscription_raises(log):
    transport = log.open()
    await log.topic(transport)
    member = await log.join(transport)
    await member.subscription.close()
    await member.subscription.close()
    with pytest.raises(ClosedError):
        await member.poll()


async def test_an_error_in_the_listener_surfaces_in_poll(log):
    transport = log.open()
    await log.topic(transport, partitions=2)
    one = await log.join(transport, "one")
    await log.eventually(lambda: len(one.holds()) == 2, one)

    async def revoked(assignments):
        raise RuntimeError("drain failed")

    one.revoked = revoked
    two = await log.join(log.open(), "two")
    with pytest.raises(RuntimeError, match="drain failed"):
        await log.eventually(lambda: False, one)
    await log.eventually(lambda: len(two.holds()) == 1, two)


async def test_an_offset_beyond_the_end_stops_the_reader(log):
    transport = log.open()
    await log.topic(transport)
    member = await log.join(transport)
    await log.eventually(lambda: len(member.holds()) == 1, member)
    member.subscription.seek(member.subscription.assignments()[0], 7)
    with pytest.raises(OffsetOutOfRangeError, match=r"a.b partition 0: offset 7"):
        await member.poll(timeout_s=1)


async def test_a_group_without_members_goes_on_where_it_was_moved_to(log):
    transport = log.open()
    await log.topic(transport, partitions=2)
    for partition in (0, 1):
        await log.fill(transport, 5, partition=partition)
    member = await log.join(transport)
    await member.receive(10)
    await member.subscription.commit(dict.fromkeys(member.subscription.assignments(), 2))
    await member.subscription.close()
    await transport.admin.move("g", {("a.b", 0): 4})
    assert await transport.admin.committed("g") == {("a.b", 0): 4, ("a.b", 1): 2}
    again = await log.join(transport)
    assert {(record.partition, record.offset) for record in await again.receive(4)} == {(0, 4), (1, 2), (1, 3), (1, 4)}


async def test_a_group_with_members_is_not_moved(log):
    transport = log.open()
    member = await log.reader(transport, 5)
    await member.subscription.commit(dict.fromkeys(member.subscription.assignments(), 2))
    with pytest.raises(GroupBusyError, match="stop its workers"):
        await transport.admin.move("g", {("a.b", 0): 4})
    assert await transport.admin.committed("g") == {("a.b", 0): 2}


async def test_nothing_is_skipped_while_members_come_and_go(log):
    transport = log.open()
    await log.topic(transport, partitions=5)
    seen: set[tuple[int, int]] = set()
    stop = asyncio.Event()

    async def work(name: str, polls: int) -> None:
        member = await log.join(log.open(), name)
        while polls > 0 and not stop.is_set():
            polls -= 1
            offsets = {}
            for record in await member.poll(max_records=20):
                seen.add((record.partition, record.offset))
                (holder,) = [a for a in member.subscription.assignments() if a.partition == record.partition]
                offsets[holder] = record.offset + 1
            await member.subscription.commit(offsets)
        await member.subscription.close()

    async def turns(name: str) -> None:
        for number in range(3):
            await work(f"{name}{number}", 10)
        await work(f"{name}-last", 10_000)

    workers = [asyncio.create_task(turns(name)) for name in "xyz"]
    appended = [await log.append(transport, *(NewRecord("a.b", None, b"") for _ in range(30))) for _ in range(40)]
    wanted = {(o.partition, o.offset) for batch in appended for o in batch}
    async with asyncio.timeout(30):
        # The workers are watched too.
        while seen != wanted and not any(worker.done() for worker in workers):  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    stop.set()
    await asyncio.gather(*workers)
    assert seen == wanted
