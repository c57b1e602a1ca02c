"""The start position of a group in each partition: its committed offset, checked against the offsets still in the log.

Owns looking up where a member starts, and reporting a committed offset that retention has deleted. The caller acts on
it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TypeAlias

import msgspec
from aiokafka import TopicPartition

from bus.errors import OffsetOutOfRangeError
from bus.transports.base import PartitionRange
from bus.transports.kafka.cluster.client import ClusterClient
from bus.transports.kafka.cluster.group_offsets import commits
from bus.transports.kafka.consumer.held_partitions import HeldPartition

__all__ = ["Position", "PositionLookup", "out_of_range", "start_positions"]


class Position(msgspec.Struct, frozen=True):
    """The *offset* at which reading starts.

    *committed* is -1 if the group has never committed; *fault* reports that records may be lost.
    """

    offset: int
    committed: int
    fault: OffsetOutOfRangeError | None = None


PositionLookup: TypeAlias = Callable[[Sequence[HeldPartition]], Awaitable[Mapping[TopicPartition, Position]]]
"""Looks up where the group continues in each partition, without those it may not read at the moment."""


async def start_positions(
    link: ClusterClient, group: str, locations: Sequence[TopicPartition]
) -> dict[TopicPartition, Position]:
    """Return where *group* continues in each of *locations*; raises the errors of `ClusterClient`."""
    committed_at = await commits(link, f"reading the commits of group {group!r}", group, locations)
    spans = await link.spans(locations)
    found = {}
    for location in locations:
        committed, span = committed_at.get(location, -1), spans[location]
        offset = span.start if committed < 0 else committed
        fault = None if span.start <= offset <= span.end else out_of_range(location, offset, span)
        found[location] = Position(offset, committed, fault)
    return found


def out_of_range(location: TopicPartition, offset: int, span: PartitionRange) -> OffsetOutOfRangeError:
    """Return the error for a committed *offset* outside the stored ones."""
    return OffsetOutOfRangeError(
        f"{location.topic} partition {location.partition}: offset {offset} is outside the stored offsets {span.start} "
        f"to {span.end}; the records between may be lost"
    )
