"""LaneTimers: lanes that wait for a retry, or until a dependency may be asked again.

Owns waking them in time, and at once where their partition has gone. Lanes are in `consumers.delivery.state.lanes`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from bus.clock import Clock, Timer
from consumers.delivery.state.delivery import Delivery
from consumers.delivery.state.lanes import Lane, Lanes

__all__ = ["LaneTimers"]


class LaneTimers:
    """Holds taken lanes whose head waits; *wake* reports that one has become ready."""

    def __init__(self, lanes: Lanes[Delivery], clock: Clock, wake: Callable[[], None]) -> None:
        self._lanes = lanes
        self._clock = clock
        self._wake = wake
        self._timers: dict[Lane[Delivery], Timer] = {}
        self._due_s: dict[int, float] = {}
        """By identity of a waiting head, when its lane is ready again, on the monotonic clock."""

    def __len__(self) -> int:
        return len(self._timers)

    def add(self, lane: Lane[Delivery], wait_s: float) -> None:
        """Make *lane* ready again after *wait_s* seconds."""
        self._timers[lane] = self._clock.call_later(wait_s, lambda: self._end(lane))
        self._due_s[id(lane.head)] = self._clock.monotonic_s() + wait_s

    def lanes(self) -> Iterator[Lane[Delivery]]:
        """Yield the lanes that wait."""
        yield from self._timers

    def due_s(self, head: Delivery) -> float | None:
        """Return when the lane of *head* is ready again, on the monotonic clock; None where it does not wait."""
        return self._due_s.get(id(head))

    def held_up(self) -> Iterator[Delivery]:
        """Yield the heads of waiting lanes, and the deliveries behind them."""
        for lane in self._timers:
            yield lane.head
            yield from lane.behind or ()

    def wake(self, wanted: Callable[[Delivery], bool]) -> None:
        """Make the lanes ready at once whose head is *wanted*."""
        for lane, timer in list(self._timers.items()):
            if wanted(lane.head):
                timer.cancel()
                self._end(lane)

    def let_go(self) -> None:
        """Make lanes of gone partitions ready at once, so that their deliveries are dropped.

        They would take up room, and delay their successors when the partitions come back.
        """
        for lane, timer in list(self._timers.items()):
            if lane.head.partition.closed:
                timer.cancel()
                self._end(lane)

    def _end(self, lane: Lane[Delivery]) -> None:
        del self._timers[lane]
        self._due_s.pop(id(lane.head), None)
        self._lanes.release(lane, lane.head.priority, deep=lane.head.is_deep)
        self._wake()
