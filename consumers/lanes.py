"""Lanes: the queue of one key, and which lane runs next. Pure data, no tasks.

Owns per-key order (one delivery of a lane runs at a time), priorities among ready lanes, and lanes that wait: for a retry, for a claim, or for
a result to be durable. A lane exists only while it has deliveries, so any number of keys costs nothing.

    ready --take--> taken --ask--> away --answered--> back --take_back--> taken
                    taken --settle--> settling --settled--> taken --put_back--> back
                    taken --release--> ready;  taken --finish--> (gone, or taken with the next head)
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Hashable
from typing import Generic, TypeVar

import msgspec

__all__ = ["Lane", "Lanes"]

T = TypeVar("T")
_PRIORITIES = 10


class Lane(msgspec.Struct, Generic[T], eq=False, gc=False):
    """Deliveries of one key, oldest first; the head is the one that runs or waits."""

    key: Hashable
    head: T
    behind: deque[T] | None = None
    """Made when something comes: most keys never have two deliveries at once."""


class Lanes(Generic[T]):
    """All lanes of a worker. A lane taken by `take` is not ready again until `release` or `finish`."""

    __slots__ = ("_highest", "_lanes", "_waiting", "away", "back", "ready", "settling")

    def __init__(self) -> None:
        self._lanes: dict[Hashable, Lane[T]] = {}
        self._waiting: list[deque[Lane[T]]] = [deque() for _ in range(_PRIORITIES)]
        self._highest = 0
        """No lane of a higher priority is ready."""
        self.ready = 0
        """Lanes whose head may run now, those that are back not counted."""
        self.away = 0
        """Lanes whose head waits for an answer before it may run: a slot is kept for each."""
        self.back: deque[Lane[T]] = deque()
        """Those that have it."""
        self.settling = 0
        """Lanes whose head has run and whose result is being made durable."""

    def __len__(self) -> int:
        return len(self._lanes)

    def add(self, key: Hashable, delivery: T, priority: int) -> None:
        """Queue *delivery* behind its key; a new lane is ready at once, ordered by its head's *priority* (9 first)."""
        lane = self._lanes.get(key)
        if lane is None:
            lane = self._lanes[key] = Lane(key, delivery)
            self.release(lane, priority)
        elif lane.behind is None:
            lane.behind = deque((delivery,))
        else:
            lane.behind.append(delivery)

    def take(self) -> Lane[T] | None:
        """The ready lane of the highest priority, the longest waiting among equals."""
        if not self.ready:
            return None
        self.ready -= 1
        while not self._waiting[self._highest]:
            self._highest -= 1
        return self._waiting[self._highest].popleft()

    def ask(self) -> None:
        """A taken lane waits for an answer, and nobody with it."""
        self.away += 1

    def answered(self, lanes: Collection[Lane[T]]) -> None:
        """They have their answers."""
        self.away -= len(lanes)
        self.back.extend(lanes)

    def settle(self) -> None:
        """The head of a taken lane has run, and nobody waits while its result is made durable."""
        self.settling += 1

    def settled(self, count: int) -> None:
        """That is over for so many lanes, which are taken again."""
        self.settling -= count

    def put_back(self, lane: Lane[T]) -> None:
        """A taken lane needs somebody who looks after its head."""
        self.back.append(lane)

    def take_back(self) -> Lane[T]:
        """The lane that has waited longest since it was answered."""
        return self.back.popleft()

    def finish(self, lane: Lane[T]) -> T | None:
        """The head is done: drop it and answer with the next one, which the caller runs or releases; None ends the lane."""
        if lane.behind:
            lane.head = lane.behind.popleft()
            return lane.head
        del self._lanes[lane.key]
        return None

    def release(self, lane: Lane[T], priority: int) -> None:
        """Make a taken lane ready again: its head has waited long enough, or others shall go first."""
        self.ready += 1
        self._waiting[priority].append(lane)
        if priority > self._highest:  # noqa: PLR1730 - a call of max costs as much as the rest of this
            self._highest = priority
