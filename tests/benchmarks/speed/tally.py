"""Counting what a consumer gets, and timing from the end of the warm-up to the last message.

Owns when the time starts and stops, so that joining a group and the first fetches count for nobody.
"""

from __future__ import annotations

import asyncio

from speed.measurement import Answer, Meter, Task

__all__ = ["Tally"]


class Tally:
    """Of one consumer; not for several threads."""

    def __init__(self, task: Task) -> None:
        self._last = task.warm_up + task.messages
        self._next = max(1, task.warm_up)
        self._started_at = 0
        self._meter = Meter()
        self.count = 0
        self.done = asyncio.Event()

    def add(self, count: int = 1) -> None:
        """*count* messages more were got."""
        self.count += count
        if self.count >= self._next:
            self._reach()

    def _reach(self) -> None:
        if not self._started_at:
            self._started_at, self._next = self.count, self._last
            self._meter.start()
        if self.count >= self._last and not self.done.is_set():
            self._meter.stop()
            self.done.set()

    def answer(self, note: str = "") -> Answer:
        """What was measured."""
        if not self.done.is_set():
            raise RuntimeError(f"only {self.count} of {self._last} messages came")
        if (self._last - self._started_at) * 2 < self._last:
            raise RuntimeError(
                f"{self._started_at} of {self._last} messages came before anything could be timed: take more messages"
            )
        return self._meter.answer(self._last - self._started_at, in_log=self._last, note=note)
