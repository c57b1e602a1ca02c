"""Table: the inbox's tables in a SQLite file, and one write transaction at a time on them.

Owns the SQL: tables, rows of many keys in one statement, owners and their leases. Requests come from `group_commit`,
decisions from `consumers.delivery.inbox.claim_rules`; `wal_sync` synchronises the file. Raises sqlite3's errors, and
InboxError where the file was replaced.

Few statements per transaction: SQLite releases the interpreter once per statement, and every release lets a busy event
loop take a whole switch interval before it hands the interpreter back. Claims and results are written OR FAIL: any
failure undoes the whole transaction, so SQLite need not record, in a file of its own, how to undo one statement of
it.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import TypeVar

from bus.databases.ownership import keep_private
from bus.databases.sqlite_file import (
    MEMORY,
    begin_writing,
    fixed,
    gives_room_back,
    has_folder,
    identity_of,
    switch_to_wal,
)
from bus.errors import ConfigurationError, InboxError
from consumers.delivery.inbox.claim_rules import CLOSED, ClaimRow
from consumers.delivery.inbox.sqlite.wal_sync import Syncing

__all__ = ["MEMORY", "Table"]

_T = TypeVar("_T")

SQLITE_INBOX_VERSION = 2
INBOX_BUSY_TIMEOUT_S = 5.0

_MAX_AT_ONCE = 256
_STEP = 8
_FORGET_OWNERS_MS = 30 * 86_400_000
"""A death that no claim has looked at for so long no longer counts."""

_COLUMNS = (
    "key, content_hash, state, owner, token, keep_until_ms, "
    "starts, deaths, suspect, alone, reopened, outputs, message_id"
)
_TABLES = (
    """CREATE TABLE sealbus_inbox (
       id INTEGER PRIMARY KEY, key TEXT NOT NULL UNIQUE, content_hash TEXT NOT NULL, state TEXT NOT NULL,
       owner INTEGER NOT NULL, token INTEGER NOT NULL, keep_until_ms INTEGER NOT NULL,
       starts INTEGER NOT NULL, deaths INTEGER NOT NULL, suspect INTEGER NOT NULL, alone INTEGER NOT NULL,
       reopened INTEGER NOT NULL, outputs BLOB NOT NULL, message_id TEXT NOT NULL DEFAULT '')""",
    "CREATE INDEX sealbus_inbox_by_time ON sealbus_inbox (keep_until_ms)",
    # AUTOINCREMENT: a number is one incarnation of an owner, so it must never come back.
    """CREATE TABLE sealbus_inbox_owners (
       id INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT NOT NULL,
       renewed_s REAL NOT NULL, lease_s REAL NOT NULL, renewed_ms INTEGER NOT NULL)""",
)


class Table:
    """The writing connection. Used by one thread at a time; opened by the first `begin`, and again after a failure."""

    def __init__(self, path: str, *, shared_files: bool = False) -> None:
        self.path = fixed(path)
        self._shared_files = shared_files
        self._connection: sqlite3.Connection | None = None
        self._identity: tuple[int, int] | None = None
        self._syncing = Syncing(self.path)
        self.was_full = False
        """A write found no room, and the write-ahead log still has all that it took."""

    @property
    def connection(self) -> sqlite3.Connection:
        """The connection that `begin` has opened."""
        assert self._connection is not None  # noqa: S101 - see above
        return self._connection

    @property
    def in_transaction(self) -> bool:
        return self._connection is not None and self._connection.in_transaction

    def begin(self) -> None:
        """Take the write lock. Raises InboxError when another file is at its path now."""
        if self._identity is not None and self._identity != identity_of(self.path):
            raise InboxError(f"the inbox {self.path} was deleted or replaced while it was open; start again")
        if self._connection is None:
            self._connection = _opened(self.path, shared_files=self._shared_files)
            self._identity = identity_of(self.path)
            if self.path != MEMORY:
                self._syncing.take_over(self._connection)
        if self.was_full:
            self.was_full = not gives_room_back(self._connection, self.path)
        begin_writing(self._connection, INBOX_BUSY_TIMEOUT_S)

    def commit(self) -> None:
        """Commit: from now on the writes survive this process."""
        self.connection.execute("COMMIT TRANSACTION")
        if self.path != MEMORY:
            self._syncing.committed()

    @property
    def is_loose(self) -> bool:
        """Whether something was committed and not yet synchronised."""
        return self._syncing.is_loose

    def sync(self) -> None:
        """Make commits survive a crash of the machine too. Raises InboxError."""
        self._syncing.sync()

    def rollback(self) -> None:
        """Undo everything since `begin`, if need be by closing the connection."""
        try:
            if self.in_transaction:
                self.connection.execute("ROLLBACK TRANSACTION")
        except sqlite3.Error:
            self.disconnect()

    def disconnect(self) -> None:
        """Close the connection, which undoes what it has not committed; a database in memory stays."""
        if self._connection is not None and self.path != MEMORY:
            self.close()

    def close(self) -> None:
        if self._connection is not None:
            with contextlib.suppress(sqlite3.Error):
                self._connection.close()
            self._connection = None
        self._syncing.let_go()

    def rows(self, keys: Iterable[str]) -> dict[str, ClaimRow]:
        """Return the rows under *keys*."""
        found: dict[str, ClaimRow] = {}
        remaining = iter(keys)
        while chunk := tuple(islice(remaining, _MAX_AT_ONCE)):
            padded = _padded(chunk)
            for (
                key,
                content_hash,
                state,
                owner,
                token,
                until_ms,
                starts,
                deaths,
                suspect,
                alone,
                *rest,
            ) in self.connection.execute(_select(len(padded)), padded):
                found[key] = ClaimRow(
                    content_hash, state, owner, token, until_ms, starts, deaths, bool(suspect), bool(alone), *rest
                )
        return found

    def write(self, rows: Mapping[str, ClaimRow]) -> None:
        """Replace the rows under the keys of *rows*."""
        remaining = iter(rows.items())
        while chunk := tuple(islice(remaining, _MAX_AT_ONCE)):
            values: list[object] = []
            for key, row in chunk:
                values += (key, row.content_hash, row.state, row.owner, row.token, row.keep_until_ms)
                values += (row.starts, row.deaths, row.suspect, row.alone, row.reopened, row.outputs, row.message_id)
            self.connection.execute(_upsert(len(chunk)), values)

    def claim(self, owner: int, firsts: Sequence[tuple[str, str, int, str]]) -> Container[str] | None:
        """Insert a first claim of *owner* where no row exists; return where, None for everywhere.

        *firsts* are of key, content hash, keep_until_ms and message id.
        """
        count = 0
        written: set[str] = set()
        for chunk in _chunks(firsts):
            values: list[object] = []
            for key, content_hash, keep_until_ms, message_id in _padded(chunk):
                values += (key, content_hash, owner, keep_until_ms, message_id)
            cursor = self.connection.execute(_claim(len(values) // 5), values)
            count += cursor.rowcount
            if cursor.rowcount == len(chunk):
                written.update([key for key, *_ in chunk] if len(firsts) > len(chunk) else ())
            elif cursor.rowcount and cursor.lastrowid is not None:
                # The rows that one statement inserts have the highest numbers, one after another.
                before = cursor.lastrowid - cursor.rowcount
                written.update(
                    key for (key,) in self.connection.execute("SELECT key FROM sealbus_inbox WHERE id > ?", (before,))
                )
        return None if count == len(firsts) else written

    def finish(self, owner: int, token: int, keys: Sequence[str]) -> bool:
        """Mark *keys*, claimed by *owner* with *token*, done without outputs; return whether all claims were valid."""
        count = 0
        for chunk in _chunks(keys):
            values = (*_padded(chunk), owner, token)
            count += self.connection.execute(_finish(len(values) - 2), values).rowcount
        return count == len(keys)

    def finish_with(self, owner: int, results: Sequence[tuple[str, int, bytes]]) -> bool:
        """`finish`, with outputs (*results* are of key, token, outputs)."""
        count = 0
        for chunk in _chunks(results):
            values = [value for result in _padded(chunk) for value in result]
            count += self.connection.execute(_finish_with(len(values) // 3), (*values, owner)).rowcount
        return count == len(results)

    def delete(self, key: str) -> None:
        """Delete the row under *key*."""
        self.connection.execute("DELETE FROM sealbus_inbox WHERE key = ?", (key,))

    def purge(self, now_ms: int, now_s: float, limit: int) -> int:
        """Delete at most *limit* expired rows that no live owner has claimed; return how many."""
        # A wall clock that leaps says nothing about who is alive.
        self.connection.execute(
            "DELETE FROM sealbus_inbox_owners WHERE renewed_ms < ? AND abs(? - renewed_s) > lease_s",
            (now_ms - _FORGET_OWNERS_MS, now_s),
        )
        return self.connection.execute(
            """DELETE FROM sealbus_inbox WHERE id IN (
                   SELECT id FROM sealbus_inbox
                   WHERE keep_until_ms < ?
                       AND NOT (state = 'claimed' AND owner IN (
                           SELECT id FROM sealbus_inbox_owners WHERE abs(? - renewed_s) <= lease_s))
                   ORDER BY keep_until_ms LIMIT ?)""",
            (now_ms, now_s, limit),
        ).rowcount

    def enrol(self, name: str, lease_s: float, now_ms: int, now_s: float) -> int:
        """Return the number of a new owner, which is alive from now on."""
        number = self.connection.execute(
            "INSERT INTO sealbus_inbox_owners (name, renewed_s, lease_s, renewed_ms) VALUES (?, ?, ?, ?)",
            (name, now_s, lease_s, now_ms),
        ).lastrowid
        assert number is not None  # noqa: S101 - of an INSERT
        return number

    def renew(self, owner: int, name: str, lease_s: float, now_ms: int, now_s: float) -> None:
        """Renew the lease of *owner*, also where its row had been deleted."""
        self.connection.execute(
            """INSERT INTO sealbus_inbox_owners (id, name, renewed_s, lease_s, renewed_ms) VALUES (?, ?, ?, ?, ?)
               ON CONFLICT (id) DO UPDATE SET renewed_s = excluded.renewed_s, renewed_ms = excluded.renewed_ms""",
            (owner, name, now_s, lease_s, now_ms),
        )

    def strike(self, owner: int) -> None:
        """Delete *owner*, which has closed in order."""
        self.connection.execute("DELETE FROM sealbus_inbox_owners WHERE id = ?", (owner,))

    def rest_s(self, owner: int, now_s: float) -> float | None:
        """Return the seconds for which the lease of *owner* still runs; CLOSED where it has closed."""
        row = self.connection.execute(
            "SELECT renewed_s, lease_s FROM sealbus_inbox_owners WHERE id = ?", (owner,)
        ).fetchone()
        # A reboot restarts monotonic seconds: a time far away, on either side, is long ago.
        return CLOSED if row is None else float(row[1]) - abs(now_s - float(row[0]))


def _chunks(items: Sequence[_T]) -> Iterator[Sequence[_T]]:
    if len(items) <= _MAX_AT_ONCE:
        return iter((items,))
    return (items[at : at + _MAX_AT_ONCE] for at in range(0, len(items), _MAX_AT_ONCE))


def _padded(chunk: Sequence[_T]) -> list[_T]:
    """Return *chunk* padded with its last item to one of few lengths.

    Each length is a statement that SQLite compiles and caches.
    """
    step = 1 if len(chunk) < _STEP else _STEP
    return [*chunk, *([chunk[-1]] * (-len(chunk) % step))]


@lru_cache(maxsize=_MAX_AT_ONCE)
def _claim(count: int) -> str:
    values = ", ".join(["(?, ?, 'claimed', ?, 1, ?, 1, 0, 0, 0, 0, x'', ?)"] * count)
    return f"INSERT OR FAIL INTO sealbus_inbox ({_COLUMNS}) VALUES {values} ON CONFLICT (key) DO NOTHING"  # noqa: S608


_DONE = "UPDATE OR FAIL sealbus_inbox SET state = 'done', starts = 0, deaths = 0, suspect = 0, alone = 0"


@lru_cache(maxsize=_MAX_AT_ONCE)
def _finish(count: int) -> str:
    marks = ", ".join("?" * count)
    return f"{_DONE}, outputs = x'' WHERE key IN ({marks}) AND owner = ? AND token = ? AND state = 'claimed'"


@lru_cache(maxsize=_MAX_AT_ONCE)
def _finish_with(count: int) -> str:
    values = ", ".join(["(?, ?, ?)"] * count)
    return (
        f"{_DONE}, outputs = given.column3 FROM (VALUES {values}) AS given "
        "WHERE key = given.column1 AND token = given.column2 AND owner = ? AND state = 'claimed'"
    )


@lru_cache(maxsize=_MAX_AT_ONCE)
def _select(count: int) -> str:
    return f"SELECT {_COLUMNS} FROM sealbus_inbox WHERE key IN ({', '.join('?' * count)})"  # noqa: S608


@lru_cache(maxsize=_MAX_AT_ONCE)
def _upsert(count: int) -> str:
    changing = ", ".join(f"{name} = excluded.{name}" for name in _COLUMNS.split(", ")[1:])
    values = ", ".join([f"({', '.join('?' * len(_COLUMNS.split(',')))})"] * count)
    return f"INSERT INTO sealbus_inbox ({_COLUMNS}) VALUES {values} ON CONFLICT (key) DO UPDATE SET {changing}"  # noqa: S608


def _opened(path: str, *, shared_files: bool) -> sqlite3.Connection:
    if path != MEMORY and not has_folder(path):
        raise InboxError(
            f"cannot open the inbox {path}: no directory {Path(path).parent}; create it or correct the URL"
        )
    keep_private(path, "inbox", shared=shared_files)
    connection = sqlite3.connect(
        path,
        timeout=INBOX_BUSY_TIMEOUT_S,
        isolation_level=None,
        check_same_thread=False,
        cached_statements=2 * _MAX_AT_ONCE + 64,
    )
    try:
        _prepare(connection, path)
    except BaseException:
        connection.close()
        raise
    return connection


def _prepare(connection: sqlite3.Connection, path: str) -> None:
    connection.execute("PRAGMA trusted_schema = OFF")
    switch_to_wal(connection, INBOX_BUSY_TIMEOUT_S)
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("PRAGMA wal_autocheckpoint = 16000")
    connection.execute("PRAGMA journal_size_limit = 67108864")
    connection.execute("PRAGMA cache_size = -16384")
    connection.execute("BEGIN IMMEDIATE TRANSACTION")
    connection.execute("CREATE TABLE IF NOT EXISTS sealbus_schema (part TEXT PRIMARY KEY, version INTEGER NOT NULL)")
    row = connection.execute("SELECT version FROM sealbus_schema WHERE part = 'inbox'").fetchone()
    if row is None:
        for statement in _TABLES:
            connection.execute(statement)
        connection.execute("INSERT INTO sealbus_schema VALUES ('inbox', ?)", (SQLITE_INBOX_VERSION,))
    elif row[0] > SQLITE_INBOX_VERSION:
        raise ConfigurationError(
            f"the inbox {path} has schema {row[0]}, this sealbus knows {SQLITE_INBOX_VERSION}: "
            "install the newer sealbus"
        )
    elif row[0] < SQLITE_INBOX_VERSION:
        connection.execute("ALTER TABLE sealbus_inbox ADD COLUMN message_id TEXT NOT NULL DEFAULT ''")
        connection.execute("UPDATE sealbus_schema SET version = ? WHERE part = 'inbox'", (SQLITE_INBOX_VERSION,))
    connection.execute("COMMIT TRANSACTION")
    # From here on `begin_writing` waits.
    connection.execute("PRAGMA busy_timeout = 0")
