"""One write transaction at a time on the log's file.

Owns the writing connection (begin, staged records, commit, roll back) and the known topics and listeners. Threads,
queues and jobs are in `group_commit`.

Records are staged and inserted many per statement just before the commit. SQLite releases the GIL once per statement,
and each release lets a busy event loop keep it for a whole switch interval.
"""

from __future__ import annotations

import contextlib
import sqlite3
from functools import lru_cache
from itertools import chain
from typing import Any

import msgspec

from bus.databases.sqlite_file import begin_writing, gives_room_back, identity_of
from bus.errors import BusError
from bus.transports.base import TopicSpec
from bus.transports.sqlite import schema
from bus.transports.sqlite.errors import check_identity
from bus.transports.sqlite.schema import MEMORY, open_log

__all__ = ["MEMBERSHIP", "LogFile", "Topic"]

MEMBERSHIP = 0
"""The wake-up key for groups; every other key is the id of a topic that received records."""

_COLUMNS = 6
_MAX_ROWS = 512
_STEP_ROWS = 64


class Topic(msgspec.Struct, frozen=True):
    """A topic with the row ids of its partitions, in order."""

    id: int
    spec: TopicSpec
    parts: tuple[int, ...]


class Staged(msgspec.Struct, eq=False, gc=False):
    """The rows one partition gets with the commit: the columns of all rows in one flat list, *rows*.

    They are written by partition, not by arrival: a page of the file then holds nearly only records of one partition.
    """

    next_offset: int
    size: int = 0
    rows: list[Any] = []


class LogFile:
    """The writing connection. Used by one thread at a time."""

    def __init__(self, path: str, *, shared_files: bool = False) -> None:
        self.path = path
        self._shared_files = shared_files
        self.connection = open_log(path, shared_files=shared_files)
        self._is_copy = bool(self.connection.execute("PRAGMA query_only").fetchone()[0])
        """Whether the database is read-only: then topics can be read, and a write fails."""
        self.topics: dict[str, Topic] = {}
        self.ports: tuple[int, ...] = ()
        self.touched: set[int] = set()
        self._announced: set[int] = set()
        self.staged: dict[int, Staged] = {}
        self.was_full = False
        """Whether the disk was full and the write-ahead log still has its full size."""
        self._generation = -1
        self._identity = identity_of(path)

    def begin(self) -> None:
        """Take the write lock and load what other processes changed.

        Raises TransportError if the file at the path was replaced.
        """
        check_identity(self.path, self._identity)
        if self.was_full:
            self.was_full = not gives_room_back(self.connection, self.path)
        if self._is_copy:
            self.connection.execute("BEGIN")
        else:
            begin_writing(self.connection, schema.BUSY_TIMEOUT_S)
        generation = self.connection.execute("SELECT number FROM generation").fetchone()[0]
        if generation != self._generation:
            self._reload()
            self._generation = generation

    def changed(self) -> None:
        """Make every connection reload topics and listeners, which were changed."""
        self.connection.execute("UPDATE generation SET number = number + 1")
        self._generation = -1
        self._reload()

    def stage(self, part: int) -> Staged:
        """Return the staged rows of a partition."""
        staged = self.staged.get(part)
        if staged is None:
            next_offset = self.connection.execute(
                "SELECT next_offset FROM partitions WHERE id = ?", (part,)
            ).fetchone()[0]
            staged = self.staged[part] = Staged(next_offset)
        return staged

    def flush(self) -> None:
        """Write the staged rows; only COMMIT is left to do."""
        rows = [*chain.from_iterable(staged.rows for staged in self.staged.values())]
        done, left = 0, len(rows) // _COLUMNS
        while left:
            count = _rows_at_once(left)
            self.connection.execute(_insert(count), rows[done : done + count * _COLUMNS])
            done += count * _COLUMNS
            left -= count
        self.connection.executemany(
            "UPDATE partitions SET next_offset = ?, bytes = bytes + ? WHERE id = ?",
            [(staged.next_offset, staged.size, part) for part, staged in self.staged.items()],
        )

    def commit(self) -> None:
        """Make the transaction durable."""
        self.connection.execute("COMMIT")
        self.staged.clear()
        self._announced |= self.touched
        self.touched.clear()

    def take_announced(self) -> set[int]:
        """Return the wake-up keys of all commits since the last call."""
        announced, self._announced = self._announced, set()
        return announced

    def rollback(self) -> None:
        """Undo everything since `begin`, with a new connection if this one cannot."""
        # Topics may have been loaded from the undone transaction.
        self._generation = -1
        self.staged.clear()
        self.touched.clear()
        try:
            if self.connection.in_transaction:
                self.connection.execute("ROLLBACK")
        except sqlite3.Error:
            self.reopen()

    def reopen(self) -> None:
        """Replace the connection: closing it without COMMIT undoes its transaction."""
        if self.path != MEMORY:
            self.connection.close()
            # If it cannot be opened now, the next `begin` fails on the closed connection and reopens again.
            with contextlib.suppress(BusError):
                self.connection = open_log(self.path, shared_files=self._shared_files)

    def close(self) -> None:
        self.connection.close()

    def _reload(self) -> None:
        parts: dict[int, list[int]] = {}
        for topic, part in self.connection.execute("SELECT topic_id, id FROM partitions ORDER BY topic_id, partition"):
            parts.setdefault(topic, []).append(part)
        rows = self.connection.execute("SELECT id, name, retention_ms, retention_bytes, compacted FROM topics")
        # Another program may have left a topic without partitions. It can take no record, so it counts as absent until
        # it is created again.
        self.topics = {
            name: Topic(
                id,
                TopicSpec(
                    name=name,
                    partitions=len(parts[id]),
                    retention_ms=age,
                    retention_bytes=size,
                    compacted=bool(compacted),
                ),
                tuple(parts[id]),
            )
            for id, name, age, size, compacted in rows  # noqa: A001 - the column's name
            if id in parts
        }
        self.ports = tuple(row[0] for row in self.connection.execute("SELECT port FROM listeners"))


def _rows_at_once(left: int) -> int:
    """Return how many rows the next statement inserts.

    Few statements per flush, and few different ones: each is compiled once and cached.
    """
    if left >= _MAX_ROWS:
        return _MAX_ROWS
    return left if left < _STEP_ROWS else left // _STEP_ROWS * _STEP_ROWS


@lru_cache(maxsize=128)
def _insert(rows: int) -> str:
    # OR FAIL: a row that cannot be written undoes the whole transaction, so SQLite need not prepare to undo one
    # statement.
    values = ", ".join(["(?, ?, ?, ?, ?, ?)"] * rows)
    return f"INSERT OR FAIL INTO records (part, off, ts, key, value, headers) VALUES {values}"  # noqa: S608
