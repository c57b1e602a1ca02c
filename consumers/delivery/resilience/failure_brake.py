"""The failure brake: a message type pauses when too many of its messages die.

Owns the rule (`BrakeRule`) and what follows from it (`FailureBrake`): paused types, the metric and the log lines.
Pausing partitions is in `consumers.delivery.state.assignments`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from bus.clock import Clock
from bus.telemetry.logs import get_logger
from bus.telemetry.metrics import Metrics

__all__ = ["BrakeRule", "FailureBrake", "COUNTED"]

_log = get_logger("brake")


class FailureBrake:
    """The brake of one group; *rest* receives the message types that are not fetched now."""

    def __init__(
        self, rule: BrakeRule, group: str, clock: Clock, metrics: Metrics, rest: Callable[[set[str]], None]
    ) -> None:
        self._rule = rule
        self._group = group
        self._clock = clock
        self._metrics = metrics
        self._rest = rest
        self.enabled = rule.enabled

    def delay_s(self, message_type: str) -> float:
        """Return 0 when a message of this type may run now, else the seconds to wait."""
        return self._rule.delay_s(message_type, self._clock.monotonic_s())

    def done(self, message_type: str) -> None:
        """Count a handler that succeeded."""
        if self.enabled:
            self._rule.note(message_type, self._clock.monotonic_s(), died=False)

    def dead(self, message_type: str, reason: str) -> None:
        """Count a message that died of *reason*, and pause its type where that is too many."""
        if not self.enabled or reason not in COUNTED:
            return
        pause_s = self._rule.note(message_type, self._clock.monotonic_s(), died=True)
        if pause_s is not None:
            _log.error(
                "brake.pulled",
                type=message_type,
                group=self._group,
                paused_s=pause_s,
                detail="too large a share of its messages dies",
            )
            self._show(message_type, is_on=True)
            self._clock.call_later(pause_s, lambda: self._release(message_type))

    def _release(self, message_type: str) -> None:
        _log.info("brake.released", type=message_type, group=self._group)
        self._show(message_type, is_on=False)

    def _show(self, message_type: str, *, is_on: bool) -> None:
        self._metrics.brake_on.labels(self._group, message_type).set(int(is_on))
        self._rest(self._rule.paused(self._clock.monotonic_s()))


COUNTED = frozenset({"rejected", "retries_exhausted", "crash_loop"})
"""The reasons that count as deaths for the brake."""


_TRIAL = 10


_LONGEST = 16


class _Window:
    """The last outcomes of one type."""

    __slots__ = ("factor", "outcomes", "size", "until_s")

    def __init__(self, size: int) -> None:
        self.outcomes: deque[bool] = deque()
        self.size = size
        self.factor = 1
        self.until_s = 0.0


class BrakeRule:
    """Pauses a type for *pause_s* when more than *share* of its last *window* outcomes are deaths.

    A share of 1 never pauses.
    """

    def __init__(self, *, share: float, window: int, pause_s: float) -> None:
        self._share = share
        self._size = window
        self._pause_s = pause_s
        self._windows: dict[str, _Window] = {}

    @property
    def enabled(self) -> bool:
        """Whether it can ever pause a type."""
        return self._share < 1

    def note(self, message_type: str, now_s: float, *, died: bool) -> float | None:
        """Count one more outcome; return the seconds to pause where it pulls the brake, else None."""
        window = self._windows.get(message_type)
        if window is None:
            window = self._windows[message_type] = _Window(self._size)
        if now_s < window.until_s:
            # A run that began before the pause.
            return None
        window.outcomes.append(died)
        if len(window.outcomes) < window.size:
            return None
        share = sum(window.outcomes) / len(window.outcomes)
        if share <= self._share:
            if window.size < self._size:
                window.size, window.factor = self._size, 1
            else:
                window.outcomes.popleft()
            return None
        pause_s = self._pause_s * window.factor
        window.factor = min(_LONGEST, window.factor * 2)
        window.size = min(_TRIAL, self._size)
        window.outcomes.clear()
        window.until_s = now_s + pause_s
        return pause_s

    def delay_s(self, message_type: str, now_s: float) -> float:
        """Return 0 when a message may run now, else the rest of the pause in seconds."""
        window = self._windows.get(message_type)
        return 0.0 if window is None else max(0.0, window.until_s - now_s)

    def paused(self, now_s: float) -> set[str]:
        """Return the types that pause now."""
        return {name for name, window in self._windows.items() if now_s < window.until_s}
