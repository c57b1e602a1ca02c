"""Rebalances on Kafka: while members come and go, nothing stands still, and whoever leaves in order repeats nothing."""

from __future__ import annotations

import asyncio
import itertools
import time
import uuid
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec
import pytest

from bus.clock import SystemClock
from bus.settings.loading import load
from bus.settings.schema import Settings
from bus.transports import open_configured
from bus.transports.base import NewRecord, TopicSpec
from consumers.worker.host import make_worker
from sealbus import App, connect, payload
from sealbus.telemetry import Metrics

pytestmark = pytest.mark.timeout(150)


@payload("rebalance.item")
class Item(msgspec.Struct, frozen=True):
    number: int
    takes_s: float = 0.0


class Journal:
    """What was handled, by how many, and when."""

    def __init__(self) -> None:
        self.finished: Counter[int] = Counter()
        self.begun: Counter[int] = Counter()
        self.times_s: list[float] = []

    def app(self) -> App:
        app = App("mover@tests", group="movers")

        @app.on(Item)
        async def handle(item: Item) -> None:
            self.begun[item.number] += 1
            await asyncio.sleep(item.takes_s)
            self.finished[item.number] += 1
            if not item.takes_s:
                self.times_s.append(time.monotonic())

        return app

    def longest_pause_s(self, since_s: float, until_s: float) -> float:
        marks = [since_s, *(at for at in self.times_s if since_s <= at <= until_s), until_s]
        return max(later - earlier for earlier, later in itertools.pairwise(marks))


class Told:
    """A listener that counts how often it was told anything."""

    def __init__(self) -> None:
        self.rounds = 0

    def assigned(self, assignments) -> None:
        self.rounds += 1

    async def revoked(self, assignments) -> None:
        self.rounds += 1

    def lost(self, assignments) -> None:
        self.rounds += 1


@pytest.fixture
def settings(kafka: str) -> Settings:
    flags = {
        "bus.url": f"kafka://{kafka}",
        "bus.namespace": f"m{uuid.uuid4().hex[:10]}",
        "topics.create": True,
        "topics.partitions": 6,
    }
    return load(flags=flags, env={}, file=None).settings


@asynccontextmanager
async def working(journal: Journal, settings: Settings) -> AsyncIterator[None]:
    """One more worker of the group, in this process, that leaves in order."""
    transport = open_configured(settings, clock=SystemClock())
    worker = make_worker(
        journal.app().declaration,
        transport,
        settings,
        member=f"w-{uuid.uuid4().hex[:6]}",
        clock=SystemClock(),
        metrics=Metrics(),
    )
    stop = asyncio.Event()
    await worker.start(create_topics=True)
    running = asyncio.create_task(worker.run(stop))
    try:
        yield
    finally:
        stop.set()
        await running
        await worker.stop(20)
        await transport.close()


@asynccontextmanager
async def publishing(settings: Settings) -> AsyncIterator[list[int]]:
    """Two hundred items a second, each with a key of its own; the list tells which are accepted."""
    accepted: list[int] = []

    async def publish() -> None:
        async with connect(agent="source@tests", settings=settings) as bus:
            while True:
                first = len(accepted)
                batch = range(first, first + 20)
                await asyncio.gather(*(bus.publish(Item(number), key=f"k{number}") for number in batch))
                accepted.extend(batch)
                await asyncio.sleep(0.1)

    task = asyncio.create_task(publish())
    try:
        yield accepted
    finally:
        task.cancel()
        await asyncio.wait([task])


async def until(said, within_s: float = 60.0) -> None:
    deadline_s = time.monotonic() + within_s
    while not said():
        assert time.monotonic() < deadline_s, "it did not come to that in time"
        await asyncio.sleep(0.1)


@pytest.mark.slow
async def test_a_slow_handler_does_not_block_a_rebalance(settings: Settings) -> None:
    journal = Journal()
    async with publishing(settings) as accepted, working(journal, settings):
        await until(lambda: len(journal.finished) > 100)
        async with connect(agent="source@tests", settings=settings) as bus:
            await asyncio.gather(
                *(bus.publish(Item(-number, takes_s=15.0), key=f"long{number}") for number in range(1, 9))
            )
        await until(lambda: sum(count for number, count in journal.begun.items() if number < 0) == 8)
        since_s = time.monotonic()
        async with working(journal, settings):
            await asyncio.sleep(10)
            until_s = time.monotonic()
        assert journal.longest_pause_s(since_s, until_s) < 7.5
        await until(lambda: sum(count for number, count in journal.finished.items() if number < 0) == 8)
    count = len(accepted)
    async with working(journal, settings):
        await until(lambda: len(journal.finished) >= count + 8)
    assert {number: times for number, times in journal.finished.items() if times > 1} == {}


@pytest.mark.slow
async def test_members_that_come_and_go_all_the_time_neither_stop_nor_repeat_the_work(settings: Settings) -> None:
    journal = Journal()
    async with publishing(settings) as accepted, working(journal, settings):
        await until(lambda: len(journal.finished) > 100)
        since_s = time.monotonic()
        for _ in range(8):
            async with working(journal, settings):
                await asyncio.sleep(2)
        until_s = time.monotonic()
        assert journal.longest_pause_s(since_s, until_s) < 15
        await until(lambda: len(journal.finished) >= len(accepted) - 100)
    async with working(journal, settings):
        await until(lambda: len(journal.finished) >= len(accepted))
    assert {number: times for number, times in journal.finished.items() if times > 1} == {}


async def test_a_paused_partition_resumes_at_its_offset_after_a_rebalance(opened, topic) -> None:
    """The library forgets pauses and positions; a subscription that did so as well would hand out records twice, or
    from the beginning."""
    transport, other = opened(), opened()
    await transport.admin.create_topics([TopicSpec(name=topic, partitions=2), TopicSpec(name=topic + "x")])
    sent = [NewRecord(topic, None, b"%d" % number, partition=number % 2) for number in range(40)]
    await transport.append(sent[:20], timeout_s=10)
    told = Told()
    member = await transport.subscribe("g" + topic, [topic], told, member="one")
    taken: list[tuple[int, int]] = []

    async def take(count: int) -> None:
        deadline_s = time.monotonic() + 30
        while len(taken) < count:
            assert time.monotonic() < deadline_s, taken
            taken.extend(
                (record.partition, record.offset)
                for record in await member.poll(timeout_s=0.2, max_records=3, max_bytes=1_000_000)
            )

    await take(20)
    first = next(held for held in member.assignments() if held.partition == 0)
    member.pause([first])
    rounds = told.rounds
    guest = await other.subscribe("g" + topic, [topic + "x"], Told(), member="two")
    await until(lambda: member._life.generation > first.epoch)
    assert told.rounds == rounds, "nothing changed hands"
    await transport.append(sent[20:], timeout_s=10)
    await take(30)
    assert all(partition == 1 for partition, _ in taken[20:])
    member.resume([first])
    await take(40)
    assert sorted(taken) == [(partition, offset) for partition in (0, 1) for offset in range(20)]
    await guest.close()
    await member.close()
