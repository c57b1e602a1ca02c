"""A SQLite file that several processes open.

Where it is, switching it to write-ahead logging, taking turns at writing, and noticing that it was replaced.

Owns what is the same for every such file of sealbus, be it the log, an inbox or an outbox. Does not own tables or what
errors mean.
"""

from __future__ import annotations

import random
import shutil
import sqlite3
import time
from pathlib import Path

__all__ = ["MEMORY", "begin_writing", "fixed", "gives_room_back", "identity_of", "switch_to_wal"]

MEMORY = ":memory:"

_TURN_S = 0.01
_SHORT_WAL_PAGES = 100
_SHORTEST_LOOK_S, _LONGEST_LOOK_S = 0.0005, 0.003


def fixed(path: str) -> str:
    """*path* as it means the same file from now on.

    A handler may change the working directory, and a connection is opened more than once.
    """
    return path if path == MEMORY else str(Path(path).absolute())


def switch_to_wal(connection: sqlite3.Connection, timeout_s: float) -> None:
    """Switch the file to write-ahead logging, and wait where another process does so.

    Of two processes that switch one new file at once the loser gets BUSY, without SQLite's own waiting.
    """
    _insist(connection, "PRAGMA journal_mode = WAL", timeout_s, (_TURN_S, _TURN_S))


def begin_writing(connection: sqlite3.Connection, timeout_s: float) -> None:
    """BEGIN IMMEDIATE, waiting for other writers at most *timeout_s*; the connection's own timeout is to be 0.

    SQLite's own waiting looks ever more rarely, every 100 ms in the end. A writer that has more to write is back within
    a few, so that of several busy processes one could find the file locked whenever it looked, for longer than a lease.
    """
    _insist(connection, "BEGIN IMMEDIATE TRANSACTION", timeout_s, (_SHORTEST_LOOK_S, _LONGEST_LOOK_S))


def gives_room_back(connection: sqlite3.Connection, path: str) -> bool:
    """Make the write-ahead log short after the disk was full; return whether that went.

    What stands in it is written back; it is cut off, and stays short from now on.

    A log of its usual length could take all the room there is again before it is written back, and then there is none
    to write it back to.
    """
    try:
        pages, size = (connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("page_count", "page_size"))
        # Begun without room for all of it, it would take what room there is and give none back.
        if pages * size - Path(path).stat().st_size > shutil.disk_usage(Path(path).parent).free:
            return False
        connection.execute(f"PRAGMA wal_autocheckpoint = {_SHORT_WAL_PAGES}")
        busy: int = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]
    except (sqlite3.Error, OSError):
        return False
    return not busy


def _insist(connection: sqlite3.Connection, statement: str, timeout_s: float, pauses_s: tuple[float, float]) -> None:
    give_up_s = time.monotonic() + timeout_s
    while True:
        try:
            connection.execute(statement)
        except sqlite3.OperationalError as error:
            if getattr(error, "sqlite_errorcode", 0) & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > give_up_s:
                raise
            # Drawn, so that two who wait do not look in step with the one they wait for.
            time.sleep(random.uniform(*pauses_s))  # noqa: S311 - nothing is secret about a pause
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
