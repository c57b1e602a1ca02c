"""Exporter: the survey of a namespace as Prometheus metrics, taken again and again.

Owns the names, help texts and bounds. The number of labels is bounded: groups and types of the log, reasons of the
contract, three kinds of health. Names of agents and conversations are not used as labels.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from bus.clock import Clock
from bus.errors import BusError
from bus.settings.schema import Settings
from bus.telemetry.logs import get_logger
from consumers.operations.survey.doctor import free_bytes
from consumers.operations.survey.survey import Survey, Surveyor
from producers.directory.presence import DirectorySize

__all__ = ["SurveyCollector", "keep_current"]

_log = get_logger("exporter")

_MAX_SERIES: Final = 200
_OTHERS: Final = "(others)"
_HEALTH: Final = ("healthy", "unhealthy")


class SurveyCollector(Collector):
    """Answers scrapes with the last survey; *is_current* is whether the last attempt to take one succeeded."""

    def __init__(self) -> None:
        self.survey: Survey | None = None
        self.taken_s = 0.0
        """Monotonic seconds since which the survey is old."""
        self.is_current = False
        self.free_bytes: Mapping[str, float] = {}
        """Free bytes by purpose of the disk: `log`, `inbox`."""

    def describe(self) -> Iterable[Metric]:
        """Return nothing: the registry would otherwise scrape once to learn the names."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Yield every family; all of them exist from the start."""
        up = GaugeMetricFamily("sealbus_survey_up", "Whether the namespace could be read at the last attempt.")
        up.add_metric([], float(self.is_current))
        yield up
        store = GaugeMetricFamily("sealbus_store_up", "Whether the database of inbox and processes answers.")
        store.add_metric([], float(self.survey is not None and not self.survey.work.error))
        yield store
        disk = GaugeMetricFamily("sealbus_disk_free_bytes", "Free bytes where log and inbox are files.", labels=["of"])
        for name, free in self.free_bytes.items():
            disk.add_metric([name], free)
        yield disk
        yield from _of_groups(self.survey)
        yield from _of_letters(self.survey)
        yield from _of_work(self.survey)
        yield from _of_directory(self.survey)


async def keep_current(
    collector: SurveyCollector, surveyor: Surveyor, settings: Settings, clock: Clock, every_s: float
) -> None:
    """Take a survey every *every_s* seconds for *collector*, until cancelled."""
    while True:
        collector.free_bytes = free_bytes(settings)
        try:
            collector.survey = await surveyor.take()
        except BusError as error:
            if collector.is_current or collector.survey is None:
                _log.warning("exporter.blind", error=str(error))
            collector.is_current = False
        else:
            if not collector.is_current:
                _log.info("exporter.sees", namespace=settings.bus.namespace)
            collector.is_current = True
        await clock.sleep(every_s)


def _of_groups(survey: Survey | None) -> Iterator[Metric]:
    members = GaugeMetricFamily("sealbus_group_members", "Workers in a group.", labels=["group"])
    lag = GaugeMetricFamily(
        "sealbus_group_lag_messages", "Stored records that a group has not settled.", labels=["group"]
    )
    stands = GaugeMetricFamily(
        "sealbus_group_lost_partitions", "Partitions whose next record a group has lost to retention.", labels=["group"]
    )
    still = GaugeMetricFamily(
        "sealbus_group_still_seconds",
        "For how long records have waited without a commit of the group.",
        labels=["group"],
    )
    stalled = GaugeMetricFamily(
        "sealbus_transaction_open_seconds", "How long records have waited behind another program's open transaction."
    )
    stalled.add_metric([], max((each.for_s for each in (() if survey is None else survey.held_up)), default=0.0))
    for group in (() if survey is None else survey.groups)[:_MAX_SERIES]:
        members.add_metric([group.name], group.members)
        lag.add_metric([group.name], group.lag)
        stands.add_metric([group.name], group.stands)
        still.add_metric([group.name], group.still_s)
    yield from (members, lag, stands, still, stalled)


def _of_letters(survey: Survey | None) -> Iterator[Metric]:
    count = GaugeMetricFamily(
        "sealbus_dead_letters_open", "Dead letters neither redriven nor dismissed.", labels=["type", "reason"]
    )
    oldest = GaugeMetricFamily(
        "sealbus_dead_letter_oldest_timestamp_seconds", "When the oldest open one was dead-lettered; 0: none."
    )
    found = () if survey is None else survey.letters.by_type
    for message_type, reason, number in found[:_MAX_SERIES]:
        count.add_metric([message_type or "(unknown)", reason or "(unknown)"], number)
    if left := sum(number for _, _, number in found[_MAX_SERIES:]):
        count.add_metric([_OTHERS, _OTHERS], left)
    if not found:
        count.add_metric(["", ""], 0)
    oldest_ms = None if survey is None else survey.letters.oldest_ms
    oldest.add_metric([], 0.0 if oldest_ms is None else oldest_ms / 1000)
    yield from (count, oldest)


def _of_work(survey: Survey | None) -> Iterator[Metric]:
    processes = GaugeMetricFamily("sealbus_open_processes", "Open processes of sagas.", labels=["saga"])
    overdue = GaugeMetricFamily("sealbus_overdue_waits", "Waits of processes that have been due for a minute.")
    approvals = GaugeMetricFamily("sealbus_open_approvals", "Messages that wait for an approval.")
    oldest = GaugeMetricFamily("sealbus_approval_oldest_timestamp_seconds", "Since when the oldest waits; 0: none.")
    agents = GaugeMetricFamily("sealbus_agents", "Agents by health.", labels=["health"])
    work = None if survey is None else survey.work
    for saga, number in sorted(() if work is None else work.open.items())[:_MAX_SERIES]:
        processes.add_metric([saga], number)
    overdue.add_metric([], 0 if work is None else work.overdue)
    approvals.add_metric([], 0 if work is None else work.approvals)
    oldest_ms = None if work is None else work.oldest_approval_ms
    oldest.add_metric([], 0.0 if oldest_ms is None else oldest_ms / 1000)
    for health in _HEALTH:
        agents.add_metric([health], sum(each.health == health for each in (() if survey is None else survey.agents)))
    unwell = GaugeMetricFamily("sealbus_agents_stuck_workers", "Workers that report themselves stuck or disconnected.")
    unwell.add_metric([], 0 if survey is None else sum(each.unwell for each in survey.agents))
    yield from (processes, overdue, approvals, oldest, agents, unwell)


def _of_directory(survey: Survey | None) -> Iterator[Metric]:
    size = DirectorySize() if survey is None else survey.directory
    yield GaugeMetricFamily("sealbus_directory_agents", "Agents that the exporter knows of.", value=size.agents)
    yield GaugeMetricFamily(
        "sealbus_directory_instances", "Instances of agents that it knows of.", value=size.instances
    )
    yield CounterMetricFamily(
        "sealbus_directory_refused", "Cards, heartbeats and goodbyes that a gate refused.", value=size.refused
    )
    yield CounterMetricFamily(
        "sealbus_directory_dropped", "Agents dropped at the limit directory.max_agents.", value=size.dropped
    )
