"""What a measuring process of a scale curve is told, what it answers, and what several answers come to. Pure.

Owns the documents between `curves.runner` and `curves.child`, and the window in which a rate is taken: after every
process has begun and a tenth of all messages is through, until nine tenths are.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import Literal

import msgspec

__all__ = ["Job", "Sample", "Told", "Window", "window"]

_FIRST, _LAST = 0.1, 0.9


class Job(msgspec.Struct, kw_only=True):
    """One process: a producer or a worker."""

    verb: Literal["produce", "consume"]
    url: str
    namespace: str
    seconds: float
    """How long after the first message it goes on."""
    payloads: str
    group: str = ""
    partitions: int = 12
    topics: int = 1
    keys: int = 0
    """0: each message is a conversation of its own."""
    size: int = 0
    """Bytes of text in a payload; 0: the reports that `make bench` sends."""
    handler: Literal["count", "yield", "wait"] = "count"
    concurrency: int = 64
    total: int = 0
    """A worker ends after so many; 0: when nothing comes any more."""
    per_second: float = 0.0
    """A producer's pace; 0: as fast as it can."""
    start_at_s: float = 0.0
    """Wall time before which nothing is opened, so that several begin together."""


class Sample(msgspec.Struct, frozen=True, array_like=True):
    """At one moment: wall time, messages so far, processor time so far."""

    at_s: float
    count: int
    cpu_s: float


class Told(msgspec.Struct, kw_only=True):
    """What a process answers."""

    samples: list[Sample]
    before: int = 0
    """Messages that a producer sent first and did not count, so that every partition had been written to."""

    @property
    def written(self) -> int:
        """All messages of a producer."""
        return self.before + self.samples[-1].count


class Window(msgspec.Struct, frozen=True, kw_only=True):
    """What several processes did together."""

    rate: float
    cpu_us: float
    seconds: float
    from_s: float
    to_s: float
    messages: int
    """All of them, also those outside the window."""
    at_work: int
    """How many processes got anything to do."""


def window(told: Sequence[Told]) -> Window:
    """The rate of all together. Raises ValueError where there was too little to measure."""
    working = [each.samples for each in told if each.samples and each.samples[-1].count]
    if not working:
        raise ValueError("no message came through")
    total = sum(samples[-1].count for samples in working)
    times = sorted(sample.at_s for samples in working for sample in samples)
    begun_s = max(next(sample.at_s for sample in samples if sample.count) for samples in working)

    def first_with(share: float) -> float:
        return times[
            bisect_left(times, share * total, key=lambda at_s: sum(_at(samples, at_s)[0] for samples in working))
        ]

    from_s, to_s = max(begun_s, first_with(_FIRST)), first_with(_LAST)
    if to_s <= from_s:
        raise ValueError(f"{total} messages were too few to measure: give it more time")
    ends = [(_at(samples, from_s), _at(samples, to_s)) for samples in working]
    counts = [after[0] - before[0] for before, after in ends]
    cpus = [after[1] - before[1] for before, after in ends]
    if not sum(counts):
        raise ValueError(f"of {total} messages none came while all processes were at work: give it more time")
    return Window(
        rate=sum(counts) / (to_s - from_s),
        cpu_us=sum(cpus) / max(1.0, sum(counts)) * 1e6,
        seconds=to_s - from_s,
        from_s=from_s,
        to_s=to_s,
        messages=total,
        at_work=len(working),
    )


def _at(samples: Sequence[Sample], at_s: float) -> tuple[float, float]:
    """Messages and processor time at *at_s*, between samples on the straight line."""
    index = bisect_left(samples, at_s, key=lambda sample: sample.at_s)
    if index == 0:
        return 0.0, samples[0].cpu_s
    if index == len(samples):
        return samples[-1].count, samples[-1].cpu_s
    before, after = samples[index - 1], samples[index]
    part = (at_s - before.at_s) / (after.at_s - before.at_s)
    return before.count + part * (after.count - before.count), before.cpu_s + part * (after.cpu_s - before.cpu_s)
