"""The partitions a worker holds: which there are, and why one of them is not fetched from just now.

Owns the view of assignments (`Partition` by assignment and by place) and counted reasons to pause. Nothing is
remembered across a rebalance: a new assignment starts with no reason, and its records say everything anew.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence, Set
from typing import Protocol

from bus.clock import Clock
from bus.topics.names import read_topic
from bus.transports.base import Assignment, LogSubscription
from consumers.resilience.retry import Tier
from consumers.state.commit_frontier import MAX_SPAN
from consumers.state.partition import Partition

__all__ = ["AssignmentObserver", "Partitions", "names_of"]

_FEW, _FEWEST = 64, 2
"""The most open deliveries of a type that waits: in all its partitions, and at least in each.

So none has only one that never finds it over.
"""


class AssignmentObserver(Protocol):
    """Who counts what dead processes were running, and what was judged when a session was lost."""

    def look(self) -> None:
        """Partitions have come: whatever a dead process was running comes back with them."""

    def gone(self, partition: Partition) -> None:
        """*partition* has gone."""


class Partitions:
    """What one member holds."""

    def __init__(
        self,
        tiers: Sequence[Tier],
        clock: Clock,
        *,
        strict: Collection[str] = (),
        max_in_flight: int = MAX_SPAN,
        observer: AssignmentObserver | None = None,
    ) -> None:
        """*strict*: the message types whose retries wait in their lanes."""
        self._observer = observer
        self._strict = frozenset(strict)
        self._max_in_flight = max_in_flight
        self._tiers = {tier.name: tier for tier in tiers}
        self._clock = clock
        self._held: dict[Assignment, Partition] = {}
        self._places: dict[tuple[str, int], Partition] = {}
        self._resting: set[str] = set()
        self._waiting: set[str] = set()
        self.crowding: set[str] = set()
        """The types that have taken half of the room."""
        self.subscription: LogSubscription | None = None

    @property
    def waiting(self) -> Set[str]:
        """The types that wait."""
        return self._waiting

    def know(self, tiers: Iterable[Tier]) -> None:
        """Tiers that are read besides those of the settings."""
        self._tiers |= {tier.name: tier for tier in tiers}

    def all(self) -> list[Partition]:
        """Every partition held now."""
        return list(self._held.values())

    def chosen(self, assignments: Iterable[Assignment]) -> list[Partition]:
        """Those of *assignments* that are held."""
        return [self._held[assignment] for assignment in assignments if assignment in self._held]

    def at(self, topic: str, number: int) -> Partition | None:
        """The partition held at a place."""
        return self._places.get((topic, number))

    def add(self, assignments: Iterable[Assignment]) -> None:
        """These are ours now."""
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
            self._held[assignment] = partition
            self._places[assignment.topic, assignment.partition] = partition
        self.let_rest(self._resting)
        self.let_others(self.crowding)
        self.let_wait(self._waiting)

    def forget(self, assignments: Iterable[Assignment]) -> None:
        """These are gone: nothing of theirs is settled or committed any more."""
        for assignment in assignments:
            partition = self._held.pop(assignment, None)
            if partition is not None:
                if self._observer is not None:
                    self._observer.gone(partition)
                partition.closed = True
                place = (assignment.topic, assignment.partition)
                if self._places.get(place) is partition:
                    del self._places[place]

    def hold(self, partition: Partition, paused: bool) -> None:
        """One more reason not to fetch from *partition*, or one less."""
        partition.paused += 1 if paused else -1
        if partition.closed or self.subscription is None:
            return
        if paused and partition.paused == 1:
            self.subscription.pause([partition.assignment])
        elif not paused and partition.paused == 0:
            self.subscription.resume([partition.assignment])

    def let_rest(self, message_types: set[str]) -> None:
        """Fetch nothing of these types; those of before are fetched again where nothing else speaks against it."""
        self._resting = message_types
        for partition in self._held.values():
            resting = partition.expected_type in message_types
            if resting != partition.resting:
                partition.resting = resting
                self.hold(partition, resting)

    def let_others(self, message_types: set[str]) -> None:
        """Fetch nothing of these types, which have taken half of the room; those of before are fetched again."""
        self.crowding = message_types
        for partition in self._held.values():
            crowding = partition.expected_type in message_types
            if crowding != partition.crowding:
                partition.crowding = crowding
                self.hold(partition, crowding)

    def let_wait(self, message_types: set[str]) -> None:
        """Take only a few of these types, for they wait; of those of before as many as usual.

        Not none: the one that made its type wait may never find out that the waiting is over.
        """
        self._waiting = message_types
        counts = Counter(partition.expected_type for partition in self._held.values())
        for partition in self._held.values():
            partition.most_open = self._most_open(partition.expected_type or "", counts)
            if partition.frontier.span >= partition.most_open:
                self._mark_full(partition)
        self.release_full()

    def _most_open(self, message_type: str, counts: Mapping[str | None, int]) -> int:
        if message_type in self._waiting:
            return max(_FEWEST, _FEW // counts[message_type])
        if message_type in self._strict:
            # Behind one that waits for its retry lie all later ones of its key. What waits takes no room from others
            # (`Flight.room`): so many.
            return max(_FEWEST, min(MAX_SPAN, self._max_in_flight // sum(counts[kind] for kind in self._strict)))
        return MAX_SPAN

    def rest(self, partition: Partition, offset: int, delay_s: float) -> None:
        """The head of a tier is not due: fetch it again then."""
        self._rewind(partition, offset)
        self.hold(partition, True)
        self._clock.call_later(delay_s, lambda: self.hold(partition, False))

    def fill(self, partition: Partition, offset: int) -> None:
        """As many lie between its oldest unsettled record and this one as may: fetch on when the frontier has moved."""
        self._rewind(partition, offset)
        self._mark_full(partition)

    def leave(self, partition: Partition, offset: int) -> None:
        """There is no room for it: fetch it again with the next records."""
        self._rewind(partition, offset)

    def release_full(self) -> None:
        """Fetch again from partitions whose frontier has moved."""
        for partition in self._held.values():
            if partition.full and partition.frontier.span <= partition.most_open // 2:
                partition.full = False
                self.hold(partition, False)

    def _in_doubt(self) -> bool:
        return self.subscription is not None and self.subscription.in_doubt()

    def _mark_full(self, partition: Partition) -> None:
        if not partition.full:
            partition.full = True
            self.hold(partition, True)

    def _rewind(self, partition: Partition, offset: int) -> None:
        if self.subscription is not None:
            self.subscription.seek(partition.assignment, offset)


def names_of(assignments: Iterable[Assignment]) -> list[str]:
    """`topic/0,1,3` per topic, for a log line."""
    places: dict[str, list[int]] = {}
    for assignment in assignments:
        places.setdefault(assignment.topic, []).append(assignment.partition)
    return [f"{topic}/{','.join(map(str, sorted(numbers)))}" for topic, numbers in sorted(places.items())]
