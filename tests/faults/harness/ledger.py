"""The ledger of effects: what handlers have done, one durable row each, whatever becomes of their process.

Owns the table and reading it back. One file is shared by all workers of a run, so its row numbers are the order in which effects happened.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from pathlib import Path

import msgspec

__all__ = ["Ledger", "Run", "payments_in", "runs_of"]

_COLUMNS = "at_ms, worker, pid, kind, message_type, message_id, idempotency_key, lane, number, attempt, expires_ms, content"
_TABLE = f"CREATE TABLE IF NOT EXISTS runs (id INTEGER PRIMARY KEY AUTOINCREMENT, {_COLUMNS})"
_INDEX = "CREATE INDEX IF NOT EXISTS failures ON runs (message_id) WHERE kind = 'failed'"
_INSERT = f"INSERT INTO runs ({_COLUMNS}) VALUES ({', '.join('?' * 12)})"  # noqa: S608 - constants only


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """One row: a handler began (`began`), did its work (`effect`), failed (`failed`) or was cancelled (`cut`)."""

    order: int
    at_ms: float
    worker: str
    pid: int
    kind: str
    message_type: str
    message_id: str
    idempotency_key: str
    lane: str
    number: int
    attempt: int
    expires_ms: int
    content: str


class Ledger:
    """The ledger as a worker writes it."""

    def __init__(self, path: Path) -> None:
        self._connection = sqlite3.connect(path, timeout=60.0, isolation_level=None)
        self._connection.execute("PRAGMA journal_mode = WAL")
        self._connection.execute("PRAGMA synchronous = FULL")
        self._connection.execute(_TABLE)
        self._connection.execute(_INDEX)

    def note(self, *values: object) -> None:
        """Write a row; it is durable when this returns."""
        self._connection.execute(_INSERT, values)

    def failures(self, message_id: str) -> int:
        """How often that message has failed so far, anywhere."""
        return int(self._connection.execute("SELECT count(*) FROM runs WHERE message_id = ? AND kind = 'failed'", (message_id,)).fetchone()[0])

    def close(self) -> None:
        """Release the file."""
        self._connection.close()


def runs_of(path: Path, after: int = 0) -> Sequence[Run]:
    """Every row after number *after*, in order."""
    if not path.exists():
        return ()
    connection = sqlite3.connect(path, timeout=60.0)
    try:
        rows = connection.execute(f"SELECT id, {_COLUMNS} FROM runs WHERE id > ? ORDER BY id", (after,)).fetchall()  # noqa: S608 - constants only
    except sqlite3.OperationalError:
        return ()
    finally:
        connection.close()
    names = Run.__struct_fields__
    return [Run(**dict(zip(names, row, strict=True))) for row in rows]


def payments_in(path: Path) -> dict[str, int]:
    """Idempotency key -> how many payments were made under it, in the transaction of the inbox in the file at *path*."""
    if not path.exists():
        return {}
    connection = sqlite3.connect(path, timeout=60.0)
    try:
        return dict(connection.execute("SELECT idempotency_key, count(*) FROM payments GROUP BY idempotency_key"))
    except sqlite3.OperationalError:
        return {}
    finally:
        connection.close()
