"""Local counters: numbers raised once or more per message and read once in a while.

Owns counting without a lock or a label look-up per message. A counter is raised from one thread (the event loop's) and
only grows, so any thread can read it. `bus.telemetry.collectors` owns what Prometheus reads of them,
`bus.telemetry.metrics` names, labels and buckets.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from bus.protocol.identifiers import is_traceparent

if TYPE_CHECKING:
    from prometheus_client import Counter

__all__ = ["Example", "LocalCounter", "LocalHistogram", "trace_of_parent"]


class Example(NamedTuple):
    """One duration of a bucket, with the labels of its trace: an exemplar of OpenMetrics."""

    trace: dict[str, str]
    seconds: float
    time_s: float


class LocalCounter:
    """One series of a counter: a plain number that only grows, added to the series when Prometheus reads it."""

    __slots__ = ("_exported", "_series", "count")

    def __init__(self, series: Counter) -> None:
        self._series = series
        self.count = self._exported = 0

    def gather(self) -> None:
        """Update the series; called from one thread at a time (`CounterCollector`)."""
        # Read once: an increment by another thread meanwhile counts the next time.
        count = self.count
        self._series.inc(count - self._exported)
        self._exported = count


class LocalHistogram:
    """The durations of one labelled series, in seconds."""

    __slots__ = ("bounds", "counts", "created_s", "exemplars", "total_s")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        """What each of *counts* but the last counts up to."""
        self.counts = [0.0] * (len(bounds) + 1)
        self.total_s = 0.0
        self.created_s = time.time()
        self.exemplars: dict[int, Example] = {}

    def observe(self, seconds: float) -> None:
        """Add one duration."""
        self.counts[bisect_left(self.bounds, seconds)] += 1
        self.total_s += seconds

    def mark(self, seconds: float, trace: dict[str, str]) -> None:
        """Name the *trace* of a duration that was added: its bucket's newest exemplar (OpenMetrics)."""
        self.exemplars[bisect_left(self.bounds, seconds)] = Example(trace, seconds, time.time())


def trace_of_parent(traceparent: str | None) -> dict[str, str] | None:
    """Return the labels of an exemplar for a `traceparent` (W3C); None without one, or with one of another form."""
    if traceparent is None or not is_traceparent(traceparent):
        return None
    return {"trace_id": traceparent.split("-")[1]}
