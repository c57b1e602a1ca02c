"""Lanes: the queue of one key, and which lane runs next. Pure data, no tasks.

Owns per-key order (one delivery of a lane runs at a time), the choice among ready lanes, and lanes that wait: for
a retry, for a claim, or for a result to be durable. A lane exists only while it has deliveries: any number of keys
is cheap.

The choice: the flows (message types) take turns, each priority is worth one turn, so that a flood of one type
delays no other. Within a flow the higher priority goes first. A lane that has waited for 32 turns goes before all that
came so much later with one priority more: a sender's priority must not keep others waiting for ever.

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
"""Turns that one priority is worth within a flow."""


class _Flow:
    """The ready lanes of one message type, by priority."""

    __slots__ = ("levels", "ready", "turn", "waiting")

    def __init__(self) -> None:
        self.waiting: list[deque[Lane[Any]]] = [deque() for _ in range(_PRIORITIES)]
        self.levels: list[int] = []
        """The priorities that have ready lanes."""
        self.ready = 0
        self.turn = 0
        """Its next turn, on a clock that counts turns."""

    def level(self) -> int:
        """Return the priority whose first lane goes first."""
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
    """None until a second delivery comes: most keys never have two at once."""
    since: int = 0
    """How many lanes had been taken when it became ready."""


class Lanes(Generic[T]):
    """All lanes of a worker. A taken lane is not ready again until `release` or `finish`."""

    __slots__ = ("_active", "_flows", "_lanes", "_now", "_taken", "away", "back", "ready", "settling")

    def __init__(self) -> None:
        self._lanes: dict[Hashable, Lane[T]] = {}
        self._flows: dict[str, _Flow] = {}
        self._active: list[_Flow] = []
        """The flows that have ready lanes."""
        self._now = 0
        """The turn of the flow that was taken from last."""
        self._taken = 0
        self.ready = 0
        """The number of lanes whose head may run now, without those in `back`."""
        self.away = 0
        """The number of lanes that wait for a claim: a slot is reserved for each."""
        self.back: deque[Lane[T]] = deque()
        """Lanes that the inbox has answered."""
        self.settling = 0
        """The number of lanes whose head has run and whose result is being stored."""

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
        """Take the ready lane whose turn it is; None where no lane is ready."""
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
        """Count a taken lane as waiting for a claim, without a slot."""
        self.away += 1

    def answered(self, lanes: Collection[Lane[T]]) -> None:
        """Return *lanes* to the ready queue: the inbox has answered their claims."""
        self.away -= len(lanes)
        self.back.extend(lanes)

    def settle(self) -> None:
        """Count a taken lane as settling: its head has run, and no slot waits while the result is stored."""
        self.settling += 1

    def settled(self, count: int) -> None:
        """Count *count* lanes as taken again: the store has answered about their results."""
        self.settling -= count

    def put_back(self, lane: Lane[T]) -> None:
        """Have a slot take *lane*, which is taken, again."""
        self.back.append(lane)

    def take_back(self) -> Lane[T]:
        """Take the lane that was answered first."""
        return self.back.popleft()

    def finish(self, lane: Lane[T]) -> T | None:
        """Drop the head of *lane*, which is settled, and return the next one; None ends the lane.

        The caller runs or releases the lane.
        """
        if lane.behind:
            lane.head = lane.behind.popleft()
            return lane.head
        del self._lanes[lane.key]
        return None

    def release(self, lane: Lane[T], priority: int) -> None:
        """Make a taken lane ready again: its head has waited long enough, or other lanes go first."""
        self.ready += 1
        flow = lane.flow
        queue = flow.waiting[priority]
        if not queue:
            flow.levels.append(priority)
        lane.since = self._taken
        queue.append(lane)
        if not flow.ready:
            # Turns that the flow did not use before give no credit.
            flow.turn = max(flow.turn, self._now)
            self._active.append(flow)
        flow.ready += 1


def _turn(flow: _Flow) -> int:
    return flow.turn - flow.level()
