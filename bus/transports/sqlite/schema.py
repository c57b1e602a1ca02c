"""The tables of the log's file, and opening it safely.

Owns the DDL, the marks that tell our file from a foreign or newer one, and the settings of a connection. The docstring
of `bus.transports.sqlite` explains the tables.
"""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path

from bus.databases.ownership import keep_private
from bus.databases.sqlite_file import MEMORY, has_folder, switch_to_wal
from bus.errors import ConfigurationError, UnreachableError
from bus.transports.sqlite.errors import log_error_of

__all__ = ["APPLICATION_ID", "BUSY_TIMEOUT_S", "MEMORY", "LOG_SCHEMA_VERSION", "open_log"]

APPLICATION_ID = 0x5EA1B050
LOG_SCHEMA_VERSION = 1
BUSY_TIMEOUT_S = 5.0

_TABLES = (
    "CREATE TABLE generation (number INTEGER NOT NULL)",
    "INSERT INTO generation VALUES (1)",
    """CREATE TABLE topics (id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, partitions INTEGER NOT NULL,
       retention_ms INTEGER, retention_bytes INTEGER, compacted INTEGER NOT NULL DEFAULT 0)""",
    """CREATE TABLE partitions (id INTEGER PRIMARY KEY, topic_id INTEGER NOT NULL REFERENCES topics (id),
       partition INTEGER NOT NULL, next_offset INTEGER NOT NULL DEFAULT 0, start_offset INTEGER NOT NULL DEFAULT 0,
       bytes INTEGER NOT NULL DEFAULT 0, UNIQUE (topic_id, partition))""",
    """CREATE TABLE records (id INTEGER PRIMARY KEY, part INTEGER NOT NULL, off INTEGER NOT NULL, ts INTEGER NOT NULL,
       key BLOB, value BLOB, headers BLOB)""",
    "CREATE UNIQUE INDEX records_by_offset ON records (part, off)",
    # AUTOINCREMENT: an id is one incarnation of a member and fences the earlier ones, so it must never be reused.
    """CREATE TABLE members (id INTEGER PRIMARY KEY AUTOINCREMENT, grp TEXT NOT NULL, name TEXT NOT NULL,
       topics TEXT NOT NULL, renewed_s REAL NOT NULL, timeout_s REAL NOT NULL, UNIQUE (grp, name))""",
    """CREATE TABLE leases (grp TEXT NOT NULL, part INTEGER NOT NULL, owner INTEGER, epoch INTEGER NOT NULL,
       committed INTEGER, PRIMARY KEY (grp, part)) WITHOUT ROWID""",
    "CREATE TABLE listeners (port INTEGER PRIMARY KEY, expires_s REAL NOT NULL)",
    f"PRAGMA application_id = {APPLICATION_ID}",
    f"PRAGMA user_version = {LOG_SCHEMA_VERSION}",
)


def open_log(path: str, *, read_only: bool = False, shared_files: bool = False) -> sqlite3.Connection:
    """Open the log at *path*, creating it if missing. Raises ConfigurationError, UnreachableError.

    One that this user cannot write, such as a copy, is opened for reading; a write to it fails.
    """
    _check_folder(path)
    keep_private(path, "log", shared=shared_files)
    is_copy = path != MEMORY and Path(path).exists() and not os.access(path, os.W_OK)
    location = _reading(path) if is_copy else path
    try:
        connection = sqlite3.connect(
            location, uri=is_copy, timeout=BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False
        )
    except sqlite3.Error as error:
        raise log_error_of(error, path) from error
    try:
        _prepare(connection, path, read_only=read_only or is_copy)
    except (sqlite3.Error, UnicodeDecodeError) as error:
        connection.close()
        raise log_error_of(error, path) from error
    except BaseException:
        connection.close()
        raise
    return connection


def _reading(path: str) -> str:
    """Return the URI that opens *path* for reading: without a write-ahead log beside it there is no writer."""
    beside = Path(f"{path}-wal")
    is_still = not beside.exists() or not beside.stat().st_size
    return f"{Path(path).absolute().as_uri()}?mode=ro{'&immutable=1' if is_still else ''}"


def _check_folder(path: str) -> None:
    if "\0" in path:
        raise ConfigurationError(f"cannot open the log {path!r}: a path has no NUL; correct the URL")
    parent = Path(path).parent
    if path != MEMORY and not has_folder(path):
        raise UnreachableError(f"cannot open the log {path}: no directory {parent}; create it or correct the URL")
    if Path(path).is_dir():
        raise ConfigurationError(f"cannot open the log {path}: it is a directory; name a file in the URL")


def _prepare(connection: sqlite3.Connection, path: str, *, read_only: bool) -> None:
    connection.execute("PRAGMA trusted_schema = OFF")
    if not _is_ours(connection, path):
        _create(connection, path)
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("PRAGMA wal_autocheckpoint = 4000")
    connection.execute("PRAGMA journal_size_limit = 67108864")
    # Enough for one transaction. A log is read once, in order: a larger cache would fill only when a reader falls
    # behind, and stay full.
    connection.execute(f"PRAGMA cache_size = {-1024 if read_only else -4096}")
    if read_only:
        connection.execute("PRAGMA query_only = ON")
        return
    # Report a file that cannot be written now, not at the first append.
    connection.execute("BEGIN IMMEDIATE")
    connection.execute("UPDATE generation SET number = number")
    connection.execute("ROLLBACK")
    # From here on `begin_writing` waits.
    connection.execute("PRAGMA busy_timeout = 0")


def _is_ours(connection: sqlite3.Connection, path: str) -> bool:
    """Return False for an empty database; raise ConfigurationError for a foreign or newer one."""
    # Read the identity last: another process may be creating the tables. If this process saw any of them, it then sees
    # the identity too.
    tables = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    identity = connection.execute("PRAGMA application_id").fetchone()[0]
    if identity == APPLICATION_ID:
        if version > LOG_SCHEMA_VERSION:
            raise ConfigurationError(
                f"the log {path} has schema {version}, this sealbus knows {LOG_SCHEMA_VERSION}: "
                "install the newer sealbus"
            )
        return True
    if identity or version or tables:
        raise ConfigurationError(f"{path} is the database of another program; name another file in the URL")
    return False


def _create(connection: sqlite3.Connection, path: str) -> None:
    connection.execute("PRAGMA page_size = 8192")
    switch_to_wal(connection, BUSY_TIMEOUT_S)
    connection.execute("BEGIN IMMEDIATE")
    # Another process may have created the tables since the first check.
    if not _is_ours(connection, path):
        for statement in _TABLES:
            connection.execute(statement)
    connection.execute("COMMIT")
