"""GroupState: the readers, the backlog and the hold-ups of one group, and the verdict on them. Pure but for reading
offsets.

A verdict rests on what the workers of the group say of themselves (`producers.directory.hold_ups`), on the age of the
first record that is not settled, and on whether commits move.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, Literal, TypeAlias

import msgspec

from bus.errors import TopicMissingError
from bus.topics.names import read_topic
from bus.transports.base import GroupInfo, PartitionRange, Transport
from producers.directory.hold_ups import HoldUp

__all__ = [
    "GroupState",
    "LagTrend",
    "dropped_out",
    "first_unsettled",
    "group_ranges",
    "state_of_group",
    "topics_of",
    "trend_of",
]

LagTrend: TypeAlias = Literal["", "grows", "shrinks", "steady"]
_TREND_SHARE: Final = 0.02
_TREND_RECORDS: Final = 3


class GroupState(msgspec.Struct, frozen=True, kw_only=True):
    """One group: its readers and its backlog."""

    name: str
    members: int
    lag: int
    """Stored records that are not settled."""
    worst: str
    """The topic in which most of them are; empty without lag."""
    still_s: float = 0.0
    """For how long records have waited here without a commit, as far as this surveyor has watched."""
    oldest_s: float | None = None
    """The age of the first record that is not settled, by the log's own time; None: none waits, or not looked at."""
    trend: LagTrend = ""
    """Whether the backlog grows, since the last look; empty: this is the first look."""
    hold_ups: tuple[HoldUp, ...] = ()
    """The messages for which others wait, as its workers say."""
    lost: int = 0
    """Its workers that fell silent or lost their sessions without a goodbye, where no other one of it is at work."""
    stands: int
    """Partitions whose next record was deleted: no worker reads them."""
    settled: int = 0
    """The sum of its committed offsets: its growth is what the group has settled."""
    appended: int = 0
    """The sum of the ends of its partitions: its growth is what came for the group."""

    @property
    def is_silent(self) -> bool:
        """Whether all of its workers dropped out so: they were killed, or a handler blocks the event loop of each.

        From outside both look alike: the log counts a member until its session ends, and not after that.
        """
        return 0 < self.lost >= self.members


def topics_of(info: GroupInfo) -> set[str]:
    """Return the topics that a group reads, or has read."""
    return {topic for locations in (info.committed, info.uncommitted, *info.members.values()) for topic, _ in locations}


async def group_ranges(
    transport: Transport, infos: Iterable[GroupInfo], namespace: str
) -> dict[tuple[str, int], PartitionRange]:
    """Return the stored offsets of each partition that *infos* read in *namespace*. Raises BusError."""
    ranges: dict[tuple[str, int], PartitionRange] = {}
    for topic in sorted({topic for info in infos for topic in topics_of(info)}):
        name = read_topic(topic)
        if name is None or name.namespace != namespace:
            continue
        try:
            found = await transport.admin.ranges(topic)
        except TopicMissingError:
            continue
        ranges |= {(topic, partition): retained for partition, retained in found.items()}
    return ranges


def state_of_group(
    info: GroupInfo,
    ranges: Mapping[tuple[str, int], PartitionRange],
    still_s: float = 0.0,
    *,
    oldest_s: float | None = None,
    lag_before: int | None = None,
    hold_ups: Sequence[HoldUp] = (),
    lost: int = 0,
) -> GroupState:
    """Return the progress of a group, from the stored offsets (`group_ranges`) and what else is known of it."""
    lags: dict[str, int] = {}
    stands = settled = appended = 0
    topics = topics_of(info)
    for location, retained in ranges.items():
        if location[0] not in topics:
            continue
        committed = info.committed.get(location)
        stands += committed is not None and not retained.start <= committed <= retained.end
        settled += retained.start if committed is None else committed
        appended += retained.end
        if not info.members and _is_of_runs(location[0]):
            continue
        lag = max(0, retained.end - max(retained.start, retained.start if committed is None else committed))
        lags[location[0]] = lags.get(location[0], 0) + lag
    total = sum(lags.values())
    worst = max(lags, key=lambda topic: lags[topic]) if total else ""
    return GroupState(
        name=info.name,
        members=len(info.members),
        lag=total,
        worst=worst,
        still_s=still_s if total else 0.0,
        lost=lost,
        stands=stands,
        settled=settled,
        appended=appended,
        oldest_s=oldest_s if total else None,
        trend=trend_of(lag_before, total),
        # A card is sent again only after a moment: what it names may be settled.
        hold_ups=tuple(each for each in hold_ups if info.committed.get((each.topic, each.partition), 0) <= each.offset),
    )


def _is_of_runs(topic: str) -> bool:
    """Return whether the messages of *topic* concern runs that are under way: where no worker is, none is.

    A cancelled task is cancelled for every group, whichever has it.
    """
    name = read_topic(topic)
    return name is not None and name.message_type == "task.cancel"


def first_unsettled(
    info: GroupInfo, ranges: Mapping[tuple[str, int], PartitionRange]
) -> Iterator[tuple[tuple[str, int], int]]:
    """Yield each partition of *info* with a backlog, and the first offset in it that is stored and not settled."""
    topics = topics_of(info)
    for location, retained in ranges.items():
        if location[0] in topics:
            at = max(retained.start, info.committed.get(location, retained.start))
            if at < retained.end:
                yield location, at


def dropped_out(info: GroupInfo, lost: Mapping[str, int], heard: Mapping[str, int]) -> int:
    """Return how many workers of a group are *lost*, by group, or were *heard* just now and have no session any more.

    A session may end sooner than a missing heartbeat shows.
    """
    return lost.get(info.name, 0) or (0 if info.members else heard.get(info.name, 0))


def trend_of(before: int | None, now: int) -> LagTrend:
    """Return where a backlog of *before* records goes that is *now* records."""
    if before is None:
        return ""
    least = max(_TREND_RECORDS, before * _TREND_SHARE)
    return "grows" if now - before >= least else "shrinks" if before - now >= least else "steady"
