"""Every Prometheus series of sealbus, with its help text, in one table.

Owns names, labels and buckets. A process creates one `Metrics` and passes it to every part that counts. Type labels
come only from registered types (`Registry.label`). Numbers raised once per message use `bus.telemetry.counters`; the
worker serves the series. `prometheus_client` is imported with the first `Metrics`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from bus.telemetry.counters import LocalCounter, LocalHistogram

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

    from bus.telemetry.collectors import LocalHistograms

__all__ = ["PublishMetrics", "TypeMetrics", "Metrics", "versions"]

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)
# A message may wait in three tiers and for an approval before it is done.
_LONG_SECONDS = (*_SECONDS, 900, 3_600, 14_400, 86_400)


class Metrics:
    """The series of one process, on *registry*, by default one of their own.

        metrics = Metrics(prometheus_client.REGISTRY)       # beside the program's own series
        async with connect(url, agent="shop@svc", metrics=metrics) as bus: ...

    Create one per process and registry. Names begin with `sealbus_`; times are seconds.
    """

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        from prometheus_client import CollectorRegistry

        self.registry = registry or CollectorRegistry()
        self._accepted: dict[str, PublishMetrics] = {}
        self.build_info = self._gauge("build_info", "1, with the versions of sealbus and Python.", "version", "python")
        self.build_info.labels(*versions()).set(1)
        self.published = self._gathered("published", "Messages published, by outcome.", "type", "outcome")
        self.publish_seconds = self._timings("publish_seconds", "Time from publish to its outcome.", "type")
        self.late_replies = self._counter(
            "late_replies", "Answers that came after the deadline, or after another answer.", "type"
        )
        self.refused_replies = self._counter(
            "refused_replies", "Rejected answers, by gate reason or `uncorrelated`.", "reason"
        )
        self.progress = self._counter(
            "progress",
            "Progress of requests: sent, merged or lost by who works; shown, passed, repeated, dropped, late or "
            "refused by who asked.",
            "outcome",
        )
        self.dropped_answers = self._counter(
            "dropped_answers", "Answers and reports whose reply topic is missing or not writable.", "group", "kind"
        )
        self.missing_topics = self._gauge(
            "missing_topics", "1 while an output waits for a topic that does not exist.", "group", "topic"
        )
        self._meters: dict[str, _Meters] = {}
        self.received = self._gathered("received", "Records taken from the log.", "type", "group")
        self.slow_decodes = self._counter(
            "slow_decodes", "Records that took longer than a quarter of a second to judge.", "type", "group"
        )
        self.policy_denials = self._counter(
            "policy_denials", "Refusals by policy, labels or authority, by action and reason.", "action", "reason"
        )
        self.keys_age_seconds = self._gauge(
            "keys_age_seconds", "How long the keys have been unreadable; 0 while they are good."
        )
        self.key_expiry_timestamp_seconds = self._gauge(
            "key_expiry_timestamp_seconds",
            "When the key ends with which an agent signs; +Inf: never.",
            "agent",
        )
        self.policy_age_seconds = self._gauge(
            "policy_age_seconds", "How long the policy file has been unreadable; 0 while it is good."
        )
        self.deprecated_fields = self._counter(
            "deprecated_fields", "Deprecated fields that messages still had.", "type", "field"
        )
        self.settled = self._gathered("settled", "Messages settled, by outcome.", "type", "group", "outcome", "reason")
        self.retried = self._counter(
            "retried", "Attempts that will be repeated, by where they wait.", "type", "group", "tier"
        )
        self.handler_seconds = self._timings("handler_seconds", "Time spent in handlers.", "type", "group")
        self.end_to_end_seconds = self._timings(
            "end_to_end_seconds",
            "Time from sealing to being settled as done.",
            "type",
            "group",
            buckets=_LONG_SECONDS,
        )
        self.in_flight = self._gauge("in_flight", "Messages taken from the log and not yet settled.", "group")
        self.lanes = self._gauge("lanes", "Keys with unfinished messages.", "group")
        self.lag_messages = self._gauge("lag_messages", "Records not yet committed.", "group", "topic", "partition")
        self.lag_seconds = self._gauge(
            "lag_seconds", "Age of the first record that is not settled.", "group", "topic", "partition"
        )
        self.hold_ups = self._gauge(
            "hold_ups",
            "Messages for which others have waited for 5 s or more, by what they wait for.",
            "group",
            "reason",
        )
        self.oldest_unsettled_seconds = self._gauge(
            "oldest_unsettled_seconds", "Age in this worker of its oldest unsettled message.", "group"
        )
        self.rebalances = self._counter("rebalances", "Rebalances.", "group")
        self.commit_seconds = self._histogram("commit_seconds", "Time of one commit of offsets.", "group")
        self._inbox: dict[tuple[str, str], LocalCounter] = {}
        self.inbox = self._gathered("inbox", "Messages with an idempotency key, by inbox result.", "group", "result")
        self.brake_on = self._gauge(
            "brake_on", "1 while a type pauses because too large a share of it died.", "group", "type"
        )
        self.breaker_open = self._gauge(
            "breaker_open", "1 while messages wait for a dependency that is down.", "group", "dependency"
        )
        self.saga_steps = self._counter(
            "saga_steps",
            "Events of processes, by what became of them: stepped, conflict, early, late, crowded.",
            "group",
            "saga",
            "outcome",
        )
        self.processes_open = self._gauge("processes_open", "Processes that are not finished.", "group", "saga")
        self.processes_ended = self._counter(
            "processes_ended", "Processes that have ended, by how.", "group", "saga", "outcome"
        )
        self.waits_overdue = self._gauge("waits_overdue", "Waits that have been due for a minute or more.", "group")
        self.clock_offset_seconds = self._gauge("clock_offset_seconds", "Clock difference to the log.")
        self.loop_lag_seconds = self._gauge(
            "loop_lag_seconds", "How late the event loop ran at most since the last scrape."
        )

    def accepted(self, message_type: str) -> PublishMetrics:
        """Return the counters of accepted publishes of one type."""
        accepted = self._accepted.get(message_type)
        if accepted is None:
            accepted = self._accepted[message_type] = PublishMetrics(self, message_type)
        return accepted

    def meters(self, group: str) -> Mapping[str, TypeMetrics]:
        """Return the per-message counters of one group by type label; a missing one is created on access."""
        meters = self._meters.get(group)
        if meters is None:
            meters = self._meters[group] = _Meters(self, group)
        return meters

    def retry(self, message_type: str, group: str, tier: str, *, trace: dict[str, str] | None = None) -> None:
        """Count an attempt that is tried again in *tier*; *trace*: the labels of its exemplar."""
        self.retried.labels(message_type, group, tier).inc(exemplar=trace)
        self.meters(group)[message_type].retries += 1

    def begin(self, group: str, types: Iterable[str], *, reasons: Iterable[str], tiers: Iterable[str]) -> None:
        """Make every series of *group* that could count one of *types*, at zero.

        A rate over a series that begins with its first event does not see this event.
        """
        for name in types:
            _ = self.meters(group)[name]
            for reason in reasons:
                self.settled.labels(name, group, "dead", reason)
            self.settled.labels(name, group, "held", "")
            for tier in ("lane", *tiers):
                self.retried.labels(name, group, tier)
            self.slow_decodes.labels(name, group)
            self.brake_on.labels(group, name)
        for kind in ("report", "answer"):
            self.dropped_answers.labels(group, kind)
        self.rebalances.labels(group)
        self.commit_seconds.labels(group)

    def inbox_knew(self, group: str, result: str) -> LocalCounter:
        """Return the counter of one kind of inbox answers of one group."""
        tally = self._inbox.get((group, result))
        if tally is None:
            tally = self._inbox[group, result] = LocalCounter(self.inbox.labels(group, result))
        return tally

    def _gather(self) -> None:
        tallies: list[LocalCounter] = [*self._accepted.values(), *self._inbox.values()]
        for meters in list(self._meters.values()):
            tallies += (tally for meter in list(meters.values()) for tally in meter.tallies())
        for tally in tallies:
            tally.gather()

    def _gathered(self, name: str, text: str, *labels: str) -> Counter:
        from prometheus_client import Counter

        from bus.telemetry.collectors import CounterCollector

        counter = Counter(f"sealbus_{name}", text, labels, registry=None)
        self.registry.register(CounterCollector(counter, self._gather))
        return counter

    def _timings(self, name: str, text: str, *labels: str, buckets: tuple[float, ...] = _SECONDS) -> LocalHistograms:
        from bus.telemetry.collectors import LocalHistograms

        timings = LocalHistograms(f"sealbus_{name}", text, labels, buckets)
        self.registry.register(timings)
        return timings

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        from prometheus_client import Counter

        return Counter(f"sealbus_{name}", text, labels, registry=self.registry)

    def _gauge(self, name: str, text: str, *labels: str) -> Gauge:
        from prometheus_client import Gauge

        return Gauge(f"sealbus_{name}", text, labels, registry=self.registry)

    def _histogram(self, name: str, text: str, *labels: str) -> Histogram:
        from prometheus_client import Histogram

        return Histogram(f"sealbus_{name}", text, labels, registry=self.registry, buckets=_SECONDS)


def versions() -> tuple[str, str]:
    """Return the versions of sealbus and of Python."""
    import platform
    from importlib import metadata

    try:
        own = metadata.version("sealbus")
    except metadata.PackageNotFoundError:
        own = "unknown"
    return own, platform.python_version()


class _Meters(dict[str, "TypeMetrics"]):
    """A dict that creates missing entries.

    This is the fastest look-up, for entries needed several times per message.
    """

    def __init__(self, metrics: Metrics, group: str) -> None:
        super().__init__()
        self._metrics = metrics
        self._group = group

    def __missing__(self, message_type: str) -> TypeMetrics:
        meter = self[message_type] = TypeMetrics(self._metrics, message_type, self._group)
        return meter


class PublishMetrics(LocalCounter):
    """Counts the accepted publishes of one type, and their durations."""

    __slots__ = ("seconds",)

    def __init__(self, metrics: Metrics, message_type: str) -> None:
        super().__init__(metrics.published.labels(message_type, "accepted"))
        for outcome in ("rejected", "unknown"):
            metrics.published.labels(message_type, outcome)
        self.seconds: LocalHistogram = metrics.publish_seconds.of(message_type)


class TypeMetrics:
    """The per-message counters of one type and group."""

    __slots__ = ("done", "end_to_end_seconds", "handler_seconds", "received", "retries", "skipped")

    def __init__(self, metrics: Metrics, message_type: str, group: str) -> None:
        self.retries = 0
        """As `retried` counts them, in all tiers."""
        self.received = LocalCounter(metrics.received.labels(message_type, group))
        self.done = LocalCounter(metrics.settled.labels(message_type, group, "done", ""))
        self.skipped = LocalCounter(metrics.settled.labels(message_type, group, "skipped", ""))
        self.handler_seconds: LocalHistogram = metrics.handler_seconds.of(message_type, group)
        self.end_to_end_seconds: LocalHistogram = metrics.end_to_end_seconds.of(message_type, group)

    def tallies(self) -> tuple[LocalCounter, ...]:
        """Return the counters to gather."""
        return self.received, self.done, self.skipped
