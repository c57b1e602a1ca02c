"""Which process has the one writer of a SQLite file, as far as the operating system tells. Linux only."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Final

__all__ = ["who_writes"]

_LOCKS: Final = Path("/proc/locks")
_WRITER_BYTE: Final = 120
"""In a file's `-shm`, the byte that whoever writes has locked (https://sqlite.org/walformat.html)."""
_FIELDS: Final = 8
_MAX_COMMAND: Final = 80


def who_writes(path: str) -> str:
    """Return the other process that has the writer of the database at *path*; empty where none is seen."""
    try:
        inode = Path(f"{path}-shm").stat().st_ino
        lines = _LOCKS.read_text().splitlines()
    except OSError:
        return ""
    for line in lines:
        # `1: POSIX  ADVISORY  WRITE 4711 08:01:1234 120 120`; who waits has an arrow there.
        words = line.split()
        if len(words) != _FIELDS or words[3] != "WRITE" or words[5].rpartition(":")[2] != str(inode):
            continue
        pid, start, end = words[4], words[6], words[7]
        if (
            int(start) <= _WRITER_BYTE
            and (end == "EOF" or int(end) >= _WRITER_BYTE)
            and int(pid) not in (os.getpid(), 0)
        ):
            return f"process {pid}{_command(pid)}, which has the writer of {path}"
    return ""


def _command(pid: str) -> str:
    with contextlib.suppress(OSError):
        words = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace").strip()
        return f" ({words[:_MAX_COMMAND]})" if words else ""
    return ""
