"""The topics an application needs, as specs computed from its types, groups and settings. Pure.

Owns partition counts and retention of every kind of topic. `bus.transports.topic_settings` compares found topics with
specs; the transport's `Admin` reads topics and carries out changes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from bus.settings.schema import Settings
from bus.topics.names import (
    dead_letter_topic,
    mailbox_topic,
    message_topic,
    own_topic,
    read_topic,
    redrive_topic,
    retry_topic,
)
from bus.transports.base import Features, TopicSpec

__all__ = [
    "APPROVAL_TYPES",
    "CANCEL_TYPE",
    "creates_topics",
    "directory_topics",
    "group_topics",
    "message_topics",
    "namespace_topics",
    "reply_topics",
    "shortest_retention_s",
    "spec_of_topic",
]


APPROVAL_TYPES: Final = ("approval.closed", "approval.request", "status.update")
"""The types whose topics a group with approvals sends to."""
CANCEL_TYPE: Final = "task.cancel"
"""The type with which a requester cancels a task; every group with handlers follows its topic."""
_HEARTBEATS_MS: Final = 600_000
_RETRY_HORIZON_S: Final = 7 * 86_400.0
# Logs delete whole segments: a dead letter may outlive its retention.
_STATES_OUTLIVE: Final = 2


def creates_topics(settings: Settings, features: Features) -> bool:
    """Tell whether workers and publishers create their topics themselves (`topics.create`)."""
    return features.creates_topics_at_start if settings.topics.create == "auto" else settings.topics.create


def message_topics(settings: Settings, message_types: Iterable[str]) -> Sequence[TopicSpec]:
    """Return, for each message type, the specs of its topic and its dead-letter topic."""
    specs = []
    for message_type in message_types:
        topic = message_topic(settings.bus.namespace, message_type)
        specs += [_live(settings, topic), _dead(settings, topic)]
    return specs


def group_topics(settings: Settings, group: str, *, has_mailbox: bool = False) -> Sequence[TopicSpec]:
    """Return the specs of the retry tiers and the redrive topic of *group*, and of its mailbox where it has one.

    Each has a dead-letter topic for records that are unreadable there. All have one partition: what waits, comes back
    or is due is little beside what is handled.
    """
    namespace = settings.bus.namespace
    topics = [
        *(retry_topic(namespace, group, delay) for delay in settings.retry.tiers),
        redrive_topic(namespace, group),
        *([mailbox_topic(namespace, group)] if has_mailbox else []),
    ]
    return [
        spec
        for topic in topics
        for spec in (msgspec.structs.replace(_live(settings, topic), partitions=1), _dead(settings, topic))
    ]


def namespace_topics(settings: Settings) -> Sequence[TopicSpec]:
    """Return the specs of topics that a namespace has once: dead-letter states, the operators' journal, and agents'
    presence.

    The states outlive the dead letters; the journal has no retention limit. Cards are compacted. Heartbeats are kept
    for ten minutes and not compacted, because Kafka does not compact the segment it still writes.
    """
    namespace = settings.bus.namespace
    kept_ms = round(settings.topics.deadletter_retention_s * _STATES_OUTLIVE * 1000)
    return [
        TopicSpec(name=own_topic(namespace, "_deadletters"), partitions=1, retention_ms=kept_ms, compacted=True),
        TopicSpec(name=own_topic(namespace, "_audit"), partitions=1),
        *directory_topics(settings),
    ]


def directory_topics(settings: Settings) -> Sequence[TopicSpec]:
    """Return the specs of the topics of agents' cards and heartbeats."""
    namespace = settings.bus.namespace
    return [
        TopicSpec(name=own_topic(namespace, "_directory"), partitions=1, compacted=True),
        TopicSpec(name=own_topic(namespace, "_heartbeats"), partitions=1, retention_ms=_HEARTBEATS_MS),
    ]


def reply_topics(settings: Settings, topics: Iterable[str]) -> Sequence[TopicSpec]:
    """Return the specs of reply topics by name: one partition each, retained for the longest message lifetime."""
    kept_ms = round(settings.publish.max_ttl_s * 1000)
    return [TopicSpec(name=topic, partitions=1, retention_ms=kept_ms) for topic in topics]


def spec_of_topic(settings: Settings, topic: str) -> TopicSpec | None:
    """Return the spec of the existing *topic* by what its name says it is for; None where it says nothing."""
    name = read_topic(topic)
    if name is None:
        return None
    match name.kind:
        case "dlq":
            return _dead(settings, topic.removesuffix(".dlq"))
        case "message":
            return _live(settings, topic)
        case "retry" | "redrive" | "mail":
            return msgspec.structs.replace(_live(settings, topic), partitions=1)
        case "reply":
            return reply_topics(settings, [topic])[0]
        case "own":
            return next((spec for spec in namespace_topics(settings) if spec.name == topic), None)


def shortest_retention_s(settings: Settings) -> float:
    """Return how long records must be kept, in seconds.

    That is a message's lifetime, and the time in which it may still be retried or redriven afterwards.
    """
    return settings.publish.max_ttl_s + _RETRY_HORIZON_S


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
        partitions=1,
        retention_ms=round(settings.topics.deadletter_retention_s * 1000),
    )
