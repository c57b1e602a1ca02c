"""RepeatedSignal: tells a second signal from an echo of the first.

`timeout` signals a process and then its group, which includes the process. On stopping a service, systemd signals every
process, and the supervisor among them passes it on to its children. The receiver decides what a signal does.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from typing import Final

__all__ = ["ECHO_S", "RepeatedSignal", "ending_signals"]

ECHO_S: Final = 0.05
"""A signal within so many seconds of the first is an echo: Ctrl-C is not pressed twice so fast."""


def ending_signals() -> tuple[signal.Signals, ...]:
    """Return the signals that end a worker in order: SIGTERM, SIGINT, and SIGHUP (the terminal was closed).

    `nohup` has SIGHUP ignored, and it stays so.
    """
    hangup = getattr(signal, "SIGHUP", None)
    if hangup is None or signal.getsignal(hangup) is signal.SIG_IGN:
        return signal.SIGTERM, signal.SIGINT
    return signal.SIGTERM, signal.SIGINT, hangup


class RepeatedSignal:
    """The signals that one process has received; *echo_s* seconds after the first they count."""

    def __init__(self, echo_s: float = ECHO_S, now_s: Callable[[], float] = time.monotonic) -> None:
        self._echo_s = echo_s
        self._now_s = now_s
        self._first_s: float | None = None

    def grows(self) -> bool | None:
        """Note a signal; return None for the first, then whether it is a second one."""
        now_s = self._now_s()
        if self._first_s is None:
            self._first_s = now_s
            return None
        return now_s - self._first_s > self._echo_s
