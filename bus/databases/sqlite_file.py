"""A SQLite file that several processes open.

Owns what log, inbox and outbox share: a stable path, switching to write-ahead logging, taking turns at writing, and
detecting a replaced file. Tables and error translation belong to the callers.
"""

from __future__ import annotations

import contextlib
import random
import shutil
import sqlite3
import time
from pathlib import Path

__all__ = [
    "DATA_FOLDER",
    "MEMORY",
    "begin_writing",
    "fixed",
    "gives_room_back",
    "has_folder",
    "identity_of",
    "switch_to_wal",
]

MEMORY = ":memory:"
DATA_FOLDER = ".sealbus"

_TURN_S = 0.01
_SHORT_WAL_PAGES = 100
_SHORTEST_LOOK_S, _LONGEST_LOOK_S = 0.0005, 0.003


def fixed(path: str) -> str:
    """Return *path* as an absolute path.

    A handler may change the working directory, and a connection is opened more than once.
    """
    return path if path == MEMORY else str(Path(path).absolute())


def has_folder(path: str) -> bool:
    """Return whether the folder of *path* is there. That of a project's data, `.sealbus`, is created.

    Git does not keep `.sealbus`, so a clone has none. Other folders are not created: the path may be a mistake.
    """
    folder = Path(path).parent
    if folder.name == DATA_FOLDER:
        with contextlib.suppress(OSError):
            folder.mkdir(exist_ok=True)
    return folder.is_dir()


def switch_to_wal(connection: sqlite3.Connection, timeout_s: float) -> None:
    """Switch the file to write-ahead logging, waiting if another process does so.

    If two processes switch a new file at once, one gets BUSY at once, without SQLite's own waiting.
    """
    _retry_locked(connection, "PRAGMA journal_mode = WAL", timeout_s, (_TURN_S, _TURN_S))


def begin_writing(connection: sqlite3.Connection, timeout_s: float) -> None:
    """Run BEGIN IMMEDIATE, waiting at most *timeout_s* for other writers; the connection's own timeout must be 0.

    SQLite's own waiting polls ever more rarely, in the end every 100 ms. A busy writer returns within a few
    milliseconds. One of several busy processes could thus find the file locked at each poll, for longer than a lease.
    """
    _retry_locked(connection, "BEGIN IMMEDIATE TRANSACTION", timeout_s, (_SHORTEST_LOOK_S, _LONGEST_LOOK_S))


def gives_room_back(connection: sqlite3.Connection, path: str) -> bool:
    """Truncate the write-ahead log after the disk was full; return whether that succeeded.

    Its content is written back, and it stays short from now on. A log of usual length could fill the disk again and
    leave no room for writing it back.
    """
    try:
        pages, size = (connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("page_count", "page_size"))
        # Started without room for all of it, it would take the free space and release none.
        if pages * size - Path(path).stat().st_size > shutil.disk_usage(Path(path).parent).free:
            return False
        connection.execute(f"PRAGMA wal_autocheckpoint = {_SHORT_WAL_PAGES}")
        busy: int = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]
    except (sqlite3.Error, OSError):
        return False
    return not busy


def _retry_locked(
    connection: sqlite3.Connection, statement: str, timeout_s: float, pauses_s: tuple[float, float]
) -> None:
    give_up_s = time.monotonic() + timeout_s
    while True:
        try:
            connection.execute(statement)
        except sqlite3.OperationalError as error:
            if getattr(error, "sqlite_errorcode", 0) & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > give_up_s:
                raise
            # Random, so that two waiting processes do not poll in step with the one they wait for.
            time.sleep(random.uniform(*pauses_s))  # noqa: S311 - nothing is secret about a pause
        else:
            return


def identity_of(path: str) -> tuple[int, int] | None:
    """Return the identity (device, inode) of the file at *path*; None for no file, and in memory."""
    if path == MEMORY:
        return None
    try:
        found = Path(path).stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino
