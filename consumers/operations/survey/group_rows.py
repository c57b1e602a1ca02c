"""The partitions of consumer groups: owner, committed offset, lag, and what retention deleted before it was read. Pure.

`consumers.operations.survey.survey` reads groups and ranges.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import msgspec

from bus.telemetry.terminal import printable
from bus.transports.base import GroupInfo, PartitionRange
from consumers.operations.survey.group_state import topics_of

__all__ = ["GroupPartition", "GroupSummary", "LostPartition", "group_partitions", "lost_notes", "lost_partitions"]


class GroupPartition(msgspec.Struct, frozen=True, kw_only=True):
    """One partition of one group; *lag* counts stored records that are not settled."""

    group: str
    topic: str
    partition: int
    owner: str | None
    committed: int | None
    start: int
    end: int
    lag: int


class LostPartition(msgspec.Struct, frozen=True, kw_only=True):
    """A partition whose committed offset was deleted; *start* is the oldest stored offset."""

    group: str
    topic: str
    partition: int
    committed: int
    start: int
    end: int


def group_partitions(info: GroupInfo, ranges: Mapping[tuple[str, int], PartitionRange]) -> Iterator[GroupPartition]:
    """Yield the partitions that *info* reads, with or without a commit."""
    owners = {location: member for member, locations in info.members.items() for location in locations}
    topics = topics_of(info)
    # Include partitions without a commit: their records are not settled either.
    for topic, partition in sorted(location for location in ranges if location[0] in topics):
        retained, committed = ranges[topic, partition], info.committed.get((topic, partition))
        lag = retained.end - max(retained.start, retained.start if committed is None else committed)
        yield GroupPartition(
            group=info.name,
            topic=topic,
            partition=partition,
            owner=owners.get((topic, partition)),
            committed=committed,
            start=retained.start,
            end=retained.end,
            lag=max(0, lag),
        )


def lost_partitions(info: GroupInfo, ranges: Mapping[tuple[str, int], PartitionRange]) -> Iterator[LostPartition]:
    """Yield the partitions in which retention deleted the next records of *info*."""
    for (topic, partition), committed in sorted(info.committed.items()):
        retained = ranges.get((topic, partition))
        if retained is not None and not retained.start <= committed <= retained.end:
            yield LostPartition(
                group=info.name,
                topic=topic,
                partition=partition,
                committed=committed,
                start=retained.start,
                end=retained.end,
            )


class GroupSummary(msgspec.Struct, frozen=True, kw_only=True):
    """One group: its running workers, and how many stored records it has not finished."""

    group: str
    workers: int
    partitions: int
    lag: int
    most_behind: str
    """The topic with the largest lag."""
    lost_partitions: int
    """Partitions in which retention deleted the next records."""


def lost_notes(name: str, lost: Sequence[LostPartition]) -> list[str]:
    """Return a warning for a group whose next records were deleted, which its lag does not show."""
    if not lost:
        return []
    first = lost[0]
    warning = (
        f"warning: {printable(name)} cannot continue in {len(lost)} partitions: retention deleted its next records, "
        f"as in {first.topic}/{first.partition} (committed {first.committed}, stored {first.start} to {first.end}). "
        f"`sealbus group skip-lost {printable(name)}`"
    )
    return [warning]
