"""How late retries come, never early, and what a failing key costs the others: `python tests/benchmarks/lateness.py
[--bus URL]`.

Owns a worker with a known capacity (handlers that only wait), loaded to 70 %, of which one message in ten fails once
and returns through a tier. Prints early deliveries, lateness over the tier's delay, and the latency of untouched keys
before and while one key fails without end.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import tempfile
import time
import uuid
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent.parent))

import msgspec

from bus.clock import SystemClock
from bus.settings.loading import load
from bus.telemetry.metrics import Metrics
from bus.transports import open_configured
from consumers.worker.host import make_worker
from sealbus import App, Context, Retry, RetryLater, connect, payload

CONCURRENCY, HANDLER_S, LOAD = 16, 0.02, 0.7
TIER_S = 5.0


@payload("lateness.job")
class Job(msgspec.Struct, frozen=True):
    sent_s: float
    how: str


class Book:
    """What was measured."""

    def __init__(self) -> None:
        self.failed_s: dict[str, float] = {}
        self.lateness_s: list[float] = []
        self.latency_s: list[float] = []
        self.done = 0


def make_app(book: Book) -> App:
    app = App("lateness@bench")

    @app.on(Job, retry=Retry(attempts=100, base_s=TIER_S, cap_s=TIER_S, backoff="constant"))
    async def handle(job: Job, context: Context) -> None:
        started_s = time.time()
        name = context.message.message_id
        if name in book.failed_s and job.how == "once":
            book.lateness_s.append(started_s - book.failed_s[name] - TIER_S)
        await asyncio.sleep(HANDLER_S)
        if job.how == "always" or (job.how == "once" and name not in book.failed_s):
            book.failed_s[name] = time.time()
            raise RetryLater(after_s=TIER_S if job.how == "once" else 0.5)
        if job.how == "well":
            book.latency_s.append(started_s - job.sent_s)
        book.done += 1

    return app


async def publish(bus, for_s: float, *, failing: bool, retried: bool) -> int:
    """At the given share of what the worker can do."""
    rate = LOAD * CONCURRENCY / HANDLER_S
    started_s, count = time.monotonic(), 0
    while (elapsed_s := time.monotonic() - started_s) < for_s:
        due = int(elapsed_s * rate)
        batch = []
        while count < due:
            how = "once" if retried and count % 10 == 0 else "well"
            batch.append(bus.publish(Job(time.time(), how), key=f"k{count % 997}"))
            count += 1
        if failing and int(elapsed_s * 10) != int((elapsed_s - 0.01) * 10):
            batch.append(bus.publish(Job(time.time(), "always"), key="failing", ttl_s=60))
        if batch:
            await asyncio.gather(*batch)
        await asyncio.sleep(0.005)
    return count


async def measure(url: str, for_s: float) -> None:
    flags = {
        "bus.url": url,
        "bus.namespace": f"l{uuid.uuid4().hex[:8]}",
        "topics.create": True,
        "worker.concurrency": CONCURRENCY,
    }
    settings = load(flags=flags, env={}, file=None).settings
    book, clock, stop = Book(), SystemClock(), asyncio.Event()
    transport = open_configured(settings, clock=clock)
    worker = make_worker(
        make_app(book).declaration, transport, settings, member="bench", clock=clock, metrics=Metrics()
    )
    await worker.start(create_topics=True)
    running = asyncio.create_task(worker.run(stop))
    async with connect(agent="source@bench", settings=settings) as bus:
        await publish(bus, 2, failing=False, retried=False)
        book.latency_s.clear()
        await publish(bus, for_s, failing=False, retried=True)
        await asyncio.sleep(TIER_S + 5)
        latenesses = sorted(book.lateness_s)
        calm, troubled = [], []
        # Side by side, in turns: this machine is noisy.
        for _ in range(3):
            book.latency_s.clear()
            await publish(bus, for_s / 3, failing=False, retried=False)
            calm += book.latency_s
            book.latency_s.clear()
            await publish(bus, for_s / 3, failing=True, retried=False)
            troubled += book.latency_s
    stop.set()
    await running
    await worker.stop(5)
    await transport.close()
    print(f"log: {url.partition('://')[0]}; {CONCURRENCY} handlers of {HANDLER_S * 1000:.0f} ms at {LOAD:.0%} load")
    print(f"retried through the {TIER_S:g} s tier: {len(latenesses)}; early: {sum(late < 0 for late in latenesses)}")
    print(
        f"lateness: p50 {_at(latenesses, 0.5):.3f} s, p99 {_at(latenesses, 0.99):.3f} s, worst {latenesses[-1]:.3f} s"
    )
    for name, values in (("calm", sorted(calm)), ("one key failing", sorted(troubled))):
        print(
            f"latency of the other keys, {name}: p50 {_at(values, 0.5) * 1000:.1f} ms, p99 "
            f"{_at(values, 0.99) * 1000:.1f} ms, n={len(values)}"
        )
    change = statistics.median(troubled) / statistics.median(calm) - 1
    print(f"change of the median: {change:+.1%}")


def _at(values: list[float], share: float) -> float:
    return values[min(len(values) - 1, int(share * len(values)))]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--bus", help="kafka://host:port; default: a new embedded log")
    parser.add_argument("--seconds", type=float, default=15.0, help="how long each part lasts")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(measure(options.bus or f"sqlite:///{folder}/log.db", options.seconds))


if __name__ == "__main__":
    main()
