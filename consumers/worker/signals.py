"""Whether a signal asks a second time, or is the first one once more.

Owns that judgement. `timeout` signals a process and then its group, which the process is in; of a service that is
stopped systemd signals every process, the supervisor among them, which hands it on to its children. What a signal does
is its receiver's.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

__all__ = ["ECHO_S", "RepeatedSignal"]

ECHO_S: Final = 0.05
"""So soon after the first, a signal is no second one: nobody presses Ctrl-C so fast."""


class RepeatedSignal:
    """The signals that one process has got; *echo_s* after the first they begin to count."""

    def __init__(self, echo_s: float = ECHO_S, now_s: Callable[[], float] = time.monotonic) -> None:
        self._echo_s = echo_s
        self._now_s = now_s
        self._first_s: float | None = None

    def grows(self) -> bool | None:
        """A signal came: None for the first, then whether it insists."""
        now_s = self._now_s()
        if self._first_s is None:
            self._first_s = now_s
            return None
        return now_s - self._first_s > self._echo_s
