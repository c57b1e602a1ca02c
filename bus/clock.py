"""Time as an argument: the system's clock, and one that tests move.

Owns reading the time and waiting. Messages and records carry wall time; durations use monotonic time.
`bus.protocol.timestamps` owns the text form of times.
"""

from __future__ import annotations

import asyncio
import contextvars
import heapq
import itertools
import time
from collections.abc import Callable
from typing import Protocol

__all__ = ["Clock", "ManualClock", "Interval", "Ration", "SystemClock", "Timer"]


class Timer(Protocol):
    """A scheduled callback that can be cancelled."""

    def cancel(self) -> None:
        """Cancel the callback; harmless after it has run."""


class Clock(Protocol):
    """The clock interface that every time-dependent part gets."""

    def now_ms(self) -> int:
        """Return the wall time: milliseconds since 1970, UTC."""

    def monotonic_s(self) -> float:
        """Return seconds from an arbitrary start; never goes backwards."""

    def call_later(self, delay_s: float, callback: Callable[[], object]) -> Timer:
        """Call *callback* on the running loop after *delay_s* seconds."""

    async def sleep(self, delay_s: float) -> None:
        """Wait *delay_s* seconds."""


class SystemClock:
    """The machine's own clocks.

    Its timers run in the context in which it was made. In that of the handler that has set one, what the timer does for
    all messages would log and trace in the name of this one.
    """

    def __init__(self) -> None:
        self._own = contextvars.copy_context()

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    # The function itself instead of a wrapper method: it is called five times per message.
    monotonic_s = staticmethod(time.monotonic)

    def call_later(self, delay_s: float, callback: Callable[[], object]) -> Timer:
        return asyncio.get_running_loop().call_later(delay_s, callback, context=self._own.copy())

    async def sleep(self, delay_s: float) -> None:
        await asyncio.sleep(delay_s)


class _ManualTimer:
    __slots__ = ("callback", "cancelled", "due_s")

    def __init__(self, due_s: float, callback: Callable[[], object]) -> None:
        self.due_s = due_s
        self.callback = callback
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


class ManualClock:
    """A clock that stands still until `advance` moves it; timers run in order of their due times."""

    def __init__(self, start_ms: int = 1_767_225_600_000) -> None:
        self._start_ms = start_ms
        self._elapsed_s = 0.0
        self._timers: list[tuple[float, int, _ManualTimer]] = []
        self._order = itertools.count()

    def now_ms(self) -> int:
        return self._start_ms + round(self._elapsed_s * 1000)

    def monotonic_s(self) -> float:
        return self._elapsed_s

    def call_later(self, delay_s: float, callback: Callable[[], object]) -> Timer:
        timer = _ManualTimer(self._elapsed_s + max(0.0, delay_s), callback)
        heapq.heappush(self._timers, (timer.due_s, next(self._order), timer))
        return timer

    async def sleep(self, delay_s: float) -> None:
        if delay_s <= 0:
            await asyncio.sleep(0)
            return
        woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        timer = self.call_later(delay_s, lambda: _wake(woken))
        try:
            await woken
        finally:
            timer.cancel()

    def next_due_s(self) -> float | None:
        """Return the seconds until the earliest live timer; None without one."""
        while self._timers and self._timers[0][2].cancelled:
            heapq.heappop(self._timers)
        return self._timers[0][0] - self._elapsed_s if self._timers else None

    def advance(self, seconds: float) -> None:
        """Move time by *seconds*, running each timer that falls due."""
        target_s = self._elapsed_s + seconds
        while (due_s := self.next_due_s()) is not None and self._elapsed_s + due_s <= target_s:
            _, _, timer = heapq.heappop(self._timers)
            self._elapsed_s = max(self._elapsed_s, timer.due_s)
            timer.callback()
        self._elapsed_s = target_s


def _wake(waiting: asyncio.Future[None]) -> None:
    if not waiting.done():
        waiting.set_result(None)


class Interval:
    """A rate limit per chore: due at once, then again after its interval."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._done_s: dict[str, float] = {}

    def is_due(self, chore: str, every_s: float) -> bool:
        """Tell whether *chore* is due; if so, count it as done."""
        now_s = self._clock.monotonic_s()
        if chore in self._done_s and now_s - self._done_s[chore] < every_s:
            return False
        self._done_s[chore] = now_s
        return True


class Ration:
    """At most *max_count* units in each *every_s* seconds."""

    def __init__(self, clock: Clock, *, max_count: int, every_s: float) -> None:
        self._clock = clock
        self._max_count = max_count
        self._every_s = every_s
        self._began_s = -every_s
        self._left = 0

    def take(self) -> bool:
        """Take one unit; return whether it was available."""
        now_s = self._clock.monotonic_s()
        if now_s - self._began_s >= self._every_s:
            self._began_s, self._left = now_s, self._max_count
        self._left -= 1
        return self._left >= 0
