"""Local counters: numbers raised once or more per message and read once in a while.

Owns counting without a lock or a label look-up per message, and updating Prometheus when it reads. A counter is raised
from one thread (the event loop's) and only grows, so any thread can read it. `bus.telemetry.metrics` owns names, labels
and buckets.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate
from threading import Lock

from prometheus_client import Counter, Histogram
from prometheus_client.metrics_core import HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.samples import Exemplar
from prometheus_client.utils import floatToGoString

from bus.protocol.identifiers import is_traceparent

__all__ = ["CounterCollector", "LocalCounter", "LocalHistogram", "LocalHistograms", "trace_of_parent"]

# Whether this process exports `_created` series: a setting of prometheus_client without a public name.
_SHOWS_CREATED = any(
    sample.name.endswith("_created")
    for metric in Histogram("asked", "", registry=None).collect()
    for sample in metric.samples
)


class CounterCollector(Collector):
    """A counter that *gather* updates before each read."""

    # One lock for all: the same function updates several series.
    _lock = Lock()

    def __init__(self, counter: Counter, gather: Callable[[], None]) -> None:
        self._counter = counter
        self._gather = gather

    def collect(self) -> Iterable[Metric]:
        with self._lock:
            self._gather()
        return self._counter.collect()

    def describe(self) -> Iterable[Metric]:
        return self._counter.describe()


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

    __slots__ = ("_bounds", "counts", "created_s", "exemplars", "total_s")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self.counts = [0.0] * (len(bounds) + 1)
        self.total_s = 0.0
        self.created_s = time.time()
        self.exemplars: dict[int, Exemplar] = {}

    def observe(self, seconds: float) -> None:
        """Add one duration."""
        self.counts[bisect_left(self._bounds, seconds)] += 1
        self.total_s += seconds

    def mark(self, seconds: float, trace: dict[str, str]) -> None:
        """Name the *trace* of a duration that was added: its bucket's newest exemplar (OpenMetrics)."""
        self.exemplars[bisect_left(self._bounds, seconds)] = Exemplar(trace, seconds, time.time())


def trace_of_parent(traceparent: str | None) -> dict[str, str] | None:
    """Return the labels of an exemplar for a `traceparent` (W3C); None without one, or with one of another form."""
    if traceparent is None or not is_traceparent(traceparent):
        return None
    return {"trace_id": traceparent.split("-")[1]}


class LocalHistograms(Collector):
    """A histogram whose series are `LocalHistogram`s."""

    def __init__(self, name: str, text: str, labels: Sequence[str], bounds: Sequence[float]) -> None:
        self._name = name
        self._text = text
        self._labels = labels
        self._bounds = bounds
        self._timings: dict[tuple[str, ...], LocalHistogram] = {}

    def of(self, *values: str) -> LocalHistogram:
        """Return the series with these label values."""
        timing = self._timings.get(values)
        return timing if timing is not None else self._timings.setdefault(values, LocalHistogram(self._bounds))

    def collect(self) -> Iterable[Metric]:
        family = HistogramMetricFamily(self._name, self._text, labels=self._labels)
        names = [floatToGoString(bound) for bound in (*self._bounds, float("inf"))]  # type: ignore[no-untyped-call]
        for values, timing in list(self._timings.items()):
            known, counts = dict(timing.exemplars), accumulate(timing.counts)
            buckets = [
                (bound, count, known[at]) if at in known else (bound, count)
                for at, (bound, count) in enumerate(zip(names, counts, strict=True))
            ]
            family.add_metric(values, buckets, sum_value=timing.total_s)
            if _SHOWS_CREATED:
                family.add_sample(
                    f"{self._name}_created", dict(zip(self._labels, values, strict=True)), timing.created_s
                )
        return [family]

    def describe(self) -> Iterable[Metric]:
        return [HistogramMetricFamily(self._name, self._text, labels=self._labels)]
