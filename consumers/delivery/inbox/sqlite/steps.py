"""Steps in SQLite: what runs of a message remember beside its row. The table is made when it is first written."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from consumers.delivery.inbox.sqlite.group_commit import JobBatch

__all__ = ["forget", "is_claimed", "purge_steps", "remember", "remembered"]

_TABLE = """CREATE TABLE IF NOT EXISTS sealbus_steps (
    key TEXT NOT NULL, name TEXT NOT NULL, data BLOB NOT NULL, PRIMARY KEY (key, name)) WITHOUT ROWID"""
_EXISTS = "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'sealbus_steps'"


def remembered(key: str, batch: JobBatch) -> Mapping[str, bytes]:
    """Return the entries stored under *key*, by name."""
    if not _exists(batch):
        return {}
    rows = batch.table.connection.execute("SELECT name, data FROM sealbus_steps WHERE key = ?", (key,))
    return {name: bytes(data) for name, data in rows}


def is_claimed(key: str, owner: int, token: int, batch: JobBatch) -> bool:
    """Return whether *owner* has the claim with *token*."""
    row = batch.rows.get(key)
    return row is not None and (row.state, row.owner, row.token) == ("claimed", owner, token)


def remember(key: str, owner: int, token: int, name: str, data: bytes, batch: JobBatch) -> bool:  # noqa: PLR0917
    """Store *data* if *owner* has the claim with *token*; return whether it has."""
    if not is_claimed(key, owner, token, batch):
        return False
    row = batch.rows[key]
    if row.starts > 1 or row.suspect or row.alone:
        # A run that gets on is no suspect.
        batch.put(key, msgspec.structs.replace(row, starts=1, suspect=False, alone=False))
    batch.table.connection.execute(_TABLE)
    batch.table.connection.execute(
        "INSERT INTO sealbus_steps (key, name, data) VALUES (?, ?, ?) "
        "ON CONFLICT (key, name) DO UPDATE SET data = excluded.data",
        (key, name, data),
    )
    return True


def forget(key: str, batch: JobBatch) -> None:
    """Delete the entries stored under *key*."""
    if _exists(batch):
        batch.table.connection.execute("DELETE FROM sealbus_steps WHERE key = ?", (key,))


def purge_steps(batch: JobBatch) -> None:
    """Delete the entries whose rows are deleted."""
    if _exists(batch):
        batch.table.connection.execute("DELETE FROM sealbus_steps WHERE key NOT IN (SELECT key FROM sealbus_inbox)")


def _exists(batch: JobBatch) -> bool:
    return batch.table.connection.execute(_EXISTS).fetchone() is not None
