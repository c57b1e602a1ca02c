"""The partitions a member holds, with their positions and the records fetched but not yet returned.

Owns positions, pauses and buffers, and the choice of the next records. Pure data: `subscription` directs the consumer
that fetches.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence

from aiokafka import TopicPartition

from bus.transports.base import HEADER_BYTES, Assignment, Record

__all__ = ["HeldPartition", "HeldPartitions"]

_AHEAD_RECORDS = 500
_AHEAD_BYTES = 16 * 1_048_576


class HeldPartition:
    """One assigned partition. *position* is None until the group's committed offset has been looked up."""

    __slots__ = (
        "assignment",
        "buffer",
        "buffered_bytes",
        "committed",
        "gap",
        "leaving",
        "location",
        "paused",
        "position",
        "version",
    )

    def __init__(self, assignment: Assignment) -> None:
        self.assignment = assignment
        self.location = TopicPartition(assignment.topic, assignment.partition)
        self.position: int | None = None
        self.committed = -1
        self.paused = False
        self.leaving = False
        self.buffer: deque[Record] = deque()
        self.buffered_bytes = 0
        self.gap = range(0)
        """The last offsets without records (transaction markers, aborted records), which no handler settles."""
        self.version = 0
        """Changes with each seek: records of a fetch that began before are not wanted any more."""

    def keep(self, records: Sequence[Record]) -> None:
        """Buffer fetched records until they are taken."""
        self.buffer.extend(records)
        self.buffered_bytes += sum(map(_size_of, records))

    def drop(self) -> None:
        """Discard the buffered records."""
        self.buffer.clear()
        self.buffered_bytes = 0

    @property
    def next_offset(self) -> int | None:
        """The offset at which fetching continues, behind the buffered records."""
        return self.buffer[-1].offset + 1 if self.buffer else self.position

    def pass_over(self, position: int) -> None:
        """Advance to *position* if nothing is buffered: there is no record before it."""
        if self.position is not None and not self.buffer and position > self.position:
            self.gap = range(self.gap.start if self.gap.stop == self.position else self.position, position)
            self.position = position

    def settled(self, offset: int) -> int:
        """Return the offset to commit once everything below *offset* is settled: behind the gap, if *offset* lies in
        it.
        """
        return self.gap.stop if offset in self.gap else offset

    @property
    def readable(self) -> bool:
        """Whether its records may be returned."""
        return not self.paused and not self.leaving


class HeldPartitions:
    """All partitions assigned to one member."""

    def __init__(self) -> None:
        self._by_assignment: dict[Assignment, HeldPartition] = {}
        self._by_location: dict[TopicPartition, HeldPartition] = {}
        self._turn = 0

    def __bool__(self) -> bool:
        return bool(self._by_assignment)

    def all(self) -> list[HeldPartition]:
        """Return the assigned partitions in order of arrival."""
        return list(self._by_assignment.values())

    def assignments(self) -> tuple[Assignment, ...]:
        """Return their assignments."""
        return tuple(self._by_assignment)

    def add(self, assignments: Iterable[Assignment]) -> list[HeldPartition]:
        """Add newly gained *assignments*."""
        added = [HeldPartition(assignment) for assignment in assignments]
        for owned in added:
            self._by_assignment[owned.assignment] = owned
            self._by_location[owned.location] = owned
        return added

    def drop(self, gone: Iterable[HeldPartition]) -> None:
        """Remove the partitions *gone*."""
        for owned in gone:
            self._by_assignment.pop(owned.assignment, None)
            if self._by_location.get(owned.location) is owned:
                del self._by_location[owned.location]

    def clear(self) -> None:
        """Remove all partitions."""
        self._by_assignment.clear()
        self._by_location.clear()

    def get(self, assignment: Assignment) -> HeldPartition | None:
        """Return the partition of exactly this assignment."""
        return self._by_assignment.get(assignment)

    def at(self, location: TopicPartition) -> HeldPartition | None:
        """Return the assigned partition at *location*."""
        return self._by_location.get(location)

    def held_among(self, assignments: Iterable[Assignment]) -> list[HeldPartition]:
        """Return those of *assignments* that are current."""
        return [self._by_assignment[assignment] for assignment in assignments if assignment in self._by_assignment]

    def versions(self) -> dict[TopicPartition, tuple[HeldPartition, int]]:
        """Return the partitions, with their versions, that a fetch starting now is for."""
        return {owned.location: (owned, owned.version) for owned in self._by_assignment.values()}

    def carried(self) -> dict[TopicPartition, tuple[int, bool] | None]:
        """Return where fetching continues in each partition after a rebalance, and whether at once.

        Invalidates the fetch in progress.
        """
        for owned in self._by_assignment.values():
            owned.version += 1
        return {
            owned.location: (owned.next_offset, owned.readable) if owned.next_offset is not None else None
            for owned in self._by_assignment.values()
        }

    @property
    def readable_share(self) -> float:
        """The buffered records that may be returned, as a share of the prefetch limit."""
        return _share(owned for owned in self._by_assignment.values() if owned.readable)

    @property
    def paused_share(self) -> float:
        """The buffered records of paused partitions, as a share of the prefetch limit."""
        return _share(owned for owned in self._by_assignment.values() if owned.paused)

    def take(self, max_records: int, max_bytes: int) -> list[Record]:
        """Return the next records, partitions taking turns; at least one if any is ready."""
        ready = [owned for owned in self._by_assignment.values() if owned.buffer and owned.readable]
        if not ready:
            return []
        self._turn += 1
        first = self._turn % len(ready)
        taken: list[Record] = []
        room = max_bytes
        for owned in ready[first:] + ready[:first]:
            buffer = owned.buffer
            while buffer and len(taken) < max_records:
                record = buffer[0]
                size = len(record.value or b"") + len(record.key or b"") + HEADER_BYTES * len(record.headers)
                if size > room and taken:
                    return taken
                room -= size
                taken.append(buffer.popleft())
                owned.buffered_bytes -= size
                owned.position = record.offset + 1
            if len(taken) >= max_records:
                break
        return taken


def _share(several: Iterable[HeldPartition]) -> float:
    records = size = 0
    for owned in several:
        records += len(owned.buffer)
        size += owned.buffered_bytes
    return max(records / _AHEAD_RECORDS, size / _AHEAD_BYTES)


def _size_of(record: Record) -> int:
    return len(record.value or b"") + len(record.key or b"") + HEADER_BYTES * len(record.headers)
