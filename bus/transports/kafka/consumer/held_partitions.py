"""The partitions a member holds: where each stands, and what has been fetched of it and not yet been asked for.

Owns positions, pauses and buffers, and the choice of the next records. Pure data: the consumer that fetches is told by
`subscription`.
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
    """One partition held. *position* is None until the group's commit has been looked up."""

    __slots__ = (
        "assignment",
        "buffer",
        "buffered_bytes",
        "committed",
        "gap",
        "leaving",
        "paused",
        "place",
        "position",
        "version",
    )

    def __init__(self, assignment: Assignment) -> None:
        self.assignment = assignment
        self.place = TopicPartition(assignment.topic, assignment.partition)
        self.position: int | None = None
        self.committed = -1
        self.paused = False
        self.leaving = False
        self.buffer: deque[Record] = deque()
        self.buffered_bytes = 0
        self.gap = range(0)
        """The last offsets that are no records: markers of transactions, what was aborted. Nobody settles them."""
        self.version = 0
        """Changes with each seek: what was fetched before it is not what is wanted now."""

    def keep(self, records: Sequence[Record]) -> None:
        """What was fetched, until it is asked for."""
        self.buffer.extend(records)
        self.buffered_bytes += sum(map(_size_of, records))

    def drop(self) -> None:
        """What lies here is not wanted any more."""
        self.buffer.clear()
        self.buffered_bytes = 0

    @property
    def next_offset(self) -> int | None:
        """Where fetching goes on: behind what lies here already."""
        return self.buffer[-1].offset + 1 if self.buffer else self.position

    def pass_over(self, position: int) -> None:
        """Fetching stands at *position*, and nothing lies here: before that there is no record."""
        if self.position is not None and not self.buffer and position > self.position:
            self.gap = range(self.gap.start if self.gap.stop == self.position else self.position, position)
            self.position = position

    def settled(self, offset: int) -> int:
        """What may be committed where all below *offset* is settled."""
        return self.gap.stop if offset in self.gap else offset

    @property
    def readable(self) -> bool:
        """Whether its records may be handed out."""
        return not self.paused and not self.leaving


class HeldPartitions:
    """All of one member."""

    def __init__(self) -> None:
        self._by_assignment: dict[Assignment, HeldPartition] = {}
        self._by_place: dict[TopicPartition, HeldPartition] = {}
        self._turn = 0

    def __bool__(self) -> bool:
        return bool(self._by_assignment)

    def all(self) -> list[HeldPartition]:
        """In the order they arrived."""
        return list(self._by_assignment.values())

    def assignments(self) -> tuple[Assignment, ...]:
        """Their names."""
        return tuple(self._by_assignment)

    def add(self, assignments: Iterable[Assignment]) -> list[HeldPartition]:
        """These are ours now."""
        added = [HeldPartition(assignment) for assignment in assignments]
        for held in added:
            self._by_assignment[held.assignment] = held
            self._by_place[held.place] = held
        return added

    def drop(self, gone: Iterable[HeldPartition]) -> None:
        """These are not ours any more."""
        for held in gone:
            self._by_assignment.pop(held.assignment, None)
            if self._by_place.get(held.place) is held:
                del self._by_place[held.place]

    def clear(self) -> None:
        """Nothing is ours any more."""
        self._by_assignment.clear()
        self._by_place.clear()

    def get(self, assignment: Assignment) -> HeldPartition | None:
        """The one held under exactly this assignment."""
        return self._by_assignment.get(assignment)

    def at(self, place: TopicPartition) -> HeldPartition | None:
        """The one held at a place."""
        return self._by_place.get(place)

    def chosen(self, assignments: Iterable[Assignment]) -> list[HeldPartition]:
        """Those of *assignments* that are held."""
        return [self._by_assignment[assignment] for assignment in assignments if assignment in self._by_assignment]

    def versions(self) -> dict[TopicPartition, tuple[HeldPartition, int]]:
        """What a fetch that starts now is for."""
        return {held.place: (held, held.version) for held in self._by_assignment.values()}

    def carried(self) -> dict[TopicPartition, tuple[int, bool] | None]:
        """Where fetching goes on in each after a rebalance, and whether at once.

        What is being fetched now is not wanted any more.
        """
        for held in self._by_assignment.values():
            held.version += 1
        return {
            held.place: (held.next_offset, held.readable) if held.next_offset is not None else None
            for held in self._by_assignment.values()
        }

    @property
    def readable_share(self) -> float:
        """How much lies here that may be handed out, as a share of what is fetched ahead."""
        return _share(held for held in self._by_assignment.values() if held.readable)

    @property
    def paused_share(self) -> float:
        """The same of what lies here until its partitions are resumed."""
        return _share(held for held in self._by_assignment.values() if held.paused)

    def take(self, max_records: int, max_bytes: int) -> list[Record]:
        """The next records, partitions taking turns; at least one where there is any."""
        ready = [held for held in self._by_assignment.values() if held.buffer and held.readable]
        if not ready:
            return []
        self._turn += 1
        first = self._turn % len(ready)
        taken: list[Record] = []
        room = max_bytes
        for held in ready[first:] + ready[:first]:
            buffer = held.buffer
            while buffer and len(taken) < max_records:
                record = buffer[0]
                size = len(record.value or b"") + len(record.key or b"") + HEADER_BYTES * len(record.headers)
                if size > room and taken:
                    return taken
                room -= size
                taken.append(buffer.popleft())
                held.buffered_bytes -= size
                held.position = record.offset + 1
            if len(taken) >= max_records:
                break
        return taken


def _share(several: Iterable[HeldPartition]) -> float:
    records = size = 0
    for held in several:
        records += len(held.buffer)
        size += held.buffered_bytes
    return max(records / _AHEAD_RECORDS, size / _AHEAD_BYTES)


def _size_of(record: Record) -> int:
    return len(record.value or b"") + len(record.key or b"") + HEADER_BYTES * len(record.headers)
