"""Whether an earlier run of a command that never said it ended is still at work, or was cut off.

Owns that judgement. On the same machine the process is there or not, or its number is another's by now; elsewhere what the run wrote last
decides.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from consumers.journal import QUIET_S, Begun

__all__ = ["is_at_work", "one_at_work", "process_of", "whereabouts"]

SILENCE_MS: Final = round(3 * QUIET_S * 1000)
"""A run on another machine that has written nothing for so long was cut off."""


def whereabouts() -> dict[str, Any]:
    """Where this run is at work, for its entry in the journal."""
    return {"host": socket.gethostname(), "pid": os.getpid(), "process": process_of(os.getpid())}


def process_of(pid: int) -> str:
    """What tells the process *pid* from all others that have had, or will have, its number; empty where the system does not say."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
        # The second field is the program's name in parentheses, which may hold anything; the twenty-second is when the process began.
        began = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[19]
    except (OSError, ValueError, IndexError):
        return ""
    return f"{boot}/{began.decode('ascii', 'replace')}"


def is_at_work(begun: Begun, *, wrote_ms: int, now_ms: int, here: Mapping[str, object], lives: Callable[[int], bool] | None = None) -> bool:
    """Whether the run that *begun* tells of, and that last wrote at *wrote_ms*, is at work now, as seen from *here*.

    Times are the log's: that of another machine may be wrong by more than anybody is silent.
    """
    if begun.host == here["host"] and begun.pid:
        # One process does one thing at a time: an earlier run of this very process has ended.
        its_own = not begun.process or process_of(begun.pid) in ("", begun.process)
        return begun.pid != here["pid"] and (lives or _lives)(begun.pid) and its_own
    return now_ms - max(wrote_ms, begun.appended_ms) < SILENCE_MS


def one_at_work(earlier: Mapping[str, Begun], wrote_ms: Mapping[str, int], now_ms: int) -> str:
    """One of *earlier* runs that is not through yet, or nothing; *wrote_ms* says when they last recorded a state."""
    for run, begun in earlier.items():
        if is_at_work(begun, wrote_ms=wrote_ms.get(run, 0), now_ms=now_ms, here=whereabouts()):
            return str(begun)
    return ""


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
