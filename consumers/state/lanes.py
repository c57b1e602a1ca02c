"""Lanes: the queue of one key, and which lane runs next. Pure data, no tasks.

Owns per-key order (one delivery of a lane runs at a time), whose turn it is among ready lanes, and lanes that wait: for
a retry, for a claim, or for a result to be durable. A lane exists only while it has deliveries, so any number of keys
costs nothing.

Whose turn it is: the flows (message types) take turns, each priority is worth one turn, so that a flood of one type
holds up no other. Within a flow the higher priority goes first, and one that has waited for 32 turns goes before all
that came so much later with one priority more: what a sender chooses must not keep others waiting for ever.

    ready --take--> taken --ask--> away --answered--> back --take_back--> taken
                    taken --settle--> settling --settled--> taken --put_back--> back
                    taken --release--> ready;  taken --finish--> (gone, or taken with the next head)
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Hashable
from typing import Any, Generic, TypeVar

import msgspec

__all__ = ["Lane", "Lanes"]

T = TypeVar("T")
_PRIORITIES = 10
_STEP = 32
"""Turns that a priority is worth within a flow."""


class _Flow:
    """The ready lanes of one message type, by priority."""

    __slots__ = ("levels", "ready", "turn", "waiting")

    def __init__(self) -> None:
        self.waiting: list[deque[Lane[Any]]] = [deque() for _ in range(_PRIORITIES)]
        self.levels: list[int] = []
        """The priorities with lanes that are ready."""
        self.ready = 0
        self.turn = 0
        """When it is its turn next, on a clock that counts turns."""

    def level(self) -> int:
        """The priority whose first lane goes first."""
        levels = self.levels
        return levels[0] if len(levels) == 1 else min(levels, key=self._standing)

    def _standing(self, level: int) -> tuple[int, int]:
        return self.waiting[level][0].since - _STEP * level, -level


class Lane(msgspec.Struct, Generic[T], eq=False, gc=False):
    """Deliveries of one key, oldest first; the head is the one that runs or waits."""

    key: Hashable
    head: T
    flow: _Flow
    behind: deque[T] | None = None
    """Made when something comes: most keys never have two deliveries at once."""
    since: int = 0
    """How many lanes had been taken when it became ready."""


class Lanes(Generic[T]):
    """All lanes of a worker. A lane taken by `take` is not ready again until `release` or `finish`."""

    __slots__ = ("_active", "_flows", "_lanes", "_now", "_taken", "away", "back", "ready", "settling")

    def __init__(self) -> None:
        self._lanes: dict[Hashable, Lane[T]] = {}
        self._flows: dict[str, _Flow] = {}
        self._active: list[_Flow] = []
        """Those with lanes that are ready."""
        self._now = 0
        """The turn of the flow that was taken from last."""
        self._taken = 0
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

    def add(self, key: Hashable, delivery: T, priority: int, flow: str = "") -> None:
        """Queue *delivery* of *flow* behind its key.

        A new lane is ready at once, ordered by its head's *priority* (9 first).
        """
        lane = self._lanes.get(key)
        if lane is None:
            own = self._flows.get(flow)
            if own is None:
                own = self._flows[flow] = _Flow()
            lane = self._lanes[key] = Lane(key, delivery, own)
            self.release(lane, priority)
        elif lane.behind is None:
            lane.behind = deque((delivery,))
        else:
            lane.behind.append(delivery)

    def take(self) -> Lane[T] | None:
        """The ready lane whose turn it is."""
        if not self.ready:
            return None
        self.ready -= 1
        active = self._active
        flow = active[0] if len(active) == 1 else min(active, key=_turn)
        level = flow.level()
        queue = flow.waiting[level]
        lane: Lane[T] = queue.popleft()
        if not queue:
            flow.levels.remove(level)
        flow.ready -= 1
        if not flow.ready:
            active.remove(flow)
        self._now = flow.turn
        flow.turn += 1
        self._taken += 1
        return lane

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
        """Drop the head, which is done, and answer with the next one; None ends the lane.

        The caller runs or releases it.
        """
        if lane.behind:
            lane.head = lane.behind.popleft()
            return lane.head
        del self._lanes[lane.key]
        return None

    def release(self, lane: Lane[T], priority: int) -> None:
        """Make a taken lane ready again: its head has waited long enough, or others shall go first."""
        self.ready += 1
        flow = lane.flow
        queue = flow.waiting[priority]
        if not queue:
            flow.levels.append(priority)
        lane.since = self._taken
        queue.append(lane)
        if not flow.ready:
            # What it did not use of its turns before is no credit.
            flow.turn = max(flow.turn, self._now)
            self._active.append(flow)
        flow.ready += 1


def _turn(flow: _Flow) -> int:
    return flow.turn - flow.level()
