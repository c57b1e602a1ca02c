"""The goals, and whether they are met. Pure.

Owns the list of what is compared with what, and the verdicts. Every ratio is taken within one round first.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Literal

import msgspec
from speed.ratios import Spread, per_round, spread
from speed.results import Measured

__all__ = ["GOALS", "Goal", "Verdict", "judge"]

Series = Mapping[int, float]
Value = Literal["rate", "p50_ms", "p99_ms", "drift", "peak"]


class Goal(msgspec.Struct, frozen=True, kw_only=True):
    """*ours* compared with the best of *theirs*; alone where there are none."""

    text: str
    ours: str
    theirs: tuple[str, ...] = ()
    value: Value = "rate"
    must: float | None
    """None where it is told beside the goals, and is none."""
    stretch: float | Literal["noise"] | None
    unit: Literal["x", "ms", "MB"] = "x"
    at_most: bool = False
    """Whether less is better."""


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a goal; *found* is None where it was not measured."""

    goal: Goal
    found: Spread | None
    must: bool | None
    stretch: bool | None


def _worker(text: str, theirs: str, must: float | None, stretch: float | None) -> Goal:
    return Goal(
        text=f"verified, typed, per-key-ordered consume / {text}",
        ours="consume/sealbus-worker",
        theirs=(theirs,),
        must=must,
        stretch=stretch,
    )


def _many(text: str, theirs: str, must: float | None, stretch: float | None, family: str = "publish") -> Goal:
    return Goal(
        text=f"sealed publish_many / {text}",
        ours=f"{family}/sealbus-many",
        theirs=(f"{family}/{theirs}",),
        must=must,
        stretch=stretch,
    )


_LIBRARIES = {
    "publish": ("persist-queue", "litequeue", "huey"),
    "consume": ("persist-queue", "persist-queue-batches", "litequeue", "huey"),
}


def _queues(verb: str, ours: str) -> Goal:
    family = f"embedded-{verb}"
    theirs = tuple(f"{family}/{name}" for name in _LIBRARIES[verb])
    text = f"embedded log, full sync, {'publish_many' if verb == 'publish' else 'consume'} / best local queue library"
    return Goal(text=text, ours=f"{family}/{ours}", theirs=theirs, must=3, stretch=10)


def _one_by_one(verb: str, ours: str, libraries: tuple[str, ...], which: str) -> Goal:
    family = f"embedded-{verb}"
    theirs = tuple(f"{family}/{name}" for name in libraries)
    text = f"embedded log, {'publish_many' if verb == 'publish' else 'consume'} / best library {which}"
    return Goal(text=text, ours=f"{family}/{ours}", theirs=theirs, must=None, stretch=None)


def _latency(name: Literal["p50_ms", "p99_ms"], must: float) -> Goal:
    return Goal(
        text=f"single awaited publish over raw, {name.removesuffix('_ms')}",
        ours="latency/sealbus-latency",
        theirs=("latency/aiokafka-latency",),
        value=name,
        must=must,
        stretch="noise",
        unit="ms",
        at_most=True,
    )


GOALS = (
    _many("raw keyed aiokafka send()", "aiokafka-send", 2.0, 3.0),
    _many("raw keyed aiokafka send(), uncompressed", "aiokafka-send", 2.0, 3.0, "publish-plain"),
    _many("confluent-kafka produce()", "confluent-produce", 1.0, 1.5),
    _many("confluent-kafka produce(), uncompressed", "confluent-produce", 1.0, 1.5, "publish-plain"),
    _many("FastStream publish_batch", "faststream-batch", 1.6, 2.5),
    _many("FastStream publish_batch, 12 at a time", "faststream-batches", None, None),
    _many("FastStream publish, one by one", "faststream-one", 25, 40),
    Goal(
        text="1,000 concurrent single publish / raw gather(send_and_wait)",
        ours="single/sealbus-single",
        theirs=("single/aiokafka-single",),
        must=1.0,
        stretch=1.5,
    ),
    _worker("raw getmany bytes", "consume/aiokafka-getmany", 0.30, 0.65),
    _worker("FastStream per message", "consume/faststream-message", 3.5, 6),
    _worker("FastStream batch", "consume/faststream-batch", 2, 3.5),
    _worker("FastStream per message, decoder by hand", "consume/faststream-message-tuned", None, None),
    _worker("FastStream batch, decoder by hand", "consume/faststream-batch-tuned", None, None),
    _worker("raw async for", "consume/aiokafka-for", None, None),
    Goal(
        text="consume with all verification / with none",
        ours="consume/sealbus-worker",
        theirs=("consume/sealbus-unverified",),
        must=0.65,
        stretch=0.90,
    ),
    _latency("p50_ms", 0.2),
    _latency("p99_ms", 1.0),
    Goal(
        text="resident memory: drift",
        ours="memory/processes",
        value="drift",
        must=2,
        stretch=1,
        unit="MB",
        at_most=True,
    ),
    Goal(
        text="resident memory: peak of a worker",
        ours="memory/processes",
        value="peak",
        must=64,
        stretch=50,
        unit="MB",
        at_most=True,
    ),
    Goal(
        text="resident memory: peak of a worker on Kafka",
        ours="consume/sealbus-worker",
        value="peak",
        must=None,
        stretch=None,
        unit="MB",
        at_most=True,
    ),
    Goal(
        text="slowdown of publish_many from 1 to 256 partitions",
        ours="partitions/sealbus-many-1",
        theirs=("partitions/sealbus-many-256",),
        must=2.5,
        stretch=1.5,
        at_most=True,
    ),
    _queues("publish", "sealbus-many"),
    _queues("consume", "sealbus-worker"),
    _one_by_one("publish", "sealbus-many", ("persist-queue", "huey"), "that commits each put"),
    _one_by_one("consume", "sealbus-worker", ("persist-queue", "litequeue", "huey"), "that settles each message"),
    Goal(
        text="inbox on (SQLite) / off, with idempotency keys",
        ours="inbox/inbox-on",
        theirs=("inbox/inbox-off",),
        must=0.5,
        stretch=0.7,
    ),
)


def judge(measured: Sequence[Measured]) -> list[Verdict]:
    """A verdict for every goal: by the median over rounds."""
    return [_judge(goal, measured) for goal in GOALS]


def _judge(goal: Goal, measured: Sequence[Measured]) -> Verdict:
    ours = _series(measured, goal.ours, goal.value)
    if not goal.theirs:
        return _verdict(goal, spread(list(ours.values())), None)
    rivals = [_series(measured, name, goal.value) for name in goal.theirs]
    # The best of each round, whoever that is; a round in which one of them failed says nothing.
    numbers = set.intersection(*(set(series) for series in rivals))
    theirs = {number: max(series[number] for series in rivals) for number in numbers}
    combine: Callable[[float, float], float] = operator.truediv if goal.unit == "x" else operator.sub
    noise = max(theirs.values()) - min(theirs.values()) if len(theirs) > 1 else None
    return _verdict(goal, spread(per_round(ours, theirs, combine)), noise)


def _verdict(goal: Goal, found: Spread | None, noise: float | None) -> Verdict:
    if found is None:
        return Verdict(goal=goal, found=None, must=None, stretch=None)
    compare = operator.le if goal.at_most else operator.ge
    # Within noise: no more above the raw client than that one is above itself from round to round.
    stretch = noise if goal.stretch == "noise" else goal.stretch
    return Verdict(
        goal=goal,
        found=found,
        must=None if goal.must is None else compare(found.median, goal.must),
        stretch=None if stretch is None else compare(found.median, stretch),
    )


def _series(measured: Sequence[Measured], variant: str, value: Value) -> dict[int, float]:
    series = {}
    for each in measured:
        if each.variant == variant and (number := _value(each, value)) is not None:
            series[each.round] = number
    return series


def _value(each: Measured, value: Value) -> float | None:
    answer = each.answer
    if value == "rate":
        return answer.rate
    if value == "peak":
        return answer.rss_peak_mb
    if value == "drift":
        return max(answer.rss_drift_mb.values(), default=None)
    return answer.p50_ms if value == "p50_ms" else answer.p99_ms
