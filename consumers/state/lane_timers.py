"""Lanes that wait for a moment: until a retry, or until something outside may be asked again.

Owns waking them then, and at once where the partition of what waits has gone. Does not own lanes (`lanes`) or what is
waited for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from bus.clock import Clock, Timer
from consumers.state.delivery import Delivery
from consumers.state.lanes import Lane, Lanes

__all__ = ["LaneTimers"]


class LaneTimers:
    """Taken lanes whose head waits; *wake* tells the runners that one has become ready."""

    def __init__(self, lanes: Lanes[Delivery], clock: Clock, wake: Callable[[], None]) -> None:
        self._lanes = lanes
        self._clock = clock
        self._wake = wake
        self._timers: dict[Lane[Delivery], Timer] = {}

    def __len__(self) -> int:
        return len(self._timers)

    def add(self, lane: Lane[Delivery], wait_s: float) -> None:
        """*lane* is ready again after *wait_s*."""
        self._timers[lane] = self._clock.call_later(wait_s, lambda: self._end(lane))

    def held_up(self) -> Iterator[Delivery]:
        """What waits, and what lies behind it."""
        for lane in self._timers:
            yield lane.head
            yield from lane.behind or ()

    def let_go(self) -> None:
        """Let go of what waits for the sake of partitions that have gone.

        It would only take up room, and hold up what comes when they are back.
        """
        for lane, timer in list(self._timers.items()):
            if lane.head.partition.closed:
                timer.cancel()
                self._end(lane)

    def _end(self, lane: Lane[Delivery]) -> None:
        del self._timers[lane]
        self._lanes.release(lane, lane.head.priority)
        self._wake()
