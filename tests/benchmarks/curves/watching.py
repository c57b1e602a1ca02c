"""What other processes use, as /proc tells it: processor time, resident memory, open files.

Owns reading it, once or again and again in a thread. Where there is no /proc everything is None.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["CpuNotes", "cpu_s", "cpu_watched", "files_open", "resident_mb"]

CpuNotes = list[tuple[float, float]]
_EVERY_S = 0.05


def cpu_s(pid: int | None) -> float | None:
    """Processor seconds of *pid* so far, of all its threads."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text("ascii", "replace").rpartition(")")[2].split()
    except OSError:
        return None
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def resident_mb(pid: int | None) -> float | None:
    """Resident memory of *pid*."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6
    except (OSError, IndexError):
        return None


def files_open(pid: int | None) -> int | None:
    """Open file handles of *pid*, sockets among them."""
    try:
        return len(list(Path(f"/proc/{pid}/fd").iterdir()))
    except OSError:
        return None


@contextmanager
def cpu_watched(pid: int | None) -> Iterator[CpuNotes]:
    """(wall time, processor seconds) of *pid* while the context lasts."""
    notes: CpuNotes = []
    ended = threading.Event()

    def watch() -> None:
        while (used_s := cpu_s(pid)) is not None:
            notes.append((time.time(), used_s))
            if ended.wait(_EVERY_S):
                return

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield notes
    finally:
        ended.set()
        thread.join()
