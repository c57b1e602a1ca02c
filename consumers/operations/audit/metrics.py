"""Metrics of an audit process: rows, its lag, and the counts behind the protocol rates."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Final

from prometheus_client import CollectorRegistry, Gauge
from prometheus_client import Counter as MetricCounter
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from bus.clock import Clock
from bus.telemetry.metrics import versions
from consumers.operations.audit.rates import EVENTS, ProtocolCounter
from consumers.operations.audit.rows import UNSTORABLE
from consumers.operations.audit.store import Entry

__all__ = ["AuditMetrics"]

_MAX_SERIES: Final = 1_000
"""Maximum number of partitions with a series; those furthest behind are kept."""


class AuditMetrics:
    """The series of one process; every one of them exists from the start."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        self.registry = registry or CollectorRegistry()
        self._counter = ProtocolCounter()
        self.up = Gauge(
            "sealbus_audit_up",
            "Whether the last look at log and store went well, in every partition.",
            registry=self.registry,
        )
        self.behind = Gauge(
            "sealbus_audit_behind_records",
            "Records that the audit has not recorded yet.",
            registry=self.registry,
        )
        self.checkpoints_up = Gauge(
            "sealbus_audit_checkpoints_up",
            "Whether the last checkpoint, which proves the rows outside of the database, could be written.",
            registry=self.registry,
        )
        self.checkpoints_up.set(1)
        build_info = Gauge(
            "sealbus_build_info",
            "1, with the versions of sealbus and Python.",
            ["version", "python"],
            registry=self.registry,
        )
        build_info.labels(*versions()).set(1)
        self.rows = MetricCounter("sealbus_audit_rows", "Rows that this process has written.", registry=self.registry)
        self.unstorable = MetricCounter(
            "sealbus_audit_unstorable", "Records that the store refused, stored as bytes.", registry=self.registry
        )
        self.round_s = math.inf
        """When the last round began, on the monotonic clock; infinite before the first."""
        self.error = ""
        """Why the last round did not do its work."""
        self.behind_of: Mapping[tuple[str, int], int] = {}
        """By partition, records that are not recorded yet."""
        self.registry.register(_PartitionLag(self))
        self.events = MetricCounter(
            "sealbus_protocol_events",
            "Protocol events in recorded rows: " + ", ".join(EVENTS) + ".",
            ["event"],
            registry=self.registry,
        )
        for event in EVENTS:
            self.events.labels(event)

    def round_s_ago(self, clock: Clock) -> float:
        """Return how long ago the last round began; 0 before the first, which waits for the log."""
        return max(0.0, clock.monotonic_s() - self.round_s)

    def begin_round(self, now_s: float) -> None:
        """Note that a round begins, at *now_s* of the monotonic clock."""
        self.round_s = now_s

    def knows(self, behind_of: Mapping[tuple[str, int], int], failing: Collection[tuple[str, int]]) -> None:
        """Note after a round how far each partition is behind, and which could not be read or written."""
        self.behind_of = behind_of
        self.behind.set(sum(behind_of.values()))
        self.up.set(not failing)
        self.error = f"{len(failing)} partitions cannot be read or written" if failing else ""

    def wrote(self, entries: Sequence[Entry]) -> None:
        """Count what has been written."""
        self.rows.inc(len(entries))
        self.unstorable.inc(sum(entry.row.verdict == UNSTORABLE for entry in entries))
        events = (event for entry in entries for event in self._counter.events_of(entry.row, entry.content))
        for event, count in Counter(events).items():
            self.events.labels(event).inc(count)


class _PartitionLag(Collector):
    """The series of partitions, as the last round left them."""

    def __init__(self, metrics: AuditMetrics) -> None:
        self._metrics = metrics

    def describe(self) -> Iterable[Metric]:
        """Return nothing: the registry would otherwise scrape once to learn the names."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Yield one family, of a bounded number of series."""
        family = GaugeMetricFamily(
            "sealbus_audit_partition_behind_records",
            "Records of a partition that the audit has not recorded yet.",
            labels=["topic", "partition"],
        )
        found = sorted(self._metrics.behind_of.items(), key=lambda item: (-item[1], item[0]))
        for (topic, partition), count in found[:_MAX_SERIES]:
            family.add_metric([topic, str(partition)], count)
        yield family
