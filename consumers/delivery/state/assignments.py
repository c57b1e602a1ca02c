"""Partitions: the assigned partitions of a worker, and the reasons why one of them is paused.

Owns the `Partition` objects, by assignment and by topic and partition, and counted reasons to pause. No state
of a partition survives a rebalance: a new assignment has only the pauses of its type, and its records are read again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence, Set
from typing import Protocol

from bus.clock import Clock
from bus.topics.names import read_topic
from bus.transports.base import Assignment, LogSubscription
from consumers.delivery.resilience.retry import Tier
from consumers.delivery.state.commit_frontier import MAX_SPAN
from consumers.delivery.state.partition import Partition

__all__ = ["AssignmentObserver", "Partitions", "names_of"]

_FEW, _FEWEST = 64, 2
"""The most open deliveries of a waiting type: in all its partitions, and at least in each.

With only one, a partition might never find out that the dependency is up again.
"""


class AssignmentObserver(Protocol):
    """Counts what dead processes were running, and records judged when a session was lost."""

    def look(self) -> None:
        """Note that partitions have come: records that a dead process was running come with them."""

    def gone(self, partition: Partition) -> None:
        """Note that *partition* has gone."""


class Partitions:
    """Holds the partitions of one group member."""

    def __init__(
        self,
        tiers: Sequence[Tier],
        clock: Clock,
        *,
        strict: Collection[str] = (),
        max_in_flight: int = MAX_SPAN,
        observer: AssignmentObserver | None = None,
    ) -> None:
        """Start without partitions; *strict*: the message types whose retries wait in their lanes."""
        self._observer = observer
        self._strict = frozenset(strict)
        self._max_in_flight = max_in_flight
        self._tiers = {tier.name: tier for tier in tiers}
        self._clock = clock
        self._owned: dict[Assignment, Partition] = {}
        self._locations: dict[tuple[str, int], Partition] = {}
        self._resting: set[str] = set()
        self._waiting: set[str] = set()
        self.crowding: set[str] = set()
        """The message types that have taken half of the room."""
        self.subscription: LogSubscription | None = None

    @property
    def waiting(self) -> Set[str]:
        """The message types that wait for a dependency."""
        return self._waiting

    def add_tiers(self, tiers: Iterable[Tier]) -> None:
        """Add *tiers* that are read besides those of the settings."""
        self._tiers |= {tier.name: tier for tier in tiers}

    def all(self) -> list[Partition]:
        """Return every assigned partition."""
        return list(self._owned.values())

    def held_among(self, assignments: Iterable[Assignment]) -> list[Partition]:
        """Return those of *assignments* that are current."""
        return [self._owned[assignment] for assignment in assignments if assignment in self._owned]

    def at(self, topic: str, number: int) -> Partition | None:
        """Return the assigned partition *number* of *topic*."""
        return self._locations.get((topic, number))

    def add(self, assignments: Iterable[Assignment]) -> None:
        """Hold *assignments* from now on."""
        if self._observer is not None:
            self._observer.look()
        for assignment in assignments:
            name = read_topic(assignment.topic)
            kind = name.kind if name is not None else "own"
            partition = Partition(
                assignment,
                expected_type=name.message_type if name is not None and kind == "message" else None,
                own=kind in ("retry", "redrive"),
                tier=self._tiers.get(name.delay) if name is not None and kind == "retry" else None,
                in_doubt=self._in_doubt,
            )
            self._owned[assignment] = partition
            self._locations[assignment.topic, assignment.partition] = partition
        self.pause_braked(self._resting)
        self.pause_crowding(self.crowding)
        self.throttle_waiting(self._waiting)

    def forget(self, assignments: Iterable[Assignment]) -> None:
        """Close the partitions of *assignments*: nothing of theirs is settled or committed any more."""
        for assignment in assignments:
            partition = self._owned.pop(assignment, None)
            if partition is not None:
                if self._observer is not None:
                    self._observer.gone(partition)
                partition.closed = True
                location = (assignment.topic, assignment.partition)
                if self._locations.get(location) is partition:
                    del self._locations[location]

    def pause(self, partition: Partition, paused: bool) -> None:
        """Count one more reason not to fetch from *partition*, or one less; pause or resume it."""
        partition.paused += 1 if paused else -1
        if partition.closed or self.subscription is None:
            return
        if paused and partition.paused == 1:
            self.subscription.pause([partition.assignment])
        elif not paused and partition.paused == 0:
            self.subscription.resume([partition.assignment])

    def pause_braked(self, message_types: set[str]) -> None:
        """Stop fetching *message_types*, on which the brake is on; fetch the earlier ones again.

        A partition with another reason to pause stays paused.
        """
        self._resting = message_types
        for partition in self._owned.values():
            resting = partition.expected_type in message_types
            if resting != partition.resting:
                partition.resting = resting
                self.pause(partition, resting)

    def pause_crowding(self, message_types: set[str]) -> None:
        """Stop fetching *message_types*, which have taken half of the room; fetch the earlier ones again."""
        self.crowding = message_types
        for partition in self._owned.values():
            crowding = partition.expected_type in message_types
            if crowding != partition.crowding:
                partition.crowding = crowding
                self.pause(partition, crowding)

    def throttle_waiting(self, message_types: set[str]) -> None:
        """Take only a few of *message_types*, which wait; of the earlier ones as many as usual.

        Not none: the message that made its type wait may never find out that the dependency is up.
        """
        self._waiting = message_types
        counts = Counter(partition.expected_type for partition in self._owned.values())
        for partition in self._owned.values():
            partition.max_open = self._max_open(partition.expected_type or "", counts)
            if partition.frontier.span >= partition.max_open:
                self._mark_full(partition)
        self.release_full()

    def _max_open(self, message_type: str, counts: Mapping[str | None, int]) -> int:
        if message_type in self._waiting:
            return max(_FEWEST, _FEW // counts[message_type])
        if message_type in self._strict:
            # Behind a message that waits for its retry lie all later ones of its key. Waiting messages take no room
            # from others (`InFlight.room`), hence this bound.
            return max(_FEWEST, min(MAX_SPAN, self._max_in_flight // sum(counts[kind] for kind in self._strict)))
        return MAX_SPAN

    def defer(self, partition: Partition, offset: int, delay_s: float) -> None:
        """Fetch the head of a tier again at *offset* in *delay_s* seconds, when it is due."""
        self._rewind(partition, offset)
        self.pause(partition, True)
        self._clock.call_later(delay_s, lambda: self.pause(partition, False))

    def pause_full(self, partition: Partition, offset: int) -> None:
        """Fetch *offset* again when the frontier has moved: the span of *partition* is full."""
        self._rewind(partition, offset)
        self._mark_full(partition)

    def leave(self, partition: Partition, offset: int) -> None:
        """Fetch *offset* again with the next records: there is no room for it."""
        self._rewind(partition, offset)

    def release_full(self) -> None:
        """Resume full partitions whose frontier has moved."""
        for partition in self._owned.values():
            if partition.full and partition.frontier.span <= partition.max_open // 2:
                partition.full = False
                self.pause(partition, False)

    def _in_doubt(self) -> bool:
        return self.subscription is not None and self.subscription.in_doubt()

    def _mark_full(self, partition: Partition) -> None:
        if not partition.full:
            partition.full = True
            self.pause(partition, True)

    def _rewind(self, partition: Partition, offset: int) -> None:
        if self.subscription is not None:
            self.subscription.seek(partition.assignment, offset)


def names_of(assignments: Iterable[Assignment]) -> list[str]:
    """Return `topic/0,1,3` per topic, for a log line."""
    locations: dict[str, list[int]] = {}
    for assignment in assignments:
        locations.setdefault(assignment.topic, []).append(assignment.partition)
    return [f"{topic}/{','.join(map(str, sorted(numbers)))}" for topic, numbers in sorted(locations.items())]
