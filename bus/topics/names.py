"""Topic names (PROTOCOL.md section 6): build them, and parse a name into its purpose.

Owns the forms `<ns>.<type>`, `.dlq`, `_retry`, `_redrive`, `_reply`, `_mail`, `_deadletters`, and the topic-safe slugs
of agents and groups. Transports create topics; `bus.topics.specs` lists those an application needs.
"""

from __future__ import annotations

import re
from functools import lru_cache
from hashlib import sha256
from typing import Literal

import msgspec

from bus.errors import NameRefusedError
from bus.protocol.identifiers import MAX_NAMESPACE, is_message_type, is_namespace

__all__ = [
    "TopicName",
    "agent_slug",
    "check_group",
    "check_namespace",
    "consumer_group",
    "dead_letter_topic",
    "group_of_agent",
    "mailbox_topic",
    "message_topic",
    "own_topic",
    "read_topic",
    "redrive_topic",
    "reply_topic",
    "retry_topic",
]

TopicKind = Literal["message", "dlq", "retry", "redrive", "reply", "mail", "own"]

_HASH_DIGITS = 8
_MAX_SLUG = 64
_UNSAFE = re.compile(r"[^a-z0-9]+")


class TopicName(msgspec.Struct, frozen=True):
    """The purpose of a topic.

    *message_type* is set for messages and their dead letters, *group* and *delay* for a retry tier.
    """

    kind: TopicKind
    namespace: str
    message_type: str = ""
    group: str = ""
    delay: str = ""


def check_namespace(namespace: str) -> None:
    """Raise NameRefusedError unless *namespace* is one segment."""
    if not is_namespace(namespace):
        raise NameRefusedError(
            f"illegal namespace {namespace[:80]!r}: lower-case letters, digits and single hyphens, at most 63, letter "
            "first"
        )


def check_group(group: str) -> None:
    """Raise NameRefusedError unless *group* is one segment."""
    if not is_namespace(group):
        raise NameRefusedError(
            f"illegal group {group[:80]!r}: lower-case letters, digits and single hyphens, at most 63, letter first"
        )


def message_topic(namespace: str, message_type: str) -> str:
    """Return the topic of the messages of one type."""
    return f"{namespace}.{message_type}"


def dead_letter_topic(topic: str) -> str:
    """Return the topic of the dead letters of *topic*."""
    return f"{topic}.dlq"


def retry_topic(namespace: str, group: str, delay: str) -> str:
    """Return the topic of one fixed-delay tier of *group*; *delay* as in the settings (`30s`)."""
    return f"{namespace}._retry.{group}.{delay}"


def redrive_topic(namespace: str, group: str) -> str:
    """Return the topic of dead letters sent back to *group*."""
    return f"{namespace}._redrive.{group}"


def mailbox_topic(namespace: str, group: str) -> str:
    """Return the topic of messages to *group* itself: answers to its processes, and its own waits."""
    return f"{namespace}._mail.{group}"


def reply_topic(namespace: str, agent_id: str) -> str:
    """Return the topic of replies to one agent, shared by its instances."""
    return f"{namespace}._reply.{agent_slug(agent_id)}"


def own_topic(namespace: str, name: Literal["_deadletters", "_registry", "_audit", "_directory", "_heartbeats"]) -> str:
    """Return one of the bus's own topics, which exist once per namespace."""
    return f"{namespace}.{name}"


def consumer_group(namespace: str, group: str) -> str:
    """Return the log's name for *group* of *namespace*."""
    return f"{namespace}.{group}"


@lru_cache(maxsize=1024)
def agent_slug(agent_id: str, *, length: int = _MAX_SLUG) -> str:
    """Return a topic-safe slug of *agent_id* with 8 hex digits of its hash.

    The hash keeps ids apart whose readable parts are equal.
    """
    readable = _UNSAFE.sub("-", agent_id.lower()).strip("-")[:length].rstrip("-") or "agent"
    return f"{readable}-{sha256(agent_id.encode()).hexdigest()[:_HASH_DIGITS]}"


def group_of_agent(agent_id: str) -> str:
    """Return the default group of an agent: its slug, as one segment."""
    slug = agent_slug(agent_id, length=MAX_NAMESPACE - _HASH_DIGITS - 3)
    return slug if slug[0].isalpha() else f"a-{slug}"


@lru_cache(maxsize=4096)
def read_topic(name: str) -> TopicName | None:
    """Parse a topic name; return None if it does not belong to the bus."""
    namespace, _, rest = name.partition(".")
    if not is_namespace(namespace) or not rest:
        return None
    if rest.startswith("_"):
        return _read_own(namespace, rest)
    if rest.endswith(".dlq"):
        origin = rest.removesuffix(".dlq")
        return TopicName("dlq", namespace, origin) if is_message_type(origin) else None
    return TopicName("message", namespace, rest) if is_message_type(rest) else None


def _read_own(namespace: str, rest: str) -> TopicName | None:
    match rest.split("."):
        case ["_retry", group, delay]:
            return TopicName("retry", namespace, group=group, delay=delay)
        case ["_redrive", group]:
            return TopicName("redrive", namespace, group=group)
        case ["_reply", _]:
            return TopicName("reply", namespace)
        case ["_mail", group]:
            return TopicName("mail", namespace, group=group)
        case ["_deadletters" | "_registry" | "_audit" | "_directory" | "_heartbeats"]:
            return TopicName("own", namespace)
        case [*origin, "dlq"]:
            # Dead letters of the bus's own topics, such as an unreadable record in a retry tier.
            return TopicName("dlq", namespace, ".".join(origin))
    return None
