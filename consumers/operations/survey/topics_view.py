"""The topics of a namespace judged without its apps: kept long enough, and read by somebody.

What a topic is for is in its name, and with that how long its records must be kept.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final

import msgspec

from bus.errors import BusError, NotPermittedError
from bus.settings.schema import Settings
from bus.topics.names import read_topic
from bus.topics.specs import spec_of_topic
from bus.transports.base import Change, PartitionRange, Transport
from bus.transports.topic_settings import CLEANUP, INSYNC, RETENTION_BYTES, RETENTION_MS

__all__ = ["TopicsView", "UnreadTopic", "harmful", "look_at_topics"]

_MATTER: Final = frozenset({RETENTION_MS, RETENTION_BYTES, CLEANUP, INSYNC})
_FOR_PEOPLE: Final = frozenset(
    {"approval.closed", "approval.request", "error.reported", "status.update", "task.cancel", "usage.reported"}
)
"""Types that the bus itself sends, to whom it may concern: nobody has to read them."""


class UnreadTopic(msgspec.Struct, frozen=True, kw_only=True):
    """A message type with records and no group that reads it."""

    topic: str
    records: int


class TopicsView(msgspec.Struct, frozen=True, kw_only=True):
    """What was found of the topics of a namespace."""

    looked_ms: int
    topics: int
    """How many were judged."""
    changes: tuple[Change, ...] = ()
    """What differs from what their kind needs, and harms."""
    unread: tuple[UnreadTopic, ...] = ()
    error: str = ""
    """Why their settings were not looked at."""


async def look_at_topics(
    transport: Transport, settings: Settings, existing: Iterable[str], read: Collection[str], now_ms: int
) -> TopicsView:
    """Judge the topics *existing* in the namespace of *settings*; groups read those in *read*. Raises BusError."""
    own = sorted(
        topic
        for topic in existing
        if (name := read_topic(topic)) is not None and name.namespace == settings.bus.namespace
    )
    specs = [spec for topic in own if (spec := spec_of_topic(settings, topic)) is not None]
    changes, error = list[Change](), ""
    try:
        changes = harmful(await transport.admin.plan(specs))
    except NotPermittedError as refusal:
        # Whoever may read a topic may not always read its settings.
        error = str(refusal)
    unread = []
    for topic in own:
        name = read_topic(topic)
        if name is None or name.kind != "message" or topic in read or name.message_type in _FOR_PEOPLE:
            continue
        if records := await _records(transport, topic):
            unread.append(UnreadTopic(topic=topic, records=records))
    unread.sort(key=lambda each: -each.records)
    return TopicsView(looked_ms=now_ms, topics=len(specs), changes=tuple(changes), unread=tuple(unread), error=error)


async def _records(transport: Transport, topic: str) -> int:
    ranges: Mapping[int, PartitionRange] = {}
    try:
        ranges = await transport.admin.ranges(topic)
    except BusError:
        return 0
    return sum(retained.end - retained.start for retained in ranges.values())


def harmful(changes: Sequence[Change]) -> list[Change]:
    """Return those of *changes* without which records are lost or cannot be written. Pure.

    Records that are kept longer than needed, or lie in more partitions, harm nobody.
    """
    return [change for change in changes if _harms(change)]


def _harms(change: Change) -> bool:
    if change.setting not in _MATTER or change.found is None:
        return False
    if change.setting in (RETENTION_MS, RETENTION_BYTES):
        found, wanted = int(change.found), int(change.wanted)
        return found >= 0 and (wanted < 0 or found < wanted)
    return True
