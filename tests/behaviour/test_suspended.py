"""A worker that was suspended for longer than its session: others have gone on with its keys, and it must not begin
behind their backs."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

from bus.clock import ManualClock
from bus.settings.loading import load
from bus.transports import open_transport
from bus.transports.base import Assignment
from consumers.worker.host import make_worker
from producers.connection import make_publisher
from sealbus import App, Outgoing, RetryLater
from sealbus.telemetry import Metrics
from tests.kit import Job


class Process:
    """A worker with a clock of its own: while that is not moved, it is suspended."""

    def __init__(self, url: str, member: str, *, failing: bool) -> None:
        self.runs: list[int] = []
        app = App("suspended@tests")

        @app.on(Job, order="key_strict")
        async def handle(job: Job) -> None:
            self.runs.append(job.number)
            if failing:
                raise RetryLater(after_s=60)

        settings = load(flags={"topics.partitions": 1, "inbox.url": "off"}, env={}, file=None).settings
        self.clock = ManualClock()
        self.transport = open_transport(url, clock=self.clock)
        self.publisher = make_publisher(self.transport, settings, "tests@tests", clock=self.clock, metrics=Metrics())
        self.worker = make_worker(
            app.declaration, self.transport, settings, member=member, clock=self.clock, metrics=Metrics()
        )
        self.lost = asyncio.Event()
        self._told_lost = self.worker.lost
        self.worker.lost = self._lost

    def _lost(self, assignments: Sequence[Assignment]) -> None:
        self._told_lost(assignments)
        self.lost.set()

    def suspend(self) -> tuple[asyncio.Event, asyncio.Event]:
        """Hear nothing, as a suspended process, until the second event is set: a moment after it goes on. The first is
        set when its heart beats again."""
        heart, beating, heard = self.transport._heart, asyncio.Event(), asyncio.Event()  # type: ignore[attr-defined]
        beat = heart._beat

        async def late() -> None:
            beating.set()
            await heard.wait()
            await beat()

        heart._beat = late
        return beating, heard

    async def work(self, seconds: float, until: int) -> None:
        """For so long by its clock, and until it has run so many."""
        self.clock.advance(seconds)
        async with asyncio.timeout(50):
            while len(self.runs) < until:
                await self.worker.cycle(0)
                if seconds:
                    # A beat that finds the file locked is made again after its pause.
                    self.clock.advance(0.01)
                await asyncio.sleep(0.002)

    async def close(self) -> None:
        await self.worker.stop(0)
        await self.publisher.close()
        await self.transport.close()


async def test_strict_order_starts_no_message_before_the_owner_of_its_key_is_decided(tmp_path: Path) -> None:
    first, second = (
        Process(f"sqlite:///{tmp_path}/log.db", name, failing=name == "first") for name in ("first", "second")
    )
    await first.worker.start(create_topics=True)
    for number in (1, 2):
        await first.publisher.publish(Outgoing(Job(number), key="same", ttl_s=86_400))
    await first.work(0, until=1)
    beating, heard = first.suspend()
    await second.worker.start(create_topics=True)
    await second.work(60, until=2)
    await second.worker.commit()
    first.clock.advance(60)
    for _ in range(50):
        await asyncio.sleep(0)
    async with asyncio.timeout(50):
        # A beat that was under way when it was suspended has set its next one after the clock was moved.
        while not beating.is_set():
            first.clock.advance(1)
            await asyncio.sleep(0.002)
        heard.set()
        # It joins again at once, so its partitions may be there again between two looks.
        while not first.lost.is_set():
            # A beat that finds the file locked is made again after its pause.
            first.clock.advance(0.1)
            await asyncio.sleep(0.002)
    assert (first.runs, second.runs) == ([1], [1, 2])
    for process in (first, second):
        await process.close()
