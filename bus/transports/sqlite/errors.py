"""Translate failures of SQLite into errors of the bus.

Owns the translation from `sqlite3.Error` to `bus.errors`, whether a failed COMMIT certainly wrote nothing, and refusing
a file that was replaced at its path. The caller decides what follows.
"""

from __future__ import annotations

import sqlite3

from bus.databases.sqlite_file import identity_of
from bus.errors import BusError, ConfigurationError, DamagedError, LogFullError, TransportError, UnreachableError

__all__ = ["check_identity", "sqlite_code", "is_certain", "log_error_of"]

_TEXTS = {
    sqlite3.SQLITE_BUSY: "is locked by another writer; try again, or find the program that keeps a write transaction "
    "open",
    sqlite3.SQLITE_LOCKED: "is locked by another writer; try again, or find the program that keeps a write transaction "
    "open",
    sqlite3.SQLITE_READONLY: "is read-only; give this user write access to the file and to its directory",
    sqlite3.SQLITE_PERM: "may not be opened; give this user write access to the file and to its directory",
    sqlite3.SQLITE_CANTOPEN: "cannot be opened; check that the path is a file this user may write",
    sqlite3.SQLITE_CORRUPT: "is damaged; stop every writer, run `PRAGMA integrity_check`, restore a copy",
    sqlite3.SQLITE_IOERR: "cannot be read or written; check its disk",
}


def check_identity(path: str, identity: tuple[int, int] | None) -> None:
    """Raise TransportError if the file at *path* is not the opened one with *identity*."""
    if identity != identity_of(path):
        raise TransportError(
            f"the log {path} was deleted or replaced while it was open: writes to it are lost; restart the process"
        )


def sqlite_code(error: sqlite3.Error) -> int:
    """Return the primary result code of *error*; 0 if it came from the Python module itself."""
    return int(getattr(error, "sqlite_errorcode", 0)) & 0xFF


def is_certain(error: sqlite3.Error) -> bool:
    """Tell whether a COMMIT that failed with *error* certainly wrote nothing."""
    return sqlite_code(error) in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)


def log_error_of(error: sqlite3.Error | UnicodeDecodeError, path: str) -> BusError:
    """Return the bus error for *error* on the log at *path*.

    SQLite's message about a damaged file may quote its bytes, and Python then raises UnicodeDecodeError.
    """
    if isinstance(error, UnicodeDecodeError):
        return DamagedError(f"the log {path} {_TEXTS[sqlite3.SQLITE_CORRUPT]}")
    code = sqlite_code(error)
    if code == sqlite3.SQLITE_CORRUPT:
        return DamagedError(f"the log {path} {_TEXTS[code]} ({error})")
    if code == sqlite3.SQLITE_FULL:
        return LogFullError(f"no space left for the log {path}; nothing was written")
    if code == sqlite3.SQLITE_NOTADB:
        return ConfigurationError(f"{path} is not a SQLite database; name another file in the URL")
    return UnreachableError(f"the log {path} {_TEXTS.get(code, 'failed')} ({error})")
