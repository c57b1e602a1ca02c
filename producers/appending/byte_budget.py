"""A budget of bytes that are sealed and not yet settled, granted first come, first served.

Owns the queue for room and its time limits. `producers.appending.batcher` owns the buffered records.
"""

from __future__ import annotations

import asyncio
from collections import deque

from bus.clock import Clock

__all__ = ["ByteBudget"]


class _Place:
    """One waiting request for room."""

    __slots__ = ("granted", "size")

    def __init__(self, size: int) -> None:
        self.size = size
        self.granted: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

    def answer(self, granted: bool) -> None:
        if not self.granted.done():
            self.granted.set_result(granted)


class ByteBudget:
    """A limit of *max_bytes* in total; a larger request gets the whole budget alone. Used from one event loop."""

    def __init__(self, clock: Clock, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self._clock = clock
        self._taken = 0
        self._waiting: deque[_Place] = deque()
        self._closed = False

    def acquire_nowait(self, size: int) -> bool:
        """Take *size* bytes if they are free and no other caller waits.

        Small requests that overtake would keep a large one waiting for ever.
        """
        if self._waiting or self._closed or not self._fits(size):
            return False
        self._taken += size
        return True

    async def acquire(self, size: int, *, timeout_s: float) -> bool:
        """Take *size* bytes when it is this caller's turn.

        Returns False after *timeout_s*, or if the budget is closed.
        """
        if self.acquire_nowait(size):
            return True
        return not self._closed and await self._wait(size, timeout_s)

    def release(self, size: int) -> None:
        """Return *size* bytes to the budget."""
        self._taken -= size
        self._grant()

    def close(self) -> None:
        """Refuse all further requests for room."""
        self._closed = True
        while self._waiting:
            self._waiting.popleft().answer(False)

    async def _wait(self, size: int, timeout_s: float) -> bool:
        location = _Place(size)
        self._waiting.append(location)
        timer = self._clock.call_later(timeout_s, lambda: location.answer(False))
        try:
            granted = await location.granted
        except asyncio.CancelledError:
            if not location.granted.cancelled() and location.granted.result():
                self.release(size)
            else:
                self._leave(location)
            raise
        finally:
            timer.cancel()
        if not granted:
            self._leave(location)
        elif self._closed:
            self.release(size)
        return granted and not self._closed

    def _leave(self, location: _Place) -> None:
        if location in self._waiting:
            self._waiting.remove(location)
            self._grant()

    def _grant(self) -> None:
        while self._waiting and self._fits(self._waiting[0].size):
            location = self._waiting.popleft()
            if not location.granted.done():
                self._taken += location.size
                location.answer(True)

    def _fits(self, size: int) -> bool:
        return not self._taken or self._taken + size <= self.max_bytes
