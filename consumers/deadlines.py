"""Deadlines of handlers: one timer for all, for the earliest of them.

Owns cutting a handler that overruns, and saying so where it goes on all the same: until it ends its message is not settled, and whoever waits
behind it waits for it. Does not own slots, nor what a handler's end means (`consumers.runners`).
"""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import TYPE_CHECKING, Final

from bus.clock import Clock, Timer
from bus.logs import get_logger

if TYPE_CHECKING:
    from consumers.runners import Runner

__all__ = ["Deadlines", "HandlerTimeoutError"]

_GRACE_S: Final = 2.0
"""So long a handler that was cancelled has to end before a line is spent on it."""
_AGAIN_S: Final = 60.0

_log = get_logger("handler")


class HandlerTimeoutError(Exception):
    """The handler overran its deadline and was cancelled."""


class Deadlines:
    """Of *runners*, as they come and go."""

    def __init__(self, runners: Collection[Runner], clock: Clock) -> None:
        self._runners = runners
        self._clock = clock
        self._timer: Timer | None = None
        self._due_s = math.inf

    def watch(self, deadline_s: float) -> None:
        """A handler has begun that is to end by then."""
        # Costs nothing for all but the earliest deadline; no timer per message.
        if deadline_s < self._due_s:
            self.close()
            self._due_s = deadline_s
            self._timer = self._clock.call_later(max(0.0, deadline_s - self._clock.monotonic_s()), self._look)

    def close(self) -> None:
        """Look no more."""
        if self._timer is not None:
            self._timer.cancel()

    def _look(self) -> None:
        self._timer, self._due_s = None, math.inf
        now_s = self._clock.monotonic_s()
        for runner in self._runners:
            if runner.deadline_s <= now_s:
                runner.deadline_s = now_s + _overrun(runner)
        waiting = [runner.deadline_s for runner in self._runners if runner.deadline_s < math.inf]
        if waiting:
            self.watch(min(waiting))


def _overrun(runner: Runner) -> float:
    """Cut its handler, or tell that it was cut and goes on; seconds after which to look again."""
    if runner.cut is None:
        runner.interrupt(HandlerTimeoutError)
        return _GRACE_S
    delivery = runner.delivery
    if delivery is not None:
        _log.error(
            "handler.does_not_end",
            message_id=delivery.message.message_id if delivery.message else None,
            type=delivery.label,
            detail="it was cancelled and goes on, as a thread does: its message, and those of its key behind it, wait for it",
        )
    return _AGAIN_S
