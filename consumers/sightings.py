"""Sightings: up to which offset a tier's records have been seen, and how long ago.

Owns that memory of one assignment. What was seen so long ago was appended earlier still, so that it is due whatever the clocks say: a wall clock
that jumps can make a retry late by one delay, and never stuck. Pure.
"""

from __future__ import annotations

from collections import deque

__all__ = ["Sightings"]

_MOST = 1_000


class Sightings:
    """Marks of (last offset seen, monotonic seconds), both rising. A mark that is forgotten makes nothing due earlier."""

    __slots__ = ("_marks",)

    def __init__(self) -> None:
        self._marks: deque[tuple[int, float]] = deque(maxlen=_MOST)

    def see(self, offset: int, now_s: float) -> None:
        """Everything up to *offset* is in the log by now."""
        if not self._marks or offset > self._marks[-1][0]:
            self._marks.append((offset, now_s))

    def waited_s(self, offset: int, now_s: float) -> float:
        """For how long *offset* has been in the log at the least; heads are asked for in rising order."""
        while self._marks and self._marks[0][0] < offset:
            self._marks.popleft()
        return now_s - self._marks[0][1] if self._marks else 0.0
