"""What was acknowledged survives the death of the process."""

import asyncio
import random

import pytest

pytestmark = pytest.mark.medium  # real processes, killed


async def test_every_acknowledged_record_survives_a_kill(shared_log):
    transport = shared_log.open()
    await shared_log.topic(transport)
    for _ in range(3):
        child = await shared_log.child("child_append.py")
        lines = [await child.stdout.readline() for _ in range(random.randint(1, 60))]
        child.kill()
        lines += (await child.stdout.read()).splitlines(keepends=True)
        await child.wait()
        first, last, number = map(int, [line for line in lines if line.endswith(b"\n")][-1].split())
        records = await transport.read("a.b", 0, first, max_records=20, max_bytes=1 << 20)
        assert [r.offset for r in records] == list(range(first, last + 1))
        assert [r.value for r in records] == [b"%d-%d" % (number, i) for i in range(20)]


async def test_a_commit_survives_a_kill_and_the_rest_is_delivered_again(shared_log):
    transport = shared_log.open()
    await shared_log.topic(transport)
    await shared_log.fill(transport, 10)
    child = await shared_log.child("child_consume.py", "4")
    while await child.stdout.readline() != b"7\n":
        pass
    child.kill()
    await child.wait()
    member = await shared_log.join(transport)
    assert [r.offset for r in await member.receive(6)] == [4, 5, 6, 7, 8, 9]


async def test_the_partitions_of_a_killed_member_move(shared_log):
    transport = shared_log.open()
    await shared_log.topic(transport, partitions=4)
    member = await shared_log.join(transport)
    child = await shared_log.child("child_consume.py", "0")
    while not (await child.stdout.readline()).startswith(b"assigned"):
        pass
    await shared_log.eventually(lambda: len(member.holds()) == 2, member)
    child.kill()
    await child.wait()
    await shared_log.eventually(lambda: len(member.holds()) == 4, member, within_s=10)


async def test_the_partitions_of_a_killed_member_move_at_once_when_it_is_expelled(shared_log):
    transport = shared_log.open(session_timeout_s=20)
    await shared_log.topic(transport, partitions=4)
    member = await shared_log.join(transport)
    child = await shared_log.child("child_consume.py", "0", "20")
    while not (await child.stdout.readline()).startswith(b"assigned"):
        pass
    await shared_log.eventually(lambda: len(member.holds()) == 2, member)
    child.kill()
    await child.wait()
    await transport.admin.expel("g", ["somebody else"])
    await transport.admin.expel("no such group", ["child"])
    await transport.admin.expel("g", ["child"])
    await shared_log.eventually(lambda: len(member.holds()) == 4, member, within_s=10)
    await transport.admin.expel("g", ["child"])


async def test_a_closed_log_is_there_when_it_is_opened_again(shared_log):
    transport = shared_log.open()
    await shared_log.topic(transport)
    await shared_log.fill(transport, 5)
    await transport.close()
    again = shared_log.open()
    assert len(await again.read("a.b", 0, 0, max_records=10, max_bytes=1 << 20)) == 5
    assert await asyncio.wait_for(shared_log.fill(again, 1), 30)
