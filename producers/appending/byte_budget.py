"""A budget of bytes: how many bytes may be sealed and not yet settled, given out first come, first served.

Owns who waits for room, and for how long. Does not own what is buffered (`producers.appending.batcher`).
"""

from __future__ import annotations

import asyncio
from collections import deque

from bus.clock import Clock

__all__ = ["ByteBudget"]


class _Place:
    """One that waits."""

    __slots__ = ("granted", "size")

    def __init__(self, size: int) -> None:
        self.size = size
        self.granted: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

    def answer(self, granted: bool) -> None:
        if not self.granted.done():
            self.granted.set_result(granted)


class ByteBudget:
    """*max_bytes* for all; what is larger than that has it to itself. Used from one event loop."""

    def __init__(self, clock: Clock, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self._clock = clock
        self._taken = 0
        self._waiting: deque[_Place] = deque()
        self._closed = False

    def take_now(self, size: int) -> bool:
        """Take *size* bytes where they are free and nobody waits for any.

        Small ones that pass by would keep a large one waiting for ever.
        """
        if self._waiting or self._closed or not self._fits(size):
            return False
        self._taken += size
        return True

    async def take(self, size: int, *, timeout_s: float) -> bool:
        """Take *size* bytes as soon as it is this one's turn.

        False where that was not within *timeout_s*, or before the end.
        """
        if self.take_now(size):
            return True
        return not self._closed and await self._wait(size, timeout_s)

    def give_back(self, size: int) -> None:
        """*size* bytes are free again."""
        self._taken -= size
        self._grant()

    def close(self) -> None:
        """Nobody is given anything any more."""
        self._closed = True
        while self._waiting:
            self._waiting.popleft().answer(False)

    async def _wait(self, size: int, timeout_s: float) -> bool:
        place = _Place(size)
        self._waiting.append(place)
        timer = self._clock.call_later(timeout_s, lambda: place.answer(False))
        try:
            granted = await place.granted
        except asyncio.CancelledError:
            if not place.granted.cancelled() and place.granted.result():
                self.give_back(size)
            else:
                self._leave(place)
            raise
        finally:
            timer.cancel()
        if not granted:
            self._leave(place)
        elif self._closed:
            self.give_back(size)
        return granted and not self._closed

    def _leave(self, place: _Place) -> None:
        if place in self._waiting:
            self._waiting.remove(place)
            self._grant()

    def _grant(self) -> None:
        while self._waiting and self._fits(self._waiting[0].size):
            place = self._waiting.popleft()
            if not place.granted.done():
                self._taken += place.size
                place.answer(True)

    def _fits(self, size: int) -> bool:
        return not self._taken or self._taken + size <= self.max_bytes
