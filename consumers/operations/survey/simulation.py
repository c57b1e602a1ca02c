"""Simulation: the load of a day in less, through a real worker on a real log, measured as it goes.

Owns the plan (types, rates, sizes, shares), the load, and what is sampled. The plots are in
`consumers.operations.survey.charts`.
"""

from __future__ import annotations

import asyncio
import math
import random
import time
from collections.abc import Callable, Sequence
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta

from bus.errors import Reject
from bus.payloads.class_forms import Payload
from bus.payloads.payload_types import payload
from bus.settings.schema import Settings
from consumers.app.app import App
from producers.connection import Bus
from producers.outcomes import Receipt

__all__ = ["LoadSample", "SimulatedType", "SimulationPlan", "SimulationResult", "simulate"]

_SAMPLES: Final = 120
_TICK_S: Final = 0.1
_DRAIN_S: Final = 60.0
_MOST_AT_ONCE: Final = 5_000
_SWING: Final = 0.75
Share = Annotated[float, Meta(ge=0, le=1)]


class SimulatedType(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One kind of message and what becomes of it."""

    name: Annotated[str, Meta(pattern=r"^[a-z][a-z0-9_]{0,30}$")]
    per_day: Annotated[int, Meta(ge=1, le=10**9)]
    peak_hour: Annotated[float, Meta(ge=0, lt=24)] | None = None
    """When most come: the rate follows a sine between a quarter and seven quarters of the mean. None: it is even."""
    bytes: Annotated[int, Meta(ge=1, le=500_000)] = 500
    fail_share: Share = 0.0
    """How many are rejected, and become dead letters."""
    flaky_share: Share = 0.0
    """How many fail at the first attempt, and are tried again."""
    handle_ms: Annotated[float, Meta(ge=0, le=60_000)] = 1.0
    slow_share: Share = 0.0
    slow_ms: Annotated[float, Meta(ge=0, le=60_000)] = 1_000.0


class SimulationPlan(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A load: what of a day happens in how many minutes."""

    types: Annotated[tuple[SimulatedType, ...], Meta(min_length=1, max_length=50)]
    hours: Annotated[float, Meta(gt=0, le=24)] = 24.0
    minutes: Annotated[float, Meta(gt=0, le=24 * 60)] = 60.0
    concurrency: Annotated[int, Meta(ge=1, le=10_000)] = 16
    partitions: Annotated[int, Meta(ge=1, le=1_000)] = 4


class LoadSample(msgspec.Struct, frozen=True, kw_only=True):
    """What one stretch of time held; times are seconds of the simulated day's run."""

    at_s: float
    published_per_s: float
    done_per_s: float
    waiting: int
    p50_s: float
    p99_s: float


class SimulationResult(msgspec.Struct, kw_only=True):
    """All that was measured."""

    published: int = 0
    done: int = 0
    rejected: int = 0
    retried: int = 0
    refused: int = 0
    """Publishes that the log did not take."""
    seconds: float = 0.0
    processor_s: float = 0.0
    late_s: float = 0.0
    """By how much the load ran late at most: this process could not publish faster."""
    samples: list[LoadSample] = msgspec.field(default_factory=list)

    @property
    def waiting(self) -> int:
        """Messages that were published, and neither done nor dead."""
        return self.published - self.done - self.rejected


class _Job(msgspec.Struct, frozen=True, kw_only=True):
    number: int
    sent_s: float
    wait_ms: float
    fails: bool = False
    is_flaky: bool = False
    filling: str = ""


class _Simulation:
    """One run: its app, its load, and its counts."""

    def __init__(self, plan: SimulationPlan, chance: random.Random) -> None:
        self.plan = plan
        self.result = SimulationResult()
        self.app = App("simulated@load")
        self._chance = chance
        self._tried: set[int] = set()
        self._times: list[float] = []
        self.classes = {each.name: self._class_of(each) for each in plan.types}

    def _class_of(self, kind: SimulatedType) -> type[Any]:
        made = msgspec.defstruct(f"Simulated_{kind.name}", [], bases=(_Job,), frozen=True, kw_only=True)
        cls: type[Any] = payload(f"simulated.{kind.name}", version="1.0.0")(made)

        async def handle(job: Any) -> None:
            await self._handle(job)

        handle.__annotations__ = {"job": cls, "return": None}
        self.app.on(cls)(handle)
        return cls

    async def _handle(self, job: _Job) -> None:
        if job.is_flaky and job.number not in self._tried:
            self._tried.add(job.number)
            self.result.retried += 1
            raise ConnectionError("simulated: it fails once")
        if job.wait_ms:
            await asyncio.sleep(job.wait_ms / 1000)
        if job.fails:
            self.result.rejected += 1
            raise Reject("simulated: it is refused")
        self.result.done += 1
        self._times.append(time.monotonic() - job.sent_s)

    def made(self, kind: SimulatedType, number: int) -> Payload:
        """Return the next message of *kind*."""
        draw = self._chance.random
        is_slow = draw() < kind.slow_share
        job: Payload = self.classes[kind.name](
            number=number,
            sent_s=time.monotonic(),
            wait_ms=kind.slow_ms if is_slow else kind.handle_ms,
            fails=draw() < kind.fail_share,
            is_flaky=draw() < kind.flaky_share,
            filling="x" * kind.bytes,
        )
        return job

    def sample(self, at_s: float, length_s: float, before: tuple[int, int]) -> None:
        """Note what has happened since *before*."""
        times, self._times = sorted(self._times), []
        result = self.result
        result.samples.append(
            LoadSample(
                at_s=at_s,
                published_per_s=(result.published - before[0]) / length_s,
                done_per_s=(result.done - before[1]) / length_s,
                waiting=max(0, result.waiting),
                p50_s=_quantile(times, 0.5),
                p99_s=_quantile(times, 0.99),
            )
        )


def due(kind: SimulatedType, plan: SimulationPlan, share: float) -> float:
    """Return how many messages of *kind* are published when *share* of the run has passed.

    The integral of a rate of 1 + 0.75 cos(hours from the peak): it is exact, however coarse the ticks are.
    """
    hours = plan.hours * share
    if kind.peak_hour is None:
        return kind.per_day * hours / 24
    turn = 2 * math.pi / 24
    phase = -turn * kind.peak_hour
    swing = _SWING / turn * (math.sin(turn * hours + phase) - math.sin(phase))
    return kind.per_day * (hours + swing) / 24


async def simulate(
    plan: SimulationPlan,
    settings: Settings,
    *,
    stop: asyncio.Event,
    seed: int = 1,
    told: Callable[[float, SimulationResult], object] = lambda *_: None,
) -> SimulationResult:
    """Run *plan* on the log of *settings* until it is over or *stop* is set. Raises BusError where there is no log."""
    run = _Simulation(plan, random.Random(seed))  # noqa: S311 - a load, no secret
    async with run.app.running(settings=settings) as bus:
        begun_s, processor_s = time.monotonic(), time.process_time()
        await _load(run, bus, stop, begun_s, told)
        result = run.result
        ends_s = time.monotonic() + _DRAIN_S
        while result.waiting > 0 and time.monotonic() < ends_s and not stop.is_set():
            told(1.0, result)
            await asyncio.sleep(_TICK_S)
        result.seconds, result.processor_s = time.monotonic() - begun_s, time.process_time() - processor_s
    return result


async def _load(
    run: _Simulation, bus: Bus, stop: asyncio.Event, begun_s: float, told: Callable[[float, SimulationResult], object]
) -> None:
    plan, result = run.plan, run.result
    length_s, sent = plan.minutes * 60, dict.fromkeys((each.name for each in plan.types), 0)
    sampled, before, sampled_s = 0, (0, 0), 0.0
    while not stop.is_set():
        passed_s = time.monotonic() - begun_s
        share = min(1.0, passed_s / length_s)
        batch: list[Payload] = []
        for kind in plan.types:
            wanted = min(int(due(kind, plan, share)) - sent[kind.name], _MOST_AT_ONCE)
            batch += [run.made(kind, result.published + len(batch) + number) for number in range(wanted)]
            sent[kind.name] += max(0, wanted)
        await _publish(bus, batch, result)
        result.late_s = max(result.late_s, time.monotonic() - begun_s - passed_s - _TICK_S)
        passed_s = time.monotonic() - begun_s
        if passed_s >= (sampled + 1) * length_s / _SAMPLES:
            run.sample(passed_s, passed_s - sampled_s, before)
            sampled, before, sampled_s = int(passed_s * _SAMPLES / length_s), (result.published, result.done), passed_s
        told(share, result)
        if share >= 1:
            return
        await asyncio.sleep(max(0.0, _TICK_S - (time.monotonic() - begun_s - passed_s)))


async def _publish(bus: Bus, batch: Sequence[Payload], result: SimulationResult) -> None:
    if not batch:
        return
    outcomes = [outcome async for outcome in bus.publish_many(batch)]
    failed = sum(not isinstance(outcome, Receipt) for outcome in outcomes)
    result.refused += failed
    result.published += len(batch) - failed


def _quantile(ordered: Sequence[float], share: float) -> float:
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))] if ordered else 0.0
