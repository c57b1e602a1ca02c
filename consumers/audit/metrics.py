"""Metrics of an audit process: rows, how far it is behind, and what the protocol rates divide."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from prometheus_client import CollectorRegistry, Gauge
from prometheus_client import Counter as MetricCounter

from consumers.audit.rates import EVENTS, ProtocolCounter
from consumers.audit.store import Entry

__all__ = ["AuditMetrics"]


class AuditMetrics:
    """The series of one process; every one of them exists from the start."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        self.registry = registry or CollectorRegistry()
        self._counter = ProtocolCounter()
        self.up = Gauge("sealbus_audit_up", "Whether the last look at log and store went well.", registry=self.registry)
        self.behind = Gauge(
            "sealbus_audit_behind_records",
            "Records that the audit has not recorded yet.",
            registry=self.registry,
        )
        self.rows = MetricCounter("sealbus_audit_rows", "Rows that this process has written.", registry=self.registry)
        self.events = MetricCounter(
            "sealbus_protocol_events",
            "Protocol events in recorded rows: " + ", ".join(EVENTS) + ".",
            ["event"],
            registry=self.registry,
        )
        for event in EVENTS:
            self.events.labels(event)

    def wrote(self, entries: Sequence[Entry]) -> None:
        """Count what has been written."""
        self.rows.inc(len(entries))
        events = (event for entry in entries for event in self._counter.events_of(entry.row, entry.content))
        for event, count in Counter(events).items():
            self.events.labels(event).inc(count)
