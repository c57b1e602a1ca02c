"""Which topics an application needs, as specs computed from its types, groups and settings; and how what is differs from that. Pure.

Owns partition counts and retention of every kind of topic (design section 4), and the one comparison of found with wanted. Reading what is and
carrying out a change is the transport's `Admin`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from bus.settings import Settings
from bus.topics import dead_letter_topic, message_topic, own_topic, redrive_topic, retry_topic
from bus.transports.base import Change, Features, TopicSpec

__all__ = [
    "CLEANUP",
    "INSYNC",
    "MAX_BATCH",
    "PARTITIONS",
    "REPLICAS",
    "RETENTION_BYTES",
    "RETENTION_MS",
    "compared",
    "creates_topics",
    "group_topics",
    "message_topics",
    "namespace_topics",
    "reply_topics",
    "settings_of",
    "shortest_retention_s",
]

PARTITIONS: Final = "partitions"
REPLICAS: Final = "replicas"
CLEANUP: Final = "cleanup.policy"
INSYNC: Final = "min.insync.replicas"
MAX_BATCH: Final = "max.message.bytes"
RETENTION_MS: Final = "retention.ms"
RETENTION_BYTES: Final = "retention.bytes"

_RETRY_HORIZON_S: Final = 7 * 86_400.0
# Logs delete by whole segments: a letter may stay for a while after its time.
_STATES_OUTLIVE: Final = 2
# More of these than is wanted does no harm.
_AT_LEAST: Final = frozenset({PARTITIONS, REPLICAS, INSYNC, MAX_BATCH})
_GROWS: Final = "keys move between partitions: their order holds again once what is in the topic now has been handled"
_SHRINKS: Final = "records beyond the new limit will be deleted"
_REASSIGN: Final = "not done here: give its partitions more replicas with Kafka's own kafka-reassign-partitions"


def creates_topics(settings: Settings, features: Features) -> bool:
    """Whether workers and publishers create their topics themselves (`topics.create`)."""
    return features.creates_topics_at_start if settings.topics.create == "auto" else settings.topics.create


def message_topics(settings: Settings, message_types: Iterable[str]) -> Sequence[TopicSpec]:
    """For each message type its topic and the topic of its dead letters."""
    specs = []
    for message_type in message_types:
        topic = message_topic(settings.bus.namespace, message_type)
        specs += [_live(settings, topic), _dead(settings, topic)]
    return specs


def group_topics(settings: Settings, group: str) -> Sequence[TopicSpec]:
    """The retry tiers of *group* and what is sent back to it, each with the dead letters of records that are unreadable there."""
    namespace = settings.bus.namespace
    topics = [*(retry_topic(namespace, group, delay) for delay in settings.retry.tiers), redrive_topic(namespace, group)]
    return [spec for topic in topics for spec in (_live(settings, topic), _dead(settings, topic))]


def namespace_topics(settings: Settings) -> Sequence[TopicSpec]:
    """What the namespace has once: the states of its dead letters, which outlive the letters, and the journal, which is kept."""
    namespace = settings.bus.namespace
    kept_ms = round(settings.topics.deadletter_retention_s * _STATES_OUTLIVE * 1000)
    return [
        TopicSpec(name=own_topic(namespace, "_deadletters"), partitions=1, retention_ms=kept_ms, compacted=True),
        TopicSpec(name=own_topic(namespace, "_audit"), partitions=1),
    ]


def reply_topics(settings: Settings, topics: Iterable[str]) -> Sequence[TopicSpec]:
    """Reply topics, by name: one partition each, kept as long as the longest lifetime."""
    kept_ms = round(settings.publish.max_ttl_s * 1000)
    return [TopicSpec(name=topic, partitions=1, retention_ms=kept_ms) for topic in topics]


def shortest_retention_s(settings: Settings) -> float:
    """How long records must be kept: while a message lives, and while it may still be retried or sent back after that."""
    return settings.publish.max_ttl_s + _RETRY_HORIZON_S


def settings_of(spec: TopicSpec) -> dict[str, str]:
    """A spec in Kafka's words."""
    policy = "delete"
    if spec.compacted:
        policy = "compact" if spec.retention_ms is None and spec.retention_bytes is None else "compact,delete"
    return {
        PARTITIONS: str(spec.partitions),
        CLEANUP: policy,
        RETENTION_MS: str(-1 if spec.retention_ms is None else spec.retention_ms),
        RETENTION_BYTES: str(-1 if spec.retention_bytes is None else spec.retention_bytes),
    }


def compared(topic: str, found: Mapping[str, str] | None, wanted: Mapping[str, str]) -> list[Change]:
    """What must become of *topic*, which is as *found* (None: missing), for it to be as *wanted*. What is not in *wanted* is not looked at."""
    if found is None:
        return [Change(topic=topic, setting=setting, found=None, wanted=value) for setting, value in wanted.items()]
    return [
        Change(
            topic=topic,
            setting=setting,
            found=found[setting],
            wanted=value,
            note=_note(setting, found[setting], value),
            by_hand=setting == REPLICAS,
        )
        for setting, value in wanted.items()
        if not _is_met(setting, found, value)
    ]


def _is_met(setting: str, found: Mapping[str, str], wanted: str) -> bool:
    have = found[setting]
    if setting == CLEANUP:
        return set(have.split(",")) == set(wanted.split(","))
    if setting == INSYNC and int(have) > int(found.get(REPLICAS, have)):
        # More than there can ever be in sync: nothing could be written.
        return False
    return int(have) >= int(wanted) if setting in _AT_LEAST else have == wanted


def _note(setting: str, found: str, wanted: str) -> str:
    if setting == PARTITIONS:
        return _GROWS
    if setting == REPLICAS:
        return _REASSIGN
    if setting in (RETENTION_MS, RETENTION_BYTES):
        return _SHRINKS if int(wanted) >= 0 and not 0 <= int(found) < int(wanted) else ""
    return ""


def _live(settings: Settings, topic: str) -> TopicSpec:
    return TopicSpec(
        name=topic,
        partitions=settings.topics.partitions,
        retention_ms=round(settings.topics.retention_s * 1000),
        retention_bytes=settings.topics.retention_bytes or None,
    )


def _dead(settings: Settings, topic: str) -> TopicSpec:
    return TopicSpec(
        name=dead_letter_topic(topic),
        partitions=settings.topics.partitions,
        retention_ms=round(settings.topics.deadletter_retention_s * 1000),
    )
