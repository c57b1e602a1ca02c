"""Every Prometheus series of sealbus, with its help text, in one table (design section 6).

Owns names, labels and buckets. A process makes one `Metrics` and hands it to whoever counts; label values of types come from registered types
only (`Registry.label`). Serving them is the worker's.
"""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

__all__ = ["Meter", "Metrics"]

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)


class Metrics:
    """The series of one process, on a registry of their own."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        self.registry = registry or CollectorRegistry()
        self.published = self._counter("published", "Messages published, by outcome.", "type", "outcome")
        self.publish_seconds = self._histogram("publish_seconds", "Time from publish to its outcome.", "type")
        self.received = self._counter("received", "Records taken from the log.", "type", "group")
        self.settled = self._counter("settled", "Messages settled, by outcome.", "type", "group", "outcome", "reason")
        self.retried = self._counter("retried", "Attempts that will be repeated, by where they wait.", "type", "group", "tier")
        self.handler_seconds = self._histogram("handler_seconds", "Time spent in handlers.", "type", "group")
        self.end_to_end_seconds = self._histogram("end_to_end_seconds", "Time from sealing to being settled as done.", "type", "group")
        self.in_flight = self._gauge("in_flight", "Messages taken from the log and not yet settled.", "group")
        self.lanes = self._gauge("lanes", "Keys with messages in this worker.", "group")
        self.lag_messages = self._gauge("lag_messages", "Records after the commit.", "group", "topic", "partition")
        self.lag_seconds = self._gauge("lag_seconds", "Age of the oldest record after the commit.", "group", "topic", "partition")
        self.oldest_unsettled_seconds = self._gauge("oldest_unsettled_seconds", "Age in this worker of its oldest unsettled message.", "group")
        self.rebalances = self._counter("rebalances", "Times partitions came or went.", "group")
        self.commit_seconds = self._histogram("commit_seconds", "Time of one commit of offsets.", "group")
        self.clock_offset_seconds = self._gauge("clock_offset_seconds", "Log's append time minus this machine's clock.")
        self.loop_lag_seconds = self._gauge("loop_lag_seconds", "How late the event loop ran its last tick.")

        self._meters: dict[tuple[str, str], Meter] = {}
        self._accepted: dict[str, Counter] = {}

    def accepted(self, message_type: str) -> Counter:
        """The series that counts every accepted publish of one type."""
        counter = self._accepted.get(message_type)
        if counter is None:
            counter = self._accepted[message_type] = self.published.labels(message_type, "accepted")
        return counter

    def meter(self, message_type: str, group: str) -> Meter:
        """The series that count every message of one type in one group."""
        meter = self._meters.get((message_type, group))
        if meter is None:
            meter = self._meters[message_type, group] = Meter(self, message_type, group)
        return meter

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(f"sealbus_{name}", text, labels, registry=self.registry)

    def _gauge(self, name: str, text: str, *labels: str) -> Gauge:
        return Gauge(f"sealbus_{name}", text, labels, registry=self.registry)

    def _histogram(self, name: str, text: str, *labels: str) -> Histogram:
        return Histogram(f"sealbus_{name}", text, labels, registry=self.registry, buckets=_SECONDS)


class Meter:
    """The series of one type and group, looked up once instead of once a message."""

    __slots__ = ("done", "end_to_end_seconds", "handler_seconds", "received", "skipped")

    def __init__(self, metrics: Metrics, message_type: str, group: str) -> None:
        self.received = metrics.received.labels(message_type, group)
        self.done = metrics.settled.labels(message_type, group, "done", "")
        self.skipped = metrics.settled.labels(message_type, group, "skipped", "")
        self.handler_seconds = metrics.handler_seconds.labels(message_type, group)
        self.end_to_end_seconds = metrics.end_to_end_seconds.labels(message_type, group)
