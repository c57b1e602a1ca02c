"""When the inbox's file is synchronised: not at every commit.

Most are claims, and no crash of the machine leaves anybody who has one. A machine that dies so soon after a claim is
not counted against the message.

Owns taking that over from SQLite, and what follows a disk that has failed at it. Does not own what has to be durable
(`writer`).
"""

from __future__ import annotations

import contextlib
import os
import sqlite3

from bus.errors import InboxError

__all__ = ["Syncing"]

_datasync = getattr(os, "fdatasync", os.fsync)


class Syncing:
    """Of the file at *path*, whatever connections it has one after another."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._connection: sqlite3.Connection | None = None
        self._log: int | None = None
        self._is_doubtful = False
        self.is_loose = False
        """Something was committed that a crash of the machine could take back."""

    def take_over(self, connection: sqlite3.Connection) -> None:
        """Synchronise for *connection*, where it writes ahead and that log can be opened.

        Else SQLite goes on to do so at every commit.
        """
        self._connection = connection
        if connection.execute("PRAGMA journal_mode").fetchone()[0] != "wal":
            return
        with contextlib.suppress(OSError):
            # SQLite takes no lock on this file. Any other of its files, closed here, would give up all locks that this
            # process has on it.
            self._log = os.open(f"{self._path}-wal", os.O_RDWR | os.O_CLOEXEC)
            # SQLite still synchronises when it copies the log into the database, and when it begins it anew.
            connection.execute("PRAGMA synchronous = NORMAL")

    def let_go(self) -> None:
        """The connection was closed. What it has committed is not forgotten."""
        self._connection = None
        if self._log is not None:
            os.close(self._log)
            self._log = None

    def committed(self) -> None:
        """Something was, and outlives this process from here on."""
        self.is_loose = True

    def sync(self) -> None:
        """Have what was committed outlive a crash of the machine, too. Raises InboxError."""
        if not self.is_loose:
            return
        if self._connection is None:
            raise InboxError(
                f"what was written to the inbox {self._path} may not be on its disk: it could not be opened again yet"
            )
        try:
            if self._is_doubtful:
                _write_back(self._connection)
            elif self._log is not None:
                _datasync(self._log)
        except (OSError, sqlite3.Error) as error:
            self._is_doubtful = True
            raise InboxError(f"what was written to the inbox {self._path} may not be on its disk: {error}") from error
        self.is_loose = self._is_doubtful = False


def _write_back(connection: sqlite3.Connection) -> None:
    """Copy the whole log into the database, which takes another way.

    A disk that has failed once may call written what it has lost.
    """
    if connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]:
        raise sqlite3.OperationalError("the write-ahead log could not be written back yet")
