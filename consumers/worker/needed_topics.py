"""Needed topics: every topic that an app and the bus's own sagas in it may read or append to. Pure.

This list is used by `topics apply`, the check of a starting worker, `doctor`, and workers that create topics on the
embedded log. `bus.trust.policy.acls` computes the same for a policy. The specs are in `bus.topics.specs`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from bus.settings.schema import Settings
from bus.topics.names import read_topic, reply_topic
from bus.topics.specs import group_topics, message_topics, namespace_topics, reply_topics
from bus.transports.base import TopicSpec
from consumers.delivery.declaration import Declaration

__all__ = ["missing_topics", "needed_topics", "used_topics"]


def needed_topics(settings: Settings, declared: Declaration) -> Sequence[TopicSpec]:
    """Return the specs of all topics that a worker of *declared* may read or append to."""
    return [
        *message_topics(settings, sorted(declared.topic_types)),
        *group_topics(settings, declared.group, has_mailbox=declared.has_mailbox),
        *reply_topics(settings, [reply_topic(settings.bus.namespace, declared.agent_id)]),
        *namespace_topics(settings),
    ]


def used_topics(settings: Settings, declared: Declaration) -> Sequence[TopicSpec]:
    """Return the topics that a worker of *declared* itself reads or appends to, without dead-letter topics of other
    handlers.

    Agents whose rights come only from the policy have no access to those.
    """
    return [
        spec
        for spec in needed_topics(settings, declared)
        if (name := read_topic(spec.name)) is None
        or name.kind != "dlq"
        or not name.message_type
        or name.message_type.startswith("_")
        or name.message_type in declared.subscriptions
    ]


def missing_topics(needed: Sequence[TopicSpec], existing: Mapping[str, TopicSpec]) -> list[str]:
    """Return the names of those of *needed* that are not among the *existing* topics, in order."""
    return sorted(spec.name for spec in needed if spec.name not in existing)
