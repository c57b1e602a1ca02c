"""Braking: what follows when the brake is pulled: partitions rest, and it is said aloud.

Owns telling partitions, the series and the log lines. The rule is `consumers.brake`'s.
"""

from __future__ import annotations

from collections.abc import Callable

from bus.clock import Clock
from bus.logs import get_logger
from bus.metrics import Metrics
from consumers.brake import COUNTED, Brake

__all__ = ["Braking"]

_log = get_logger("brake")


class Braking:
    """The brake of one group. *rest* is told which message types are not to be fetched now."""

    def __init__(self, brake: Brake, group: str, clock: Clock, metrics: Metrics, rest: Callable[[set[str]], None]) -> None:
        self._brake = brake
        self._group = group
        self._clock = clock
        self._metrics = metrics
        self._rest = rest
        self.enabled = brake.enabled

    def delay_s(self, message_type: str) -> float:
        """0 when a message of this type may run now, else seconds to wait."""
        return self._brake.delay_s(message_type, self._clock.monotonic_s())

    def done(self, message_type: str) -> None:
        """A handler went through."""
        if self.enabled:
            self._brake.note(message_type, self._clock.monotonic_s(), died=False)

    def dead(self, message_type: str, reason: str) -> None:
        """A message died."""
        if not self.enabled or reason not in COUNTED:
            return
        pause_s = self._brake.note(message_type, self._clock.monotonic_s(), died=True)
        if pause_s is not None:
            _log.error("brake.pulled", type=message_type, group=self._group, paused_s=pause_s, detail="too large a share of its messages dies")
            self._show(message_type, is_on=True)
            self._clock.call_later(pause_s, lambda: self._release(message_type))

    def _release(self, message_type: str) -> None:
        _log.info("brake.released", type=message_type, group=self._group)
        self._show(message_type, is_on=False)

    def _show(self, message_type: str, *, is_on: bool) -> None:
        self._metrics.brake_on.labels(self._group, message_type).set(int(is_on))
        self._rest(self._brake.paused(self._clock.monotonic_s()))
