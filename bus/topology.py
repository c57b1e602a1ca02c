"""Which topics an application needs, as specs computed from its types, groups and settings. Pure.

Owns partition counts and retention of every kind of topic (design section 4). Creating and comparing them is the transport's `Admin`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from bus.settings import Settings
from bus.topics import dead_letter_topic, message_topic, retry_topic
from bus.transports.base import Features, TopicSpec

__all__ = ["creates_topics", "group_topics", "message_topics", "reply_topics"]


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
    """The retry tiers of *group*, each with the dead letters of records that are unreadable there."""
    specs = []
    for delay in settings.retry.tiers:
        topic = retry_topic(settings.bus.namespace, group, delay)
        specs += [_live(settings, topic), _dead(settings, topic)]
    return specs


def reply_topics(settings: Settings, topics: Iterable[str]) -> Sequence[TopicSpec]:
    """Reply topics, by name: one partition each, kept as long as the longest lifetime."""
    kept_ms = round(settings.publish.max_ttl_s * 1000)
    return [TopicSpec(name=topic, partitions=1, retention_ms=kept_ms) for topic in topics]


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
