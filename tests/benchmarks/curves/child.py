"""The measuring process of a scale curve: one job in (as JSON, the only argument), one line of JSON out.

Owns producing and consuming for a while with sealbus as programs use it, and noting how far it is forty times a second.
Run by `curves.runner`.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from itertools import count, islice
from pathlib import Path

import msgspec

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from curves.task import Job, Sample, Told
from speed.measurement import settle_memory
from speed.payloads import Report, reports

from bus.settings.loading import load
from bus.settings.schema import Settings
from bus.telemetry.logs import configure
from consumers.worker.process import run_process
from sealbus import App, Outgoing, Receipt, connect, payload

__all__ = ["REPORTS", "TEXTS_BYTES", "types"]

REPORTS = 20_000
TEXTS_BYTES = 16_000_000
_SAMPLE_S, _IDLE_S, _TICK_S, _WAIT_S = 0.025, 2.0, 0.02, 0.001
_EACH_FIRST, _FIRST, _SMALL = 16, 8_000, 1_000
_PATIENCE_S = 120.0


def types(number: int) -> list[type[msgspec.Struct]]:
    """*number* payload types alike, each with a topic of its own."""
    made = []
    for each in range(number):
        cls = msgspec.defstruct(f"Text{each}", [("number", int), ("text", str)], frozen=True, kw_only=True)
        made.append(payload(f"bench.text{each:04d}", version="1.0.0")(cls))
    return made


def settings_of(job: Job) -> Settings:
    """sealbus as it is by default, but for what the job is about."""
    flags: dict[str, object] = {
        "bus.url": job.url,
        "bus.namespace": job.namespace,
        "topics.partitions": job.partitions,
        "topics.create": True,
        "publish.ttl_s": "6d",
        "worker.concurrency": job.concurrency,
        # Handlers can only be as many as messages are taken on.
        "worker.max_in_flight": max(1_000, 2 * job.concurrency),
    }
    return load(flags=flags, env={}, file=None).settings


def prepared(job: Job) -> Callable[[int], msgspec.Struct]:
    """Number -> payload; no two within megabytes of each other are alike, so that compression has its usual work."""
    if not job.size and job.topics == 1:
        ready = reports(job.payloads, REPORTS)
        return lambda number: ready[number % REPORTS]
    text = Path(job.payloads + ".text").read_text("ascii")
    classes, size = types(job.topics), job.size or 1_000
    room = max(1, (len(text) - size) // size)
    return lambda number: classes[number % job.topics](
        number=number, text=text[(at := number % room * size) : at + size]
    )


class _Notes:
    """How far it is, now and then; over a long time only the last of it, for the notes must not be what grows."""

    def __init__(self, job: Job) -> None:
        self._all = not job.per_second
        self.count = 0
        self.first_s = 0.0
        self.samples: list[Sample] = []

    def take(self) -> None:
        now_s = time.time()
        if self.count and not self.first_s:
            self.first_s = now_s
        sample = Sample(now_s, self.count, time.process_time())
        if self._all:
            self.samples.append(sample)
        else:
            self.samples[-1:] = [sample]


def _items(job: Job, stopped: Callable[[], bool]) -> Iterator[msgspec.Struct]:
    make = prepared(job)
    names = [f"conversation-{number:06d}" for number in range(job.keys)]
    settle_memory()
    for number in count():
        if stopped():
            return
        made = make(number)
        yield Outgoing(made, key=names[number % job.keys]) if names else made


async def _paced(items: Iterator[msgspec.Struct], per_second: float) -> AsyncIterator[msgspec.Struct]:
    begun_s = time.monotonic()
    for sent, item in enumerate(items):
        if (early_s := sent / per_second - (time.monotonic() - begun_s)) > 0:
            await asyncio.sleep(max(_TICK_S, early_s))
        yield item


async def produce(job: Job) -> Told:
    """Publish for the job's time."""
    notes = _Notes(job)

    def stopped() -> bool:
        return bool(notes.first_s) and time.time() > notes.first_s + job.seconds

    async def sample() -> None:
        while True:
            notes.take()
            await asyncio.sleep(_SAMPLE_S if not job.per_second else 1.0)

    items = _items(job, stopped)
    before = 0 if job.per_second else _EACH_FIRST * job.topics + (_FIRST if job.size <= _SMALL else 0)
    async with connect(agent="bench@svc", settings=settings_of(job)) as bus:
        # With its first 4 KB a partition gets its first entries in two files that the broker maps into memory. On some
        # file systems that takes milliseconds each, so that a thousand new partitions hold up whoever publishes for
        # longer than a publish's deadline.
        async for outcome in bus.publish_many(islice(items, before), timeout_s=_PATIENCE_S):
            if not isinstance(outcome, Receipt):
                raise outcome
        sampling = asyncio.create_task(sample())
        async for outcome in bus.publish_many(_paced(items, job.per_second) if job.per_second else items):
            if not isinstance(outcome, Receipt):
                raise outcome
            notes.count += 1
    sampling.cancel()
    notes.take()
    return Told(samples=notes.samples, before=before)


async def consume(job: Job) -> Told:
    """Handle messages for the job's time, or until all are through."""
    app = App("reader@svc", group=job.group)
    notes = _Notes(job)
    classes: Sequence[type[msgspec.Struct]] = [Report] if not job.size and job.topics == 1 else types(job.topics)

    async def counted(_: msgspec.Struct) -> None:
        notes.count += 1

    async def yielding(_: msgspec.Struct) -> None:
        await asyncio.sleep(0)
        notes.count += 1

    async def waiting(_: msgspec.Struct) -> None:
        await asyncio.sleep(_WAIT_S)
        notes.count += 1

    for cls in classes:
        app.on(cls)({"count": counted, "yield": yielding, "wait": waiting}[job.handler])

    async def watch() -> None:
        grown_s, before = time.time(), 0
        while True:
            notes.take()
            now_s = notes.samples[-1].at_s
            if notes.count != before or not notes.first_s:
                grown_s, before = now_s, notes.count
            idle = bool(notes.first_s) and not job.per_second and now_s > grown_s + _IDLE_S
            if (
                idle
                or (notes.first_s and now_s > notes.first_s + job.seconds)
                or (job.total and notes.count >= job.total)
            ):
                os.kill(os.getpid(), signal.SIGTERM)
                return
            await asyncio.sleep(_SAMPLE_S if not job.per_second else 1.0)

    settle_memory()
    watching = asyncio.create_task(watch())
    await run_process([app.declaration], settings_of(job))
    watching.cancel()
    return Told(samples=notes.samples)


def main() -> None:
    """Do the job."""
    configure("error")
    job = msgspec.json.decode(sys.argv[1], type=Job)
    time.sleep(max(0.0, job.start_at_s - time.time()))
    told = asyncio.run(produce(job) if job.verb == "produce" else consume(job))
    sys.stdout.write(msgspec.json.encode(told).decode() + "\n")
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
