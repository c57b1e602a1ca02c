"""Chores that are due once in a while, within a loop that turns more often.

Owns when each was done last. Pure but for the clock it is given.
"""

from __future__ import annotations

from bus.clock import Clock

__all__ = ["Rarely", "Ration"]


class Rarely:
    """Each chore is due at once, and then again when its time has passed."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._done_s: dict[str, float] = {}

    def is_time(self, chore: str, every_s: float) -> bool:
        """Whether *chore* is due; if so it counts as done."""
        now_s = self._clock.monotonic_s()
        if chore in self._done_s and now_s - self._done_s[chore] < every_s:
            return False
        self._done_s[chore] = now_s
        return True


class Ration:
    """At most *most* of something in each *every_s* seconds."""

    def __init__(self, clock: Clock, *, most: int, every_s: float) -> None:
        self._clock = clock
        self._most = most
        self._every_s = every_s
        self._began_s = -every_s
        self._left = 0

    def take(self) -> bool:
        """Whether one more may be had now; if so it counts."""
        now_s = self._clock.monotonic_s()
        if now_s - self._began_s >= self._every_s:
            self._began_s, self._left = now_s, self._most
        self._left -= 1
        return self._left >= 0
