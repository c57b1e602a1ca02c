"""What Prometheus reads of local counters: collectors that update their series when they are asked.

`prometheus_client` takes a tenth of the time that `import sealbus` may take, so this module is imported with the first
`Metrics` of a process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate
from threading import Lock

from prometheus_client import Counter, Histogram
from prometheus_client.metrics_core import HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.samples import Exemplar
from prometheus_client.utils import floatToGoString

from bus.telemetry.counters import LocalHistogram

__all__ = ["CounterCollector", "LocalHistograms"]

_ASKED = Histogram("asked", "", registry=None)


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
        shows_created = _shows_created()
        names = [floatToGoString(bound) for bound in (*self._bounds, float("inf"))]  # type: ignore[no-untyped-call]
        for values, timing in list(self._timings.items()):
            known, counts = dict(timing.exemplars), accumulate(timing.counts)
            buckets = [
                (bound, count, Exemplar(*known[at])) if at in known else (bound, count)
                for at, (bound, count) in enumerate(zip(names, counts, strict=True))
            ]
            family.add_metric(values, buckets, sum_value=timing.total_s)
            if shows_created:
                family.add_sample(
                    f"{self._name}_created", dict(zip(self._labels, values, strict=True)), timing.created_s
                )
        return [family]

    def describe(self) -> Iterable[Metric]:
        return [HistogramMetricFamily(self._name, self._text, labels=self._labels)]


def _shows_created() -> bool:
    """Return whether this process exports `_created` series now: a setting of prometheus_client without a public
    name."""
    return any(sample.name.endswith("_created") for metric in _ASKED.collect() for sample in metric.samples)
