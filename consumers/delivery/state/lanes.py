"""Lanes: the queue of one key, and which lane runs next. Pure data, no tasks.

Owns per-key order (one delivery of a lane runs at a time), the choice among ready lanes, and lanes that wait: for
a retry, for a claim, or for a result to be durable. A lane exists only while it has deliveries: any number of keys
is cheap.

The choice: the flows (message types) take turns, where one step of priority is worth one turn, so that a flood of one
type does not delay others. Within a flow the lane with the higher priority runs first, but 32 turns of waiting are
worth one step of priority, so that a high priority cannot starve others. Lanes whose first delivery other runs wait for
(deep ones) have flows of their own, with four turns for each turn of another flow, so that begun work ends before new
work begins. They get no absolute precedence, because a sender could starve others by the claims in its messages. Deep
lanes also run while first messages are paused.

    ready --take--> taken --ask--> away --answered--> answered --take_back--> taken
                    taken --settle--> settling --settled--> taken --put_back--> answered
                    taken --release--> ready;  taken --finish--> (gone, or taken with the next head)
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Hashable
from typing import Any, Generic, TypeVar

import msgspec

__all__ = ["Lane", "Lanes"]

_T = TypeVar("_T")
_PRIORITIES = 10
_TURN = 4
"""Units of a turn; a deep flow's turn takes one."""
_STEP = 32
"""Turns that one priority is worth within a flow."""


class _Flow:
    """The ready lanes of one message type, by priority."""

    __slots__ = ("deep", "levels", "ready", "turn", "twin", "waiting")

    def __init__(self, twin: _Flow | None = None) -> None:
        self.deep = twin is not None
        """Whether its heads are those that others wait for."""
        self.twin = twin
        """The flow of the other heads of its type."""
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


class Lane(msgspec.Struct, Generic[_T], eq=False, gc=False):
    """Deliveries of one key, oldest first; the head is the one that runs or waits."""

    key: Hashable
    head: _T
    flow: _Flow
    behind: deque[_T] | None = None
    """None until a second delivery comes: most keys never have two at once."""
    since: int = 0
    """How many lanes had been taken when it became ready."""


class Lanes(Generic[_T]):
    """All lanes of a worker. A taken lane is not ready again until `release` or `finish`."""

    __slots__ = (
        "_active",
        "_flows",
        "_lanes",
        "_now",
        "_taken",
        "answered_lanes",
        "awaiting_claim",
        "ready",
        "ready_deep",
        "settling",
    )

    def __init__(self) -> None:
        self._lanes: dict[Hashable, Lane[_T]] = {}
        self._flows: dict[str, _Flow] = {}
        self._active: list[_Flow] = []
        """The flows that have ready lanes."""
        self._now = 0
        """The turn of the flow that was taken from last."""
        self._taken = 0
        self.ready = 0
        """The number of lanes whose head may run now, without those in `answered_lanes`."""
        self.ready_deep = 0
        """The number among them whose head others wait for."""
        self.awaiting_claim = 0
        """The number of lanes that wait for a claim: a slot is reserved for each."""
        self.answered_lanes: deque[Lane[_T]] = deque()
        """Lanes that the inbox has answered."""
        self.settling = 0
        """The number of lanes whose head has run and whose result is being stored."""

    def __len__(self) -> int:
        return len(self._lanes)

    def head_of(self, key: Hashable) -> _T | None:
        """Return the head of the lane of *key*; None if there is no lane."""
        lane = self._lanes.get(key)
        return None if lane is None else lane.head

    def add(self, key: Hashable, delivery: _T, priority: int, flow: str = "", *, deep: bool = False) -> None:
        """Queue *delivery* of *flow* behind its key.

        A new lane is ready at once, ordered by its head's *priority* (9 first); *deep*: others wait for it.
        """
        lane = self._lanes.get(key)
        if lane is None:
            own = self._flows.get(flow)
            if own is None:
                own = self._flows[flow] = _Flow()
            lane = self._lanes[key] = Lane(key, delivery, own)
            self.release(lane, priority, deep=deep)
        elif lane.behind is None:
            lane.behind = deque((delivery,))
        else:
            lane.behind.append(delivery)

    def take(self, *, only_deep: bool = False) -> Lane[_T] | None:
        """Take the ready lane whose turn it is; None where no lane is ready. *only_deep*: where others wait for it."""
        active = [flow for flow in self._active if flow.deep] if only_deep else self._active
        if not active:
            return None
        flow = active[0] if len(active) == 1 else min(active, key=_turn)
        levels = flow.levels
        level = levels[0] if len(levels) == 1 else flow.level()
        queue = flow.waiting[level]
        lane: Lane[_T] = queue.popleft()
        if not queue:
            levels.remove(level)
        self.ready -= 1
        self.ready_deep -= flow.deep
        flow.ready -= 1
        if not flow.ready:
            self._active.remove(flow)
        self._now = flow.turn
        flow.turn += 1 if flow.deep else _TURN
        self._taken += 1
        return lane

    def take_newest(self) -> Lane[_T] | None:
        """Take the ready lane that has waited shortest among those that no run waits for; None if there is none."""
        last = [
            (flow.waiting[level][-1].since, flow, level)
            for flow in self._active
            if not flow.deep
            for level in flow.levels
        ]
        if not last:
            return None
        _, flow, level = max(last, key=_since)
        lane: Lane[_T] = flow.waiting[level].pop()
        if not flow.waiting[level]:
            flow.levels.remove(level)
        self.ready -= 1
        flow.ready -= 1
        if not flow.ready:
            self._active.remove(flow)
        return lane

    def ask(self) -> None:
        """Count a taken lane as waiting for a claim, without a slot."""
        self.awaiting_claim += 1

    def answered(self, lanes: Collection[Lane[_T]]) -> None:
        """Return *lanes* to the ready queue: the inbox has answered their claims."""
        self.awaiting_claim -= len(lanes)
        self.answered_lanes.extend(lanes)

    def settle(self) -> None:
        """Count a taken lane as settling: its head has run, and no slot waits while the result is stored."""
        self.settling += 1

    def settled(self, count: int) -> None:
        """Count *count* lanes as taken again: the store has answered about their results."""
        self.settling -= count

    def put_back(self, lane: Lane[_T]) -> None:
        """Have a slot take *lane*, which is taken, again."""
        self.answered_lanes.append(lane)

    def take_back(self) -> Lane[_T]:
        """Take the lane that was answered first."""
        return self.answered_lanes.popleft()

    def finish(self, lane: Lane[_T]) -> _T | None:
        """Drop the head of *lane*, which is settled, and return the next one; None ends the lane.

        The caller runs or releases the lane.
        """
        if lane.behind:
            lane.head = lane.behind.popleft()
            return lane.head
        del self._lanes[lane.key]
        return None

    def release(self, lane: Lane[_T], priority: int, *, deep: bool = False) -> None:
        """Make a taken lane ready again: its head has waited long enough, or other lanes go first."""
        self.ready += 1
        flow = lane.flow
        if flow.deep is not deep:
            flow = lane.flow = _twin_of(flow)
        self.ready_deep += deep
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
    return flow.turn - _TURN * flow.level()


def _since(found: tuple[int, _Flow, int]) -> int:
    return found[0]


def _twin_of(flow: _Flow) -> _Flow:
    """Return the flow of the same type for deep heads, or from it that of the others."""
    if flow.twin is None:
        flow.twin = _Flow(flow)
    return flow.twin
