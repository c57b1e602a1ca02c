"""A SQLite file that several processes open: switching it to write-ahead logging, and noticing that it was replaced.

Owns what is the same for every such file of sealbus, be it the log, an inbox or an outbox. Does not own tables or what errors mean.
"""

from __future__ import annotations

import sqlite3
import time
from pathlib import Path

__all__ = ["MEMORY", "identity_of", "switch_to_wal"]

MEMORY = ":memory:"

_TURN_S = 0.01


def switch_to_wal(connection: sqlite3.Connection, timeout_s: float) -> None:
    """Two processes that switch one new file at once: the loser gets BUSY without SQLite's own waiting, so this waits."""
    give_up_s = time.monotonic() + timeout_s
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
        except sqlite3.OperationalError as error:
            if getattr(error, "sqlite_errorcode", 0) & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > give_up_s:
                raise
            time.sleep(_TURN_S)
        else:
            return


def identity_of(path: str) -> tuple[int, int] | None:
    """Which file stands at *path* now; None for none, and in memory."""
    if path == MEMORY:
        return None
    try:
        found = Path(path).stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino
