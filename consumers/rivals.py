"""Whether an earlier run of a command that never said it ended is still at work, or was cut off.

Owns that judgement. On the same machine the process is there or not; elsewhere what the run wrote last decides.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Mapping
from typing import Any, Final

from bus.times import parse_ms

__all__ = ["is_at_work", "whereabouts"]

SILENCE_MS: Final = 60_000
"""A run on another machine that has written nothing for so long was cut off."""


def whereabouts() -> dict[str, object]:
    """Where this run is at work, for its entry in the journal."""
    return {"host": socket.gethostname(), "pid": os.getpid()}


def is_at_work(
    begun: Mapping[str, Any], *, wrote_ms: int, now_ms: int, here: Mapping[str, object], lives: Callable[[int], bool] | None = None
) -> bool:
    """Whether the run that *begun* tells of, and that last wrote at *wrote_ms*, is at work now, as seen from *here*."""
    host, pid = begun.get("host"), begun.get("pid")
    if host == here["host"] and isinstance(pid, int):
        # One process does one thing at a time: an earlier run of this very process has ended.
        return pid != here["pid"] and (lives or _lives)(pid)
    return now_ms - max(wrote_ms, parse_ms(str(begun.get("at", ""))) or 0) < SILENCE_MS


def _lives(pid: int) -> bool:
    if pid <= 0:
        return False
    try:
        os.kill(pid, 0)
    except PermissionError:
        return True
    except (ProcessLookupError, OverflowError):
        return False
    return True
