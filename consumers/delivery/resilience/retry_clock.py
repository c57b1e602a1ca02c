"""RetryClock: append times on this process's monotonic clock, for reading retry tiers.

Owns the conversion. If this machine wrote the append time, the conversion follows the jumps of the wall clock.
Otherwise it uses the last acknowledged append; before the first one a record counts as appended just now. It warns if
the brokers' clock differs from ours. A wall clock may be wrong and may jump; an ambiguous time means the later moment.
Lifetimes use the wall clock (`bus.gates`).
"""

from __future__ import annotations

import math
from collections import deque

import msgspec

from bus.clock import Clock
from bus.telemetry.logs import get_logger

__all__ = ["RetryClock", "FirstSeen"]

_TOLERANCE_S = 5.0
_ALARM_S = 60.0
_JUMP_MS = 50
"""The least difference, in milliseconds, that counts as a jump.

The two clocks are read one after the other, and some systems correct a wall clock little by little.
"""
_MAX_SPANS = 16

_log = get_logger("clock")


class _Span(msgspec.Struct):
    """A period of the monotonic clock in which the wall clock did not jump.

    It was ahead by *min_ms* to *max_ms*.
    """

    start_ms: float
    end_ms: float
    min_ms: int
    max_ms: int

    def moment_ms(self, wall_ms: int) -> float:
        """Return when the wall clock showed *wall_ms*, at the latest; -inf if it did not in this period."""
        if not self.start_ms + self.min_ms - _JUMP_MS <= wall_ms <= self.end_ms + self.max_ms + _JUMP_MS:
            return -math.inf
        return min(wall_ms - self.min_ms, self.end_ms)


class RetryClock:
    """The clock of the log, as one worker sees it.

    *own*: append times are this machine's wall clock, as on the embedded log; else they are the brokers'.
    """

    def __init__(self, clock: Clock, *, own: bool) -> None:
        self._clock = clock
        self._own = own
        now_ms = self._now_ms()
        ahead_ms = clock.now_ms() - now_ms
        # Before this process started, the clocks are taken to have differed as they do now.
        self._spans = [_Span(-math.inf, now_ms, ahead_ms, ahead_ms)]
        self._learned_ms: int | None = None
        self._alarmed_s: float | None = None
        self.offset_s = 0.0
        """Append time minus this machine's wall clock, in seconds, as of the last acknowledged append."""

    def moment_ms(self, appended_ms: int) -> float:
        """Return when, on the monotonic clock, a record with the append time *appended_ms* was appended.

        As far as this worker can know, the result is never too early.
        """
        if self._own:
            self.watch()
            moment_ms = max(span.moment_ms(appended_ms) for span in self._spans)
            return moment_ms if moment_ms > -math.inf else self._now_ms()
        # Before the first acknowledged append the brokers' clock is unknown, and ours may be wrong: the record may have
        # been appended just now.
        return self._now_ms() if self._learned_ms is None else appended_ms - self._learned_ms

    def due_ms(self, not_before_ms: int, appended_ms: int, waited_s: float) -> int:
        """Return when, on the current wall clock, a record that waits until *not_before_ms* is due.

        *not_before_ms* is as of its append; it has waited at least *waited_s*. Where brokers wrote the append time, our
        jumps look like a difference of the clocks.
        """
        if not self._own:
            return not_before_ms
        waited_ms = max(waited_s * 1000, self._now_ms() - self.moment_ms(appended_ms))
        return self._clock.now_ms() + round(not_before_ms - appended_ms - waited_ms)

    def learn(self, appended_ms: int) -> None:
        """Note that a record was acknowledged just now with the append time *appended_ms*."""
        if self._own:
            # There is one clock: the difference is how late a loop that a handler may block took the acknowledgement.
            return
        self._learned_ms = appended_ms - self._now_ms()
        self.offset_s = (appended_ms - self._clock.now_ms()) / 1000
        now_s = self._clock.monotonic_s()
        if abs(self.offset_s) > _TOLERANCE_S and (self._alarmed_s is None or now_s - self._alarmed_s >= _ALARM_S):
            self._alarmed_s = now_s
            _log.error(
                "clock.differs",
                log_minus_ours_s=round(self.offset_s, 1),
                detail="lifetimes are judged by this machine's clock: set it right",
            )

    def watch(self) -> None:
        """Check whether the wall clock has jumped. Call it about once a second."""
        now_ms, last = self._now_ms(), self._spans[-1]
        ahead_ms, looked_ms = self._clock.now_ms() - now_ms, last.end_ms
        last.end_ms = now_ms
        if last.max_ms - _JUMP_MS <= ahead_ms <= last.min_ms + _JUMP_MS:
            last.min_ms, last.max_ms = min(last.min_ms, ahead_ms), max(last.max_ms, ahead_ms)
            return
        # The jump lies somewhere since the last look: until now the clock may have been as before, since then as it is.
        self._spans.append(_Span(looked_ms, now_ms, ahead_ms, ahead_ms))
        if len(self._spans) > _MAX_SPANS:
            first, second = self._spans[:2]
            min_ms, max_ms = min(first.min_ms, second.min_ms), max(first.max_ms, second.max_ms)
            self._spans[:2] = [_Span(-math.inf, second.end_ms, min_ms, max_ms)]

    def _now_ms(self) -> int:
        return round(self._clock.monotonic_s() * 1000)


_LIMIT = 1_000


class FirstSeen:
    """Marks of (last offset seen, monotonic seconds), both rising.

    A forgotten mark makes no record due earlier.
    """

    __slots__ = ("_marks",)

    def __init__(self) -> None:
        self._marks: deque[tuple[int, float]] = deque(maxlen=_LIMIT)

    def see(self, offset: int, now_s: float) -> None:
        """Note that everything up to *offset* is in the log."""
        if not self._marks or offset > self._marks[-1][0]:
            self._marks.append((offset, now_s))

    def waited_s(self, offset: int, now_s: float) -> float:
        """Return how long *offset* has been in the log at least; call it with rising offsets."""
        while self._marks and self._marks[0][0] < offset:
            self._marks.popleft()
        return now_s - self._marks[0][1] if self._marks else 0.0
