"""What time it is where the log is: the clock that retry tiers are read by.

Owns the difference between this machine's clock and the log's append times, learned from every append that is acknowledged, and the alarm
when it is large. A wall clock may be wrong and may jump, so nothing here trusts it further than it must: time goes on by the monotonic clock.
Does not own lifetimes, which are the wall clock's (`bus.gates`).
"""

from __future__ import annotations

from bus.clock import Clock
from bus.logs import get_logger

__all__ = ["LogClock"]

_TOLERANCE_S = 5.0
_ALARM_S = 60.0
_REMEMBERED_S = 3600.0
"""Longer than most tiers keep a record. Until then they are waited for by sight, which may be late and is never early."""

_log = get_logger("clock")


class LogClock:
    """The log's time. *own*: its append times are this machine's wall clock, as on the embedded log; else they are its brokers'."""

    def __init__(self, clock: Clock, *, own: bool) -> None:
        self._clock = clock
        self._own = own
        self._start_ms = clock.now_ms() - round(clock.monotonic_s() * 1000)
        self._learned_ms: int | None = None
        self._lowest_ms, self._lowest_s = 0, 0.0
        """How far the wall clock was behind at most, and when it was last seen to be."""
        self._alarmed_s: float | None = None
        self.offset_s = 0.0
        """Append time minus this machine's clock, as of the last acknowledged append."""

    def now_ms(self) -> int:
        """Not later than the log's own time, as far as anything here can tell."""
        steady_ms = self._steady_ms()
        if self._own:
            # Whichever way the wall clock has jumped since this process started: records from before and after may lie side by side.
            self._look(steady_ms)
            return steady_ms + self._lowest_ms
        return self._clock.now_ms() if self._learned_ms is None else steady_ms + self._learned_ms

    def learn(self, appended_ms: int) -> None:
        """A record was acknowledged just now, with this append time."""
        steady_ms = self._steady_ms()
        self._learned_ms = appended_ms - steady_ms
        self._look(steady_ms)
        self.offset_s = (appended_ms - self._clock.now_ms()) / 1000
        now_s = self._clock.monotonic_s()
        if abs(self.offset_s) > _TOLERANCE_S and (self._alarmed_s is None or now_s - self._alarmed_s >= _ALARM_S):
            self._alarmed_s = now_s
            _log.error(
                "clock.differs", log_minus_ours_s=round(self.offset_s, 1), detail="lifetimes are judged by this machine's clock: set it right"
            )

    def _look(self, steady_ms: int) -> None:
        # What was appended by a clock that was set back looks that much older than it is, also when the clock is right again.
        behind_ms, now_s = min(0, self._clock.now_ms() - steady_ms), self._clock.monotonic_s()
        if behind_ms <= self._lowest_ms or now_s - self._lowest_s > _REMEMBERED_S:
            self._lowest_ms, self._lowest_s = behind_ms, now_s

    def _steady_ms(self) -> int:
        return self._start_ms + round(self._clock.monotonic_s() * 1000)
