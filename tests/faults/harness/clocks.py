"""Wrong wall clocks: a process whose time of day is off by what a file says, read anew at each question.

Owns bending `SystemClock.now_ms` in this process and the true time beside it. Monotonic time is nobody's to bend: a
step of the wall clock does not move it in reality either.
"""

from __future__ import annotations

import time
from pathlib import Path

from bus.clock import SystemClock

__all__ = ["bend", "true_ms"]


def true_ms() -> float:
    """Milliseconds since 1970 by the machine's own clock."""
    return time.time() * 1000


def bend(name: str) -> None:
    """From now on the wall clock of this process is off by the seconds in the file *name*; nothing without one."""
    if not name:
        return
    path = Path(name)

    def now_ms(_: SystemClock) -> int:
        try:
            offset_s = float(path.read_text() or 0)
        except (FileNotFoundError, ValueError):
            offset_s = 0.0
        return round((time.time() + offset_s) * 1000)

    SystemClock.now_ms = now_ms
