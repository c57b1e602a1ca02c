"""Syncing: when the inbox's file is synchronised, which is not at every commit.

Most commits are claims, and a claim does not matter after a crash of the machine: its worker is gone too. A machine
that dies soon after a claim does not count as a death of the message.

Owns replacing SQLite's own synchronising, and the handling of a disk that failed to sync. `group_commit` decides which
jobs have to be durable.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3

from bus.errors import InboxError

__all__ = ["Syncing"]

_datasync = getattr(os, "fdatasync", os.fsync)


class Syncing:
    """Synchronises the file at *path*, for its connections one after another."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._connection: sqlite3.Connection | None = None
        self._log: int | None = None
        self._is_doubtful = False
        self.is_loose = False
        """Something was committed that a crash of the machine could undo."""

    def take_over(self, connection: sqlite3.Connection) -> None:
        """Synchronise for *connection*, where it writes ahead and that log can be opened.

        Otherwise SQLite still synchronises at every commit.
        """
        self._connection = connection
        if connection.execute("PRAGMA journal_mode").fetchone()[0] != "wal":
            return
        with contextlib.suppress(OSError):
            # SQLite takes no lock on this file. Closing any other of its files here would release all locks that this
            # process has on it.
            self._log = os.open(f"{self._path}-wal", os.O_RDWR | os.O_CLOEXEC)
            # SQLite still synchronises when it copies the log into the database, and when it restarts the log.
            connection.execute("PRAGMA synchronous = NORMAL")

    def let_go(self) -> None:
        """Note that the connection was closed; its commits are not forgotten."""
        self._connection = None
        if self._log is not None:
            os.close(self._log)
            self._log = None

    def committed(self) -> None:
        """Note a commit, which survives this process from here on."""
        self.is_loose = True

    def sync(self) -> None:
        """Make commits survive a crash of the machine too. Raises InboxError."""
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
    """Copy the whole log into the database, a second way to the disk.

    A disk that has failed once may report as written what it has lost.
    """
    if connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]:
        raise sqlite3.OperationalError("the write-ahead log could not be written back yet")
