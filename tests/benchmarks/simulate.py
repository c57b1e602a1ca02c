"""The load of a day in less, through a real worker: `python tests/benchmarks/simulate.py FILE.toml [--minutes 2]`.

Owns the load, by messages a day, the hour in which most come, size, and shares that are rejected, fail once or are
slow. Prints what was handled, what waited, how long it took from publish to done, and processor time; exit code 1 where
the worker did not keep up. Publisher and worker are one process on this machine. FILE.toml:

    hours = 24            # of a day,
    minutes = 60          # in so long
    concurrency = 16
    [[types]]
    name = "order"
    per_day = 200_000
    peak_hour = 14        # the rate swings between 25 % and 175 % of the mean
    bytes = 800
    reject_share = 0.01   # become dead letters
    flaky_share = 0.02    # fail once, and are tried again
    handle_ms = 5
    slow_share = 0.01
    slow_ms = 2000
"""

from __future__ import annotations

import argparse
import asyncio
import math
import random
import sys
import tempfile
import time
import tomllib
import uuid
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent.parent))

import msgspec

from bus.settings.loading import load
from bus.telemetry import logs
from sealbus import App, Receipt, Reject, payload

TICK_S = 0.1
DRAIN_S = 60.0


class Kind(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One kind of message and what becomes of it."""

    name: str
    per_day: int
    peak_hour: float | None = None
    bytes: int = 500
    reject_share: float = 0.0
    flaky_share: float = 0.0
    handle_ms: float = 1.0
    slow_share: float = 0.0
    slow_ms: float = 1_000.0


class Plan(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What of a day happens in how many minutes."""

    types: tuple[Kind, ...]
    hours: float = 24.0
    minutes: float = 60.0
    concurrency: int = 16
    partitions: int = 4


class Job(msgspec.Struct, frozen=True, kw_only=True):
    number: int
    sent_s: float
    wait_ms: float
    is_rejected: bool
    is_flaky: bool
    filling: str


class Load:
    """The app of a plan, and what is counted."""

    def __init__(self, plan: Plan, seed: int) -> None:
        self.plan = plan
        self.app = App("simulated@load")
        self.classes = {kind.name: self._class_of(kind) for kind in plan.types}
        self.published = self.rejected = self.refused = self.most_waiting = 0
        self.times_s: list[float] = []
        self.tried: set[int] = set()
        self._chance = random.Random(seed)

    @property
    def waiting(self) -> int:
        return self.published - len(self.times_s) - self.rejected

    def _class_of(self, kind: Kind) -> type[Any]:
        made = msgspec.defstruct(f"Simulated_{kind.name}", [], bases=(Job,), frozen=True, kw_only=True)
        cls: type[Any] = payload(f"simulated.{kind.name}", version="1.0.0")(made)

        async def handle(job: Any) -> None:
            if job.is_flaky and job.number not in self.tried:
                self.tried.add(job.number)
                raise ConnectionError("simulated: it fails once")
            await asyncio.sleep(job.wait_ms / 1000)
            if job.is_rejected:
                self.rejected += 1
                raise Reject("simulated: it is refused")
            self.times_s.append(time.monotonic() - job.sent_s)

        handle.__annotations__["job"] = cls
        self.app.on(cls)(handle)
        return cls

    def made(self, kind: Kind, number: int) -> Any:
        draw = self._chance.random
        return self.classes[kind.name](
            number=number,
            sent_s=time.monotonic(),
            wait_ms=kind.slow_ms if draw() < kind.slow_share else kind.handle_ms,
            is_rejected=draw() < kind.reject_share,
            is_flaky=draw() < kind.flaky_share,
            filling="x" * kind.bytes,
        )

    async def run(self, bus: Any) -> None:
        """Publish what is due at each tick, and wait until all is handled, for a minute at most."""
        began_s, sent = time.monotonic(), dict.fromkeys(self.classes, 0)
        share = 0.0
        while share < 1:
            share = min(1.0, (time.monotonic() - began_s) / (self.plan.minutes * 60))
            batch: list[Any] = []
            for kind in self.plan.types:
                wanted = int(due(kind, self.plan, share)) - sent[kind.name]
                batch += [self.made(kind, self.published + len(batch) + each) for each in range(wanted)]
                sent[kind.name] += max(0, wanted)
            outcomes = [isinstance(outcome, Receipt) async for outcome in bus.publish_many(batch)]
            self.published += sum(outcomes)
            self.refused += len(outcomes) - sum(outcomes)
            self.most_waiting = max(self.most_waiting, self.waiting)
            await asyncio.sleep(TICK_S)
        ends_s = time.monotonic() + DRAIN_S
        while self.waiting > 0 and time.monotonic() < ends_s:  # noqa: ASYNC110 - it is looked at, nobody tells
            await asyncio.sleep(TICK_S)


def due(kind: Kind, plan: Plan, share: float) -> float:
    """How many of *kind* are published when *share* of the run has passed: the integral of 1 + 0.75 cos(from peak)."""
    hours = plan.hours * share
    if kind.peak_hour is None:
        return kind.per_day * hours / 24
    turn = 2 * math.pi / 24
    swing = 0.75 / turn * (math.sin(turn * (hours - kind.peak_hour)) + math.sin(turn * kind.peak_hour))
    return kind.per_day * (hours + swing) / 24


async def simulate(plan: Plan, url: str, seed: int) -> tuple[Load, float, float]:
    """Run *plan*; return the load, and how many seconds and seconds of processor time it took."""
    flags = {
        "bus.url": url,
        "bus.namespace": f"s{uuid.uuid4().hex[:8]}",
        "topics.create": True,
        "topics.partitions": plan.partitions,
        "worker.concurrency": plan.concurrency,
        "worker.state_dir": "off",
    }
    logs.configure("error", "text")  # failures are part of the load
    running = Load(plan, seed)
    async with running.app.running(settings=load(flags=flags, env={}, file=None).settings) as bus:
        began_s, used_s = time.monotonic(), time.process_time()
        await running.run(bus)
        return running, time.monotonic() - began_s, time.process_time() - used_s


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("file", type=Path, metavar="FILE.toml")
    options.add_argument("--bus", help="default: a new embedded log")
    options.add_argument("--minutes", type=float, help="take so long, whatever the file says")
    options.add_argument("--seed", type=int, default=1, help="which messages fail and are slow")
    given = options.parse_args()
    plan = msgspec.convert(tomllib.loads(given.file.read_text("utf-8")), Plan)
    plan = msgspec.structs.replace(plan, minutes=given.minutes or plan.minutes)
    with tempfile.TemporaryDirectory() as folder:
        run, took_s, used_s = asyncio.run(simulate(plan, given.bus or f"sqlite:///{folder}/log.db", given.seed))
    late_s = sorted(run.times_s) or [0.0]
    p50_s, p99_s = (late_s[int((len(late_s) - 1) * share)] for share in (0.5, 0.99))
    pace = plan.hours / (plan.minutes / 60)
    print(
        f"{plan.hours:g} hours in {took_s:,.0f} s: {run.published:,} published, {len(run.times_s):,} done, "
        f"{run.rejected:,} dead, {len(run.tried):,} retried, {run.refused:,} not published"
    )
    print(f"most that waited: {run.most_waiting:,}; from publish to done: p50 {p50_s:.3f} s, p99 {p99_s:.3f} s")
    print(f"processor: {used_s / took_s:.2f} cores in the run; for the day's own pace {used_s / took_s / pace:.2g}")
    if run.waiting > 0 or run.refused:
        sys.exit(f"the worker or the log did not keep up: {run.waiting:,} messages were left")


if __name__ == "__main__":
    main()
