"""Findings: where a log differs from what an app needs. Pure except for `read_left_tiers`.

Owns which differences matter, and their sentences. `bus.transports.topic_settings` compares topics, the transport's
admin reads them, `consumers.cli.topic` prints.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Final, Literal, NamedTuple

import msgspec

from bus.errors import NotPermittedError, TopicMissingError
from bus.settings import durations
from bus.settings.schema import Settings
from bus.topics.names import read_topic
from bus.topics.namespace_groups import NamespaceGroups
from bus.topics.specs import shortest_retention_s
from bus.transports.base import Admin, Change
from bus.transports.topic_settings import PARTITIONS, REPLICAS, RETENTION_BYTES, RETENTION_MS

__all__ = [
    "LeftTier",
    "TopicChange",
    "TopicFinding",
    "TopicRow",
    "change_rows",
    "changes_by_topic",
    "changes_on_one_line",
    "cost_of",
    "detail",
    "duration_text",
    "of_brokers",
    "of_changes",
    "of_settings",
    "of_tiers",
    "read_left_tiers",
    "warnings_of",
]

_AUTO_CREATE: Final = "auto.create.topics.enable"
_OFFSETS_KEPT: Final = "offsets.retention.minutes"


class TopicFinding(NamedTuple):
    """A difference from what is needed; a hint does not count as one.

    *topic* None: it concerns the settings or the brokers.
    """

    severity: Literal["error", "hint"]
    topic: str | None
    setting: str
    found: str | None
    wanted: str | None
    detail: str
    advice: str


class LeftTier(NamedTuple):
    """A group's retry tier that is no longer in the settings. *waiting* None: the group's offsets may not be read."""

    topic: str
    group: str
    records: int
    waiting: int | None


def changes_by_topic(changes: Iterable[Change]) -> Iterator[tuple[str, list[Change]]]:
    """Group consecutive changes by topic."""
    return ((topic, list(items)) for topic, items in groupby(changes, lambda change: change.topic))


def detail(change: Change) -> str:
    """Describe a change: `4 -> 6 partitions`."""
    if change.found is None:
        return _worded(change.setting, change.wanted)
    found, wanted = _value(change.setting, change.found), _value(change.setting, change.wanted)
    return _phrase(change.setting).format(f"{found} -> {wanted}")


def duration_text(ms: int | None) -> str:
    """Describe a retention."""
    if ms is None or ms < 0:
        return "for ever"
    # Kafka's numbers exceed what a float of seconds holds exactly.
    return durations.duration_words(ms / 1000) if round(ms / 1000 * 1000) == ms else f"{ms}ms"


def of_changes(changes: Iterable[Change], target: str) -> list[TopicFinding]:
    """Return the findings of *changes*; a missing topic is one finding, however many settings it needs."""
    apply = f"sealbus topic apply {target}".rstrip()
    found: list[TopicFinding] = []
    for topic, items in changes_by_topic(changes):
        if items[0].found is None:
            found.append(
                TopicFinding("error", topic, "topic", None, None, f"missing: {'; '.join(map(detail, items))}", apply)
            )
            continue
        for change in items:
            advice = change.note if change.by_hand else f"{apply} ({change.note})" if change.note else apply
            found.append(
                TopicFinding("error", topic, change.setting, change.found, change.wanted, detail(change), advice)
            )
    return found


def of_settings(settings: Settings) -> list[TopicFinding]:
    """Return the findings about the settings, which concern no topic."""
    needed_s, given_s = shortest_retention_s(settings), settings.topics.retention_s
    if given_s >= needed_s:
        return []
    provided, needed = (duration_text(round(value * 1000)) for value in (given_s, needed_s))
    lifetime = duration_text(round(settings.publish.max_ttl_s * 1000))
    text = f"records are kept {provided}, messages live up to {lifetime} and may be retried for days after"
    return [
        TopicFinding(
            "error", None, "topics.retention_s", provided, needed, text, f"set topics.retention_s to {needed} or more"
        )
    ]


def of_brokers(brokers: Mapping[str, Mapping[str, str]], settings: Settings) -> list[TopicFinding]:
    """Return the findings about broker settings, which no topic can override."""
    found = []
    creating = [name for name, values in brokers.items() if values.get(_AUTO_CREATE) == "true"]
    if creating:
        text = f"on {_listed(creating)} a mistyped name becomes a topic"
        found.append(
            TopicFinding("error", None, _AUTO_CREATE, "true", "false", text, f"set {_AUTO_CREATE}=false on the brokers")
        )
    needed = round(max(settings.topics.retention_s, shortest_retention_s(settings)) / 60)
    kept_for = {name: int(values[_OFFSETS_KEPT]) for name, values in brokers.items() if _OFFSETS_KEPT in values}
    short = {name: minutes for name, minutes in kept_for.items() if minutes < needed}
    if short:
        shortest = min(short.values())
        text = (
            f"on {_listed(short)} a stopped group's offsets are forgotten after {duration_text(shortest * 60_000)}, "
            "before its records are gone"
        )
        advice = f"set {_OFFSETS_KEPT}={needed} or more on the brokers"
        found.append(TopicFinding("error", None, _OFFSETS_KEPT, str(shortest), str(needed), text, advice))
    return found


def of_tiers(tiers: Iterable[LeftTier]) -> list[TopicFinding]:
    """Return one finding for each left-over tier: it must be empty."""
    return [_of_tier(tier) for tier in tiers]


async def read_left_tiers(admin: Admin, settings: Settings, group: str) -> list[LeftTier]:
    """Return the existing tiers of *group* that are not in the settings."""
    left = [topic for topic in sorted(await admin.topics()) if _is_left(topic, settings, group)]
    if not left:
        return []
    try:
        committed: Mapping[tuple[str, int], int] | None = await NamespaceGroups(
            admin, settings.bus.namespace
        ).committed(group)
    except NotPermittedError:
        committed = None
    tiers = []
    for topic in left:
        try:
            ranges = await admin.ranges(topic)
        except TopicMissingError:
            continue
        records = sum(span.end - span.start for span in ranges.values())
        waiting = None
        if committed is not None:
            waiting = sum(
                span.end - min(span.end, max(span.start, committed.get((topic, number), 0)))
                for number, span in ranges.items()
            )
        tiers.append(LeftTier(topic, group, records, waiting))
    return tiers


def _of_tier(tier: LeftTier) -> TopicFinding:
    name = read_topic(tier.topic)
    delay = name.delay if name is not None else tier.topic
    if tier.waiting or (tier.waiting is None and tier.records):
        what = f"still has {tier.waiting} records waiting for group {tier.group}"
        if tier.waiting is None:
            what = (
                f"has {tier.records} records, and this user may not see how far group {tier.group} is "
                "(needed: Describe on the group)"
            )
        text = f"{what}: keep the tier until it is drained"
        return TopicFinding(
            "error",
            tier.topic,
            "retry.tiers",
            delay,
            None,
            text,
            f"put {delay} back into retry.tiers, and run workers until it is drained",
        )
    text = f"no tier of group {tier.group} any more, and nothing waits in it"
    return TopicFinding("hint", tier.topic, "retry.tiers", delay, None, text, "it may be deleted")


def _is_left(topic: str, settings: Settings, group: str) -> bool:
    name = read_topic(topic)
    if name is None or name.kind != "retry":
        return False
    return (name.namespace, name.group) == (settings.bus.namespace, group) and name.delay not in settings.retry.tiers


def _worded(setting: str, value: str) -> str:
    return _phrase(setting).format(_value(setting, value))


def _phrase(setting: str) -> str:
    known = {PARTITIONS: "{} partitions", REPLICAS: "{} replicas", RETENTION_MS: "kept {}", RETENTION_BYTES: "{}"}
    return known.get(setting, f"{setting} {{}}")


def _value(setting: str, value: str) -> str:
    if setting == RETENTION_MS:
        return duration_text(int(value))
    if setting == RETENTION_BYTES:
        return "any size" if int(value) < 0 else f"{value} bytes per partition"
    return value


def _listed(brokers: Iterable[str]) -> str:
    names: Sequence[str] = sorted(brokers, key=lambda name: (len(name), name))
    return f"broker{'s' if len(names) > 1 else ''} {', '.join(names)}"


class TopicRow(msgspec.Struct, frozen=True, kw_only=True):
    """One topic; *retention_ms* None keeps records for ever."""

    topic: str
    kind: str
    partitions: int
    retention_ms: int | None
    records: int


class TopicChange(msgspec.Struct, frozen=True, kw_only=True):
    """One setting of a topic that is created or changed."""

    topic: str
    change: str
    """create or change."""
    setting: str
    found: str | None
    wanted: str
    detail: str


def change_rows(changes: Iterable[Change]) -> list[TopicChange]:
    """Return a row for each setting of each topic that is created or changed."""
    return [
        TopicChange(
            topic=change.topic,
            change="create" if change.found is None else "change",
            setting=change.setting,
            found=change.found,
            wanted=change.wanted,
            detail=detail(change),
        )
        for change in changes
    ]


def changes_on_one_line(rows: Sequence[TopicChange]) -> list[TopicChange]:
    """Return one row per topic, with all its details."""
    found: dict[str, TopicChange] = {}
    for row in rows:
        known = found.get(row.topic)
        found[row.topic] = (
            row if known is None else msgspec.structs.replace(known, detail=f"{known.detail}; {row.detail}")
        )
    return list(found.values())


def cost_of(plan: Sequence[Change]) -> Iterator[str]:
    """Yield what new topics cost the brokers, before they are created."""
    new: dict[str, dict[str, str]] = {}
    for change in plan:
        if change.found is None:
            new.setdefault(change.topic, {})[change.setting] = change.wanted
    if new:
        partitions = sum(int(wanted["partitions"]) for wanted in new.values())
        replicas = sum(int(wanted["partitions"]) * int(wanted.get("replicas", "1")) for wanted in new.values())
        copies = f", {replicas} with their replicas" if replicas > partitions else ""
        yield f"{len(new)} topics are new: {partitions} partitions{copies}"


def warnings_of(plan: Sequence[Change]) -> Iterator[str]:
    """Yield one line per warning, with its topics."""
    topics_by_note: dict[str, list[str]] = {}
    for change in plan:
        if change.note:
            topics_by_note.setdefault(f"{detail(change)}: {change.note}", []).append(change.topic)
    for note, names in topics_by_note.items():
        yield f"warning: {', '.join(names)}: {note}"
