"""The tables of processes, waits and holds in the inbox's database, their versions, and the secret of the store.

Owns making them, and bringing rows of an older version into the form of this one. All statements about rows are
`consumers.processes.sagas.store`'s.
"""

from __future__ import annotations

import os
from typing import Final

from bus.errors import ConfigurationError, ContractError
from bus.protocol import sealing
from consumers.delivery.inbox.base import SqlDialect, Transaction
from consumers.processes.sagas.process import Ids

__all__ = ["migrate_processes"]

PROCESS_SCHEMA_VERSION: Final = 2
"""2: owner, sender and task of a process, how often a wait was nudged, and the secret."""
_SCHEMA_LOCK: Final = 0x5EA1B050
"""The lock that every change of sealbus tables takes (`consumers.delivery.inbox.postgres.statements`)."""
_SECRET_BYTES: Final = 32

_TABLES: Final = (
    """CREATE TABLE sealbus_processes (
  id {bytes} PRIMARY KEY, namespace text NOT NULL, grp text NOT NULL, saga text NOT NULL, key text NOT NULL,
  version bigint NOT NULL, status text NOT NULL, shape text NOT NULL, state {bytes} NOT NULL, opener {bytes} NOT NULL,
  trust text NOT NULL, opened_ms bigint NOT NULL, changed_ms bigint NOT NULL, keep_until_ms bigint NOT NULL)""",
    """CREATE TABLE sealbus_waits (
  id text PRIMARY KEY, process {bytes} NOT NULL, name text NOT NULL, namespace text NOT NULL, grp text NOT NULL,
  addressee text, seal text, many boolean NOT NULL, due_ms bigint NOT NULL, nudge_ms bigint NOT NULL,
  UNIQUE (process, name))""",
    "CREATE INDEX sealbus_waits_by_time ON sealbus_waits (namespace, grp, nudge_ms)",
    """CREATE TABLE sealbus_holds (
  process {bytes} NOT NULL, seal text NOT NULL, record {bytes} NOT NULL, PRIMARY KEY (process, seal))""",
    "CREATE INDEX sealbus_processes_by_group ON sealbus_processes (namespace, grp, status, saga)",
)
_OWNERS: Final = (
    "ALTER TABLE sealbus_processes ADD COLUMN owner text NOT NULL DEFAULT ''",
    "ALTER TABLE sealbus_processes ADD COLUMN sender text NOT NULL DEFAULT ''",
    "ALTER TABLE sealbus_processes ADD COLUMN task_id text NOT NULL DEFAULT ''",
    "ALTER TABLE sealbus_waits ADD COLUMN nudges bigint NOT NULL DEFAULT 0",
    "ALTER TABLE sealbus_waits ADD COLUMN note text NOT NULL DEFAULT ''",
    "CREATE INDEX sealbus_processes_by_key ON sealbus_processes (namespace, grp, saga, key)",
    "CREATE INDEX sealbus_processes_by_task ON sealbus_processes (namespace, grp, task_id, sender)",
    "CREATE TABLE sealbus_secrets (part text PRIMARY KEY, secret {bytes} NOT NULL)",
)
_SHARED: Final = frozenset({"blackboard.write", "blackboard.read"})


async def migrate_processes(transaction: Transaction, dialect: SqlDialect) -> bytes:
    """Make the tables, or bring them to this version; return what only this store knows.

    Raises ConfigurationError where newer code has changed them.
    """
    if dialect == "postgres":
        await transaction.fetch("SELECT pg_advisory_xact_lock($1)", _SCHEMA_LOCK)
    row = await transaction.fetchrow("SELECT version FROM sealbus_schema WHERE part = 'processes'")
    found = 0 if row is None else int(row[0])
    if found > PROCESS_SCHEMA_VERSION:
        raise ConfigurationError(
            f"the processes have schema {found}, this sealbus knows {PROCESS_SCHEMA_VERSION}: install the newer sealbus"
        )
    for statement in (*(_TABLES if found == 0 else ()), *(_OWNERS if found < PROCESS_SCHEMA_VERSION else ())):
        await transaction.execute(statement.format(bytes="bytea" if dialect == "postgres" else "BLOB"))
    if found == 0:
        await transaction.execute(
            "INSERT INTO sealbus_schema (part, version) VALUES ('processes', $1)", PROCESS_SCHEMA_VERSION
        )
    secret = await _secret(transaction)
    if found == 1:
        await _give_owners(transaction, secret)
        await transaction.execute(
            "UPDATE sealbus_schema SET version = $1 WHERE part = 'processes'", PROCESS_SCHEMA_VERSION
        )
    return secret


async def _secret(transaction: Transaction) -> bytes:
    """Return the secret of this store; the first process to open the store creates it."""
    await transaction.execute(
        "INSERT INTO sealbus_secrets (part, secret) VALUES ('processes', $1) ON CONFLICT (part) DO NOTHING",
        os.urandom(_SECRET_BYTES),
    )
    row = await transaction.fetchrow("SELECT secret FROM sealbus_secrets WHERE part = 'processes'")
    assert row is not None  # noqa: S101 - written before
    return bytes(row[0])


async def _give_owners(transaction: Transaction, secret: bytes) -> None:
    """Give each process of version 1 to the sender of its opener, and an id by which that one finds it.

    Boards are everybody's, and an approval's key names its sender.
    """
    rows = await transaction.fetch("SELECT id, namespace, grp, saga, key, opener FROM sealbus_processes")
    for before, namespace, group, saga, key, opener in rows:
        try:
            message = sealing.parse(bytes(opener))
        except ContractError:
            continue
        sender = message.metadata.sender.id or ""
        owner = "" if saga == "approval" or message.message_type in _SHARED else sender
        after = Ids(secret, namespace=namespace, group=group).process(saga, owner, key)
        await transaction.execute(
            "UPDATE sealbus_processes SET id = $2, owner = $3, sender = $4, task_id = $5 WHERE id = $1",
            before,
            after,
            owner,
            sender,
            message.metadata.task_id or message.message_id,
        )
        await transaction.execute("UPDATE sealbus_waits SET process = $2 WHERE process = $1", before, after)
        await transaction.execute("UPDATE sealbus_holds SET process = $2 WHERE process = $1", before, after)
