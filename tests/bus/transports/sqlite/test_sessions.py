"""Sessions under a clock that tests move."""

import asyncio
import contextlib
import sqlite3

import pytest

from bus.clock import ManualClock
from bus.errors import DamagedError, FencedError, LogFullError
from bus.transports import open_transport
from bus.transports.base import NewRecord, Record, TopicSpec
from bus.transports.sqlite import subscription


class Listener:
    def __init__(self):
        self.heard = []

    def assigned(self, assignments):
        self.heard.append("assigned")

    async def revoked(self, assignments):
        self.heard.append("revoked")

    def lost(self, assignments):
        self.heard.append("lost")


class LeapingClock(ManualClock):
    def leap(self, seconds):
        """As after a suspension: no timer has run yet."""
        self._elapsed_s += seconds


class Process:
    """A transport with a clock of its own: one that is not moved is a suspended process."""

    def __init__(self, url):
        self.clock = LeapingClock()
        self.transport = open_transport(url, clock=self.clock)
        self.listener = Listener()

    async def join(self, name):
        self.subscription = await self.transport.subscribe("g", ["a.b"], self.listener, member=name)

    def holds(self):
        return len(self.subscription.assignments())

    async def poll(self):
        return await self.subscription.poll(timeout_s=0, max_records=10, max_bytes=1000)


async def until(true):
    async with asyncio.timeout(30):
        while not true():  # noqa: ASYNC110 - the clock stands still
            await asyncio.sleep(0.002)


async def polled_for_ever(process):
    async with asyncio.timeout(30):
        while True:
            await process.poll()
            await asyncio.sleep(0.002)


@pytest.fixture
async def processes(tmp_path):
    pair = [Process(f"sqlite:///{tmp_path}/x.db") for _ in range(2)]
    await pair[0].transport.admin.create_topics([TopicSpec(name="a.b", partitions=2)])
    yield pair
    for process in pair:
        await process.transport.close()


async def test_a_suspended_member_is_replaced_and_finds_out(processes):
    one, two = processes
    await one.join("one")
    await until(lambda: one.holds() == 2)
    stale = list(one.subscription.assignments())
    await two.join("two")
    await until(lambda: one.holds() == two.holds() == 1)
    (kept,) = one.subscription.assignments()
    # From here on *one* stands still.
    for _ in range(7):
        two.clock.advance(1)
        await asyncio.sleep(0.02)
    await until(lambda: two.holds() == 2)
    assert list(await one.subscription.commit({kept: 0})) == [kept]
    await one.transport.append([NewRecord("a.b", None, b"", partition=p) for p in (0, 1)], timeout_s=5)
    one.clock.leap(7)
    # At once, and until it has heard: a heartbeat later it may hold them again, by right.
    assert list(await one.poll()) == []
    await until(lambda: "lost" in one.listener.heard)
    assert all(assignment not in one.subscription.assignments() for assignment in stale)


async def test_a_member_whose_session_lapsed_delivers_nothing_before_it_renews(processes):
    one, _ = processes
    await one.join("one")
    await until(lambda: one.holds() == 2)
    before = set(one.subscription.assignments())
    await one.transport.append([NewRecord("a.b", None, b"", partition=0)], timeout_s=5)
    one.clock.leap(6)
    assert list(await one.poll()) == []
    # Nobody has come meanwhile: it goes on, and what its handlers did is committed.
    found: list[Record] = []
    async with asyncio.timeout(30):
        while not found:
            found = await one.poll()
            await asyncio.sleep(0.002)
    assert one.listener.heard == ["assigned"]
    assert set(one.subscription.assignments()) == before


async def test_a_member_that_blocked_too_long_still_commits_its_work(processes):
    one, _ = processes
    await one.join("one")
    await until(lambda: one.holds() == 2)
    await one.transport.append([NewRecord("a.b", None, b"", partition=0)], timeout_s=5)
    (assignment,) = (each for each in one.subscription.assignments() if each.partition == 0)
    one.clock.leap(6)
    assert list(await one.subscription.commit({assignment: 1})) == []
    assert await one.transport.admin.committed("g") == {("a.b", 0): 1, ("a.b", 1): 0}


async def test_partitions_of_a_lapsed_member_go_to_a_new_one(processes, monkeypatch):
    one, two = processes
    await one.join("one")
    await until(lambda: one.holds() == 2)

    async def full(_):
        raise LogFullError("no space left")

    with monkeypatch.context() as disk:
        disk.setattr(one.transport._writer, "run", full)
        one.clock.advance(5.5)
        with pytest.raises(LogFullError):
            await polled_for_ever(one)
        assert one.listener.heard == ["assigned", "lost"]
        # Nobody has found out that *one* was silent: its leases still name it.
        two.clock.advance(4)
        await two.join("two")
    for _ in range(3):
        one.clock.advance(1)
        two.clock.advance(1)
        await asyncio.sleep(0.02)
    await until(lambda: one.holds() == two.holds() == 1)


@pytest.mark.parametrize("stays", [True, False])
async def test_a_drained_partition_has_no_owner_until_it_is_reassigned(processes, monkeypatch, stays):
    one, two = processes
    await one.join("one")
    await until(lambda: one.holds() == 2)

    def full(*_, **__):
        raise LogFullError("no space left")

    with monkeypatch.context() as disk:
        disk.setattr(subscription, "release", full)
        await two.join("two")
        with pytest.raises(LogFullError):
            await polled_for_ever(one)
        assert one.listener.heard == ["assigned", "revoked"]
        assert one.holds() == 1
        if not stays:
            await two.subscription.close()
    for _ in range(3):
        one.clock.advance(1)
        two.clock.advance(1)
        await asyncio.sleep(0.02)
    await until(lambda: one.holds() == (1 if stays else 2))
    assert one.listener.heard == (["assigned", "revoked"] if stays else ["assigned", "revoked", "assigned"])
    await until(lambda: two.holds() == (1 if stays else 0))


async def test_a_heartbeat_in_time_keeps_the_partitions(processes):
    one, two = processes
    await one.join("one")
    await until(lambda: one.holds() == 2)
    for _ in range(12):
        one.clock.advance(1)
        two.clock.advance(1)
        await asyncio.sleep(0.01)
        await one.poll()
    assert one.listener.heard == ["assigned"]


async def test_a_session_from_before_a_reboot_is_expired(processes):
    one, two = processes
    one.clock.advance(1000)
    await one.join("one")
    await until(lambda: one.holds() == 2)
    await two.join("two")
    await until(lambda: two.holds() == 2)


async def test_a_second_member_of_the_same_name_fences_the_first(processes):
    one, two = processes
    await one.join("same")
    await until(lambda: one.holds() == 2)
    await two.join("same")
    await until(lambda: two.holds() == 2)
    # Its next heartbeat finds out; the wake-up for that may still be on its way.
    with pytest.raises(FencedError, match="another process joined"):
        await polled_for_ever(one)


async def test_a_member_keeps_its_other_topics_when_one_loses_its_partitions(processes, tmp_path):
    one, _ = processes
    await one.transport.admin.create_topics([TopicSpec(name="c.d", partitions=1)])
    one.subscription = await one.transport.subscribe("g", ["a.b", "c.d"], one.listener, member="one")
    await until(lambda: one.holds() == 3)
    with contextlib.closing(sqlite3.connect(tmp_path / "x.db")) as other, other:
        other.execute("DELETE FROM partitions WHERE topic_id = (SELECT id FROM topics WHERE name = 'c.d')")
        other.execute("UPDATE generation SET number = number + 1")
    one.clock.advance(1)
    await until(lambda: one.holds() == 2)
    one.clock.leap(6)  # what is left is still its own
    await one.poll()
    await until(lambda: one.holds() == 2)
    assert {assignment.topic for assignment in one.subscription.assignments()} == {"a.b"}


async def test_a_lease_that_can_be_neither_written_nor_found_says_that_the_log_is_damaged(processes, tmp_path):
    """As where a damaged page lets an index and its table say two things."""
    with contextlib.closing(sqlite3.connect(tmp_path / "x.db")) as file:
        file.execute("CREATE TRIGGER lost BEFORE INSERT ON leases BEGIN SELECT RAISE(IGNORE); END")
        file.commit()
    await processes[0].join("one")
    with pytest.raises(DamagedError):
        await polled_for_ever(processes[0])
