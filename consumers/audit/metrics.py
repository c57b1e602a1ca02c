"""Metrics of an audit process: rows, how far it is behind, and what the protocol rates divide."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client import CollectorRegistry, Counter, Gauge

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
        self.rows = Counter("sealbus_audit_rows", "Rows that this process has written.", registry=self.registry)
        self.events = Counter(
            "sealbus_protocol_events",
            "Protocol events in recorded rows: " + ", ".join(EVENTS) + ".",
            ["event"],
            registry=self.registry,
        )
        for event in EVENTS:
            self.events.labels(event)

    def wrote(self, entries: Iterable[Entry]) -> None:
        """Count what has been written."""
        for entry in entries:
            self.rows.inc()
            for event in self._counter.events_of(entry.row, entry.content):
                self.events.labels(event).inc()
