"""Exporter: the examination of a namespace as Prometheus metrics, made again and again.

Owns the names, help texts and bounds. Every series names its namespace. The number of labels is bounded: groups and
types of the log, reasons of the contract, areas of checks. Names of agents and conversations are not used as labels.
What was not looked at has no sample.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Final, TypeAlias

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from bus.clock import Clock
from bus.settings.schema import Settings
from bus.telemetry.logs import get_logger
from bus.telemetry.metrics import versions
from consumers.operations.survey.doctor import free_bytes
from consumers.operations.survey.examination import Examination, Examiner
from consumers.operations.survey.group_state import GroupState
from consumers.operations.survey.results import CHECK_AREAS
from consumers.operations.survey.survey import Survey
from producers.directory.hold_ups import HOLD_UP_REASONS
from producers.directory.presence import DirectorySize

__all__ = ["SurveyCollector", "keep_current"]

_log = get_logger("exporter")

_MAX_SERIES: Final = 200
_OTHERS: Final = "(others)"
_HEALTH: Final = ("healthy", "unhealthy")
_Sample: TypeAlias = tuple[tuple[str, ...], float]
_NAMES: Final = {
    "survey_up": "Whether the namespace could be read at the last attempt.",
    "survey_timestamp_seconds": "When the last attempt began.",
    "build_info": "1, with the versions of sealbus and Python.",
    "findings": "The results of `sealbus doctor`, counted by area: faults, hints, and checks that were not made.",
    "store_up": "Whether the database of inbox and processes answers, and no session blocks its tables.",
    "disk_free_bytes": "Free bytes where log and inbox are files.",
    "log_append_seconds": "How long the log takes to store a record, on average of the last looks.",
    "group_members": "Workers in a group.",
    "group_lag_messages": "Stored records that a group has not settled.",
    "group_oldest_seconds": "Age of the first record that a group has not settled.",
    "group_lost_partitions": "Partitions whose next record a group has lost to retention.",
    "group_still_seconds": "For how long records have waited without a commit of the group, and what for.",
    "group_hold_ups": "Messages for which others of their group wait, by what they wait for themselves.",
    "transaction_open_seconds": "How long records have waited behind another program's open transaction.",
    "dead_letters_open": "Dead letters neither redriven nor dismissed.",
    "dead_letter_oldest_timestamp_seconds": "When the oldest open one was dead-lettered; 0: none.",
    "open_processes": "Open processes of sagas.",
    "overdue_waits": "Waits of processes that have been due for a minute.",
    "open_approvals": "Messages that wait for an approval.",
    "approval_oldest_timestamp_seconds": "Since when the oldest waits; 0: none.",
    "agents": "Agents by health.",
    "agents_stuck_workers": "Workers that report themselves stuck or disconnected.",
    "agents_lost_workers": "Workers that fell silent in the last minutes without a goodbye.",
    "directory_agents": "Agents that the exporter knows of.",
    "directory_instances": "Instances of agents that it knows of.",
    "directory_refused": "Cards, heartbeats and goodbyes that a gate refused.",
    "directory_dropped": "Agents dropped at the limit directory.max_agents.",
}
_LABELS: Final[Mapping[str, tuple[str, ...]]] = {
    "build_info": ("version", "python"),
    "findings": ("area", "state"),
    "disk_free_bytes": ("disk",),
    "group_members": ("group",),
    "group_lag_messages": ("group",),
    "group_oldest_seconds": ("group",),
    "group_lost_partitions": ("group",),
    "group_still_seconds": ("group", "reason"),
    "group_hold_ups": ("group", "reason"),
    "dead_letters_open": ("type", "reason"),
    "open_processes": ("saga",),
    "agents": ("health",),
}
_COUNTERS: Final = frozenset({"directory_refused", "directory_dropped"})


class SurveyCollector(Collector):
    """Answers scrapes with the last examination; *is_current* is whether the last attempt could read the log."""

    def __init__(self, namespace: str) -> None:
        self._namespace = namespace
        self.looked: Examination | None = None
        self.is_current = False
        self.free_bytes: Mapping[str, float] = {}
        """Free bytes by purpose of the disk: `log`, `inbox`."""
        self._survey: Survey | None = None
        self.round_s = math.inf
        """When the last attempt began, on the monotonic clock; infinite before the first."""

    def round_s_ago(self, clock: Clock) -> float:
        """Return how long ago the last attempt began; 0 before the first."""
        return max(0.0, clock.monotonic_s() - self.round_s)

    @property
    def error(self) -> str:
        """Why the last attempt could not read the log; empty where it could."""
        if self.is_current:
            return ""
        found = () if self.looked is None else self.looked.results
        return next(
            (each.text for each in found if each.area == "log" and each.state == "fault"), "no look has ended yet"
        )

    def note(self, looked: Examination) -> None:
        """Answer with *looked* from now on; where it could not read the log, with what was read before."""
        self.looked, self.is_current = looked, looked.survey is not None
        self._survey = looked.survey or self._survey

    def describe(self) -> Iterable[Metric]:
        """Return nothing: the registry would otherwise scrape once to learn the names."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Yield every family; all of them exist from the start."""
        found: dict[str, list[_Sample]] = {name: [] for name in _NAMES}
        found["survey_up"] = [((), float(self.is_current))]
        found["build_info"] = [(versions(), 1.0)]
        for name, samples in self._samples():
            found[name] += samples
        for name, samples in found.items():
            make = CounterMetricFamily if name in _COUNTERS else GaugeMetricFamily
            family = make(f"sealbus_{name}", _NAMES[name], labels=["namespace", *_LABELS.get(name, ())])
            for labels, value in samples:
                family.add_metric([self._namespace, *labels], value)
            yield family

    def _samples(self) -> Iterator[tuple[str, list[_Sample]]]:
        yield "disk_free_bytes", [((disk,), free) for disk, free in self.free_bytes.items()]
        looked, survey = self.looked, self._survey
        if looked is not None:
            yield "survey_timestamp_seconds", [((), looked.taken_ms / 1000)]
            yield "findings", _findings(looked)
            yield "store_up", _store_up(looked)
        if survey is None:
            return
        if survey.log.append_s is not None:
            yield "log_append_seconds", [((), survey.log.append_s)]
        yield from _of_groups(survey)
        yield from _of_letters(survey)
        yield from _of_work(survey)
        yield from _of_agents(survey)


async def keep_current(
    collector: SurveyCollector, examiner: Examiner, settings: Settings, clock: Clock, every_s: float
) -> None:
    """Examine the namespace every *every_s* seconds for *collector*, until cancelled."""
    while True:
        collector.round_s = clock.monotonic_s()
        collector.free_bytes = free_bytes(settings)
        was_current, is_first = collector.is_current, collector.looked is None
        looked = await examiner.look()
        collector.note(looked)
        if not collector.is_current and (was_current or is_first):
            _log.warning("exporter.blind", error=collector.error)
        elif collector.is_current and not was_current:
            _log.info("exporter.sees", namespace=settings.bus.namespace)
        await clock.sleep(every_s)


def _findings(looked: Examination) -> list[_Sample]:
    # Every area has a sample for faults: an alert on an absent series would never clear.
    counts: dict[tuple[str, ...], float] = {(area, "fault"): 0 for area in CHECK_AREAS}
    for each in looked.results:
        if each.state != "ok":
            counts[each.area, each.state] = counts.get((each.area, each.state), 0) + 1
    return list(counts.items())


def _store_up(looked: Examination) -> list[_Sample]:
    inbox = [each for each in looked.results if each.area == "inbox" and each.state in ("ok", "fault")]
    return [((), float(all(each.state == "ok" for each in inbox)))] if inbox else []


def _of_groups(survey: Survey) -> Iterator[tuple[str, list[_Sample]]]:
    stalled_s = max((each.for_s for each in survey.held_up), default=0.0)
    yield "transaction_open_seconds", [((), stalled_s)]
    for group in survey.groups[:_MAX_SERIES]:
        yield "group_members", [((group.name,), group.members)]
        yield "group_lag_messages", [((group.name,), group.lag)]
        if group.oldest_s is not None or not group.lag:
            yield "group_oldest_seconds", [((group.name,), group.oldest_s or 0.0)]
        yield "group_lost_partitions", [((group.name,), group.stands)]
        yield "group_still_seconds", [((group.name, _reason_of(group)), group.still_s)]
        counts = Counter(each.reason for each in group.hold_ups)
        yield "group_hold_ups", [((group.name, reason), counts[reason]) for reason in HOLD_UP_REASONS]


def _reason_of(group: GroupState) -> str:
    """Return what its messages wait for, as its workers say: the longest one counts."""
    if group.is_silent:
        return "silent"
    return group.hold_ups[0].reason if group.hold_ups else "unknown"


def _of_letters(survey: Survey) -> Iterator[tuple[str, list[_Sample]]]:
    found = survey.letters.by_type
    samples: list[_Sample] = [
        ((message_type or "(unknown)", reason or "(unknown)"), number)
        for message_type, reason, number in found[:_MAX_SERIES]
    ]
    if left := sum(number for _, _, number in found[_MAX_SERIES:]):
        samples.append(((_OTHERS, _OTHERS), left))
    if survey.letters.is_whole:
        samples = samples or [(("", ""), 0)]
        yield "dead_letter_oldest_timestamp_seconds", [((), (survey.letters.oldest_ms or 0) / 1000)]
    yield "dead_letters_open", samples


def _of_work(survey: Survey) -> Iterator[tuple[str, list[_Sample]]]:
    work = survey.work
    if work.unseen or work.error:
        return
    yield "open_processes", [((saga,), number) for saga, number in sorted(work.open.items())[:_MAX_SERIES]]
    yield "overdue_waits", [((), work.overdue)]
    yield "open_approvals", [((), work.approvals)]
    yield "approval_oldest_timestamp_seconds", [((), (work.oldest_approval_ms or 0) / 1000)]


def _of_agents(survey: Survey) -> Iterator[tuple[str, list[_Sample]]]:
    yield "agents", [((health,), sum(each.health == health for each in survey.agents)) for health in _HEALTH]
    yield "agents_stuck_workers", [((), sum(each.unwell for each in survey.agents))]
    yield "agents_lost_workers", [((), sum(each.lost for each in survey.agents))]
    size: DirectorySize = survey.directory
    yield "directory_agents", [((), size.agents)]
    yield "directory_instances", [((), size.instances)]
    yield "directory_refused", [((), size.refused)]
    yield "directory_dropped", [((), size.dropped)]
