"""Lanes: the queue of one key, and which lane runs next. Pure data, no tasks.

Owns per-key order (one delivery of a lane runs at a time), priorities among ready lanes, and lanes that wait for a retry. A lane exists only
while it has deliveries, so any number of keys costs nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from heapq import heappop, heappush
from typing import Generic, TypeVar

__all__ = ["Lane", "Lanes"]

T = TypeVar("T")


class Lane(Generic[T]):
    """Deliveries of one key, oldest first; the head is the one that runs or waits."""

    __slots__ = ("key", "queue")

    def __init__(self, key: Hashable) -> None:
        self.key = key
        self.queue: deque[T] = deque()

    @property
    def head(self) -> T:
        return self.queue[0]


class Lanes(Generic[T]):
    """All lanes of a worker. A lane taken by `take` is not ready again until `release` or `finish`."""

    __slots__ = ("_lanes", "_order", "_ready")

    def __init__(self) -> None:
        self._lanes: dict[Hashable, Lane[T]] = {}
        self._ready: list[tuple[int, int, Lane[T]]] = []
        self._order = 0

    def __len__(self) -> int:
        return len(self._lanes)

    @property
    def ready(self) -> int:
        """Lanes whose head may run now."""
        return len(self._ready)

    def add(self, key: Hashable, delivery: T, priority: int) -> None:
        """Queue *delivery* behind its key; a new lane is ready at once, ordered by its head's *priority* (9 first)."""
        lane = self._lanes.get(key)
        if lane is not None:
            lane.queue.append(delivery)
            return
        lane = self._lanes[key] = Lane(key)
        lane.queue.append(delivery)
        self._push(lane, priority)

    def take(self) -> Lane[T] | None:
        """The ready lane of the highest priority, the longest waiting among equals."""
        return heappop(self._ready)[2] if self._ready else None

    def finish(self, lane: Lane[T]) -> T | None:
        """The head is done: drop it and answer with the next one, which the caller runs or releases; None ends the lane."""
        lane.queue.popleft()
        if lane.queue:
            return lane.queue[0]
        del self._lanes[lane.key]
        return None

    def release(self, lane: Lane[T], priority: int) -> None:
        """Make a taken lane ready again: its head has waited long enough, or others shall go first."""
        self._push(lane, priority)

    def _push(self, lane: Lane[T], priority: int) -> None:
        self._order += 1
        heappush(self._ready, (-priority, self._order, lane))
