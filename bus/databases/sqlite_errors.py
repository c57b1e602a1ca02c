"""Translate failures of SQLite for stores in a user's file.

Owns telling failures of the store from faults of a statement, and the translation of the former. The log's own file is
handled in `bus.transports.sqlite.errors`.
"""

from __future__ import annotations

import sqlite3

from bus.errors import DamagedError, InboxError

__all__ = ["is_sqlite_error", "sqlite_error_of"]

_TEXTS = {
    sqlite3.SQLITE_BUSY: "is locked by another writer; find the program that keeps a write transaction open",
    sqlite3.SQLITE_LOCKED: "is locked by another writer; find the program that keeps a write transaction open",
    sqlite3.SQLITE_READONLY: "is read-only; give this user write access to the file and to its directory",
    sqlite3.SQLITE_PERM: "may not be opened; give this user write access to the file and to its directory",
    sqlite3.SQLITE_CANTOPEN: "cannot be opened; check that the path is a file this user may write",
    sqlite3.SQLITE_CORRUPT: "is damaged; stop every writer, run `PRAGMA integrity_check`, restore a copy",
    sqlite3.SQLITE_NOTADB: "is not a SQLite database; name another file",
    sqlite3.SQLITE_IOERR: "cannot be read or written; check its disk",
    sqlite3.SQLITE_FULL: "has no space left; nothing was written",
    sqlite3.SQLITE_NOLFS: "is larger than this machine allows",
    sqlite3.SQLITE_PROTOCOL: "cannot be locked; check its file system",
    sqlite3.SQLITE_NOMEM: "cannot be read: memory is exhausted",
}


def is_sqlite_error(error: sqlite3.Error) -> bool:
    """Tell whether *error* concerns the store, and not the statement that raised it."""
    return _code(error) in _TEXTS


def sqlite_error_of(error: sqlite3.Error | UnicodeDecodeError, path: str) -> InboxError:
    """Return the bus error for *error*, with a sentence for people.

    SQLite's message about a damaged file may quote its bytes, and Python then raises UnicodeDecodeError.
    """
    if isinstance(error, UnicodeDecodeError):
        return DamagedError(f"the database {path} {_TEXTS[sqlite3.SQLITE_CORRUPT]}")
    kind = DamagedError if _code(error) in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB) else InboxError
    return kind(f"the database {path} {_TEXTS.get(_code(error), 'failed')} ({error})")


def _code(error: sqlite3.Error) -> int:
    """Return the primary result code; 0 if the error came from the Python module itself."""
    return int(getattr(error, "sqlite_errorcode", 0)) & 0xFF
