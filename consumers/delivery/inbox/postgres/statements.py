"""Statements: the inbox's SQL for PostgreSQL, its tables, and every statement about them.

Owns the texts, creating the tables once though many workers start together, and rows from and to
`consumers.delivery.inbox.claim_rules.ClaimRow`. Connections are in `inbox` and `transaction`.
"""

from __future__ import annotations

import json
from typing import Any, Final

from bus.errors import ConfigurationError
from consumers.delivery.inbox.base import InboxKey
from consumers.delivery.inbox.claim_rules import CLOSED, ClaimRow
from consumers.delivery.inbox.row_encoding import key_digest, key_text

__all__ = [
    "ENROL",
    "FINISH",
    "FINISH_SILENT",
    "FORGET",
    "INSERT_CLAIM",
    "INSERT_FIRSTS",
    "IS_ACTIVE",
    "IS_FINISHED",
    "PURGE",
    "PURGE_OWNERS",
    "NO_SUSPECT",
    "PURGE_STEPS",
    "RELEASE",
    "REMEMBER",
    "RENEW",
    "STEPS",
    "STEPS_EXIST",
    "STILL_CLAIMED",
    "STRIKE",
    "UPDATE",
    "VOID",
    "reset_nothing",
    "locked_row",
    "make_steps_table",
    "migrate_inbox",
    "named",
    "placed",
    "rest_s",
    "row_values",
    "seen_row",
]

POSTGRES_INBOX_VERSION: Final = 2

_MAX_REOPENED: Final = 2**31 - 1
"""The limit of the column's type; a forged record may claim more redrives."""

# Any number, but always the same: a change of sealbus tables holds this lock.
_SCHEMA_LOCK: Final = 0x5EA1B050

_TABLES: Final = """
CREATE TABLE sealbus_inbox (
    id bytea PRIMARY KEY, key text NOT NULL, content_hash text NOT NULL, state text NOT NULL,
    owner bigint NOT NULL, token bigint NOT NULL, keep_until_ms bigint NOT NULL,
    starts integer NOT NULL, deaths integer NOT NULL, suspect boolean NOT NULL, alone boolean NOT NULL,
    reopened integer NOT NULL, outputs bytea NOT NULL, message_id text NOT NULL DEFAULT '')
WITH (fillfactor = 80);
CREATE INDEX sealbus_inbox_by_time ON sealbus_inbox (keep_until_ms);
CREATE TABLE sealbus_inbox_owners (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, name text NOT NULL, alive_until timestamptz NOT NULL);
"""

INSERT_CLAIM: Final = """
INSERT INTO sealbus_inbox (
    id, key, content_hash, state, owner, token, keep_until_ms,
    starts, deaths, suspect, alone, reopened, outputs, message_id)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14)
ON CONFLICT (id) DO NOTHING RETURNING token"""

INSERT_FIRSTS: Final = """
INSERT INTO sealbus_inbox (
    id, key, content_hash, state, owner, token, keep_until_ms,
    starts, deaths, suspect, alone, reopened, outputs, message_id)
SELECT id, key, content_hash, 'claimed', $1, 1, keep_until_ms, 1, 0, false, false, 0, '', message_id
FROM unnest($2::bytea[], $3::text[], $4::text[], $5::bigint[], $6::text[])
    AS asked (id, key, content_hash, keep_until_ms, message_id)
ON CONFLICT (id) DO NOTHING RETURNING id"""

UPDATE: Final = """
UPDATE sealbus_inbox SET
    content_hash = $2, state = $3, owner = $4, token = $5, keep_until_ms = $6, starts = $7,
    deaths = $8, suspect = $9, alone = $10, reopened = $11, outputs = $12, message_id = $13
WHERE id = $1"""

FINISH: Final = """
UPDATE sealbus_inbox SET state = 'done', outputs = $4, starts = 0, deaths = 0, suspect = false, alone = false
WHERE id = $1 AND owner = $2 AND token = $3 AND state = 'claimed' RETURNING token"""

FINISH_SILENT: Final = """
UPDATE sealbus_inbox SET state = 'done', outputs = '', starts = 0, deaths = 0, suspect = false, alone = false
FROM unnest($2::bytea[], $3::bigint[]) AS ended (id, token)
WHERE sealbus_inbox.id = ended.id AND sealbus_inbox.token = ended.token
    AND owner = $1 AND state = 'claimed'
RETURNING sealbus_inbox.id"""

STEPS_EXIST: Final = "SELECT to_regclass('sealbus_steps') IS NOT NULL"

STEPS_TABLE: Final = """
CREATE TABLE IF NOT EXISTS sealbus_steps (
    id bytea NOT NULL, name text NOT NULL, data bytea NOT NULL, PRIMARY KEY (id, name))"""

STEPS: Final = "SELECT name, data FROM sealbus_steps WHERE id = $1"

# The row is locked: a claim that is taken over meanwhile waits, and the one who has lost it writes nothing.
STILL_CLAIMED: Final = """
SELECT 1 FROM sealbus_inbox WHERE id = $1 AND owner = $2 AND token = $3 AND state = 'claimed' FOR UPDATE"""

REMEMBER: Final = """
INSERT INTO sealbus_steps (id, name, data) VALUES ($1, $2, $3)
ON CONFLICT (id, name) DO UPDATE SET data = excluded.data"""

# A run that gets on is no suspect.
NO_SUSPECT: Final = """
UPDATE sealbus_inbox SET starts = 1, suspect = false, alone = false
WHERE id = $1 AND owner = $2 AND token = $3 AND (starts > 1 OR suspect OR alone)"""

FORGET: Final = "DELETE FROM sealbus_steps WHERE id = $1"

PURGE_STEPS: Final = "DELETE FROM sealbus_steps AS s WHERE NOT EXISTS (SELECT FROM sealbus_inbox WHERE id = s.id)"

IS_ACTIVE: Final = "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE pid = $1 AND state = 'active')"

IS_FINISHED: Final = (
    "SELECT 1 FROM sealbus_inbox WHERE id = $1 AND owner = $2 AND token = $3 AND state = 'done' AND outputs = $4"
)

RELEASE: Final = """
UPDATE sealbus_inbox SET state = 'free', owner = 0, starts = 0, deaths = 0, suspect = false, alone = false
WHERE id = $1 AND owner = $2 AND token = $3 AND state = 'claimed'"""

VOID: Final = "DELETE FROM sealbus_inbox WHERE id = $1 AND owner = $2 AND token = $3 AND state = 'claimed'"

# A time that is constant during the statement and has the column's type: otherwise the index is not used, and all rows
# are read.
PURGE: Final = """
DELETE FROM sealbus_inbox WHERE id IN (
    SELECT id FROM sealbus_inbox
    WHERE keep_until_ms < (extract(epoch FROM statement_timestamp()) * 1000)::bigint
        AND NOT (state = 'claimed' AND EXISTS (
            SELECT FROM sealbus_inbox_owners AS o
            WHERE o.id = sealbus_inbox.owner AND o.alive_until > clock_timestamp()))
    LIMIT $1 FOR UPDATE SKIP LOCKED)"""

# A death that no claim has looked at for so long no longer counts.
PURGE_OWNERS: Final = "DELETE FROM sealbus_inbox_owners WHERE alive_until < clock_timestamp() - interval '30 days'"

ENROL: Final = """
INSERT INTO sealbus_inbox_owners (name, alive_until)
VALUES ($1, clock_timestamp() + make_interval(secs => $2))
RETURNING id"""

RENEW: Final = """
INSERT INTO sealbus_inbox_owners (id, name, alive_until) OVERRIDING SYSTEM VALUE
VALUES ($1, $2, clock_timestamp() + make_interval(secs => $3))
ON CONFLICT (id) DO UPDATE SET alive_until = excluded.alive_until"""

STRIKE: Final = "DELETE FROM sealbus_inbox_owners WHERE id = $1"

_ROW: Final = """
SELECT content_hash, state, owner, token, keep_until_ms, starts, deaths, suspect, alone, reopened, outputs, message_id
FROM sealbus_inbox WHERE id = $1"""

_REST_S: Final = (
    "SELECT extract(epoch FROM alive_until - clock_timestamp())::float8 FROM sealbus_inbox_owners WHERE id = $1"
)


_LOCATION: Final = """
SELECT quote_ident(nspname) || '.sealbus_inbox' FROM pg_class JOIN pg_namespace ON pg_namespace.oid = relnamespace
WHERE pg_class.oid = to_regclass('sealbus_inbox')"""


async def migrate_inbox(connection: Any) -> str | None:
    """Create or migrate the tables; return the inbox's with its schema, see `placed`.

    Raises ConfigurationError where a newer sealbus has changed them.
    """
    async with connection.transaction(isolation="read_committed"):
        await connection.execute("SELECT pg_advisory_xact_lock($1)", _SCHEMA_LOCK)
        if await connection.fetchval("SELECT to_regclass('sealbus_schema')") is None:
            await connection.execute("CREATE TABLE sealbus_schema (part text PRIMARY KEY, version integer NOT NULL)")
        version = await connection.fetchval("SELECT version FROM sealbus_schema WHERE part = 'inbox'")
        if version is None:
            await connection.execute(_TABLES)
            await connection.execute("INSERT INTO sealbus_schema VALUES ('inbox', $1)", POSTGRES_INBOX_VERSION)
        elif version > POSTGRES_INBOX_VERSION:
            raise ConfigurationError(
                f"the inbox has schema {version}, this sealbus knows {POSTGRES_INBOX_VERSION}: "
                "install the newer sealbus"
            )
        elif version < POSTGRES_INBOX_VERSION:
            await connection.execute("ALTER TABLE sealbus_inbox ADD COLUMN message_id text NOT NULL DEFAULT ''")
            await connection.execute(
                "UPDATE sealbus_schema SET version = $1 WHERE part = 'inbox'", POSTGRES_INBOX_VERSION
            )
        location: str | None = await connection.fetchval(_LOCATION)
        return location


def placed(statement: str, location: str | None) -> str:
    """Name the table at *location* in *statement*: a handler may set another search path in the transaction."""
    return statement.replace("sealbus_inbox", location) if location is not None else statement


def named(key: InboxKey) -> tuple[bytes, str]:
    """Return the id of the row of *key*, and the text beside it for people.

    The text is ASCII: the database's encoding may lack other characters.
    """
    text = key_text(key)
    legible = text if text.isascii() else "".join(char if char.isascii() else json.dumps(char)[1:-1] for char in text)
    return key_digest(text), legible


async def make_steps_table(connection: Any) -> None:
    """Create the table of steps where it is missing."""
    async with connection.transaction(isolation="read_committed"):
        await connection.execute("SELECT pg_advisory_xact_lock($1)", _SCHEMA_LOCK)
        await connection.execute(STEPS_TABLE)


async def locked_row(connection: Any, identity: bytes) -> ClaimRow | None:
    """Return the row, locked until the transaction ends, or None."""
    values = await connection.fetchrow(f"{_ROW} FOR UPDATE", identity)
    return ClaimRow(*values) if values is not None else None


async def seen_row(connection: Any, identity: bytes) -> ClaimRow | None:
    """Return the row as it is now, or None."""
    values = await connection.fetchrow(_ROW, identity)
    return ClaimRow(*values) if values is not None else None


async def rest_s(connection: Any, owner: int) -> float | None:
    """Return the seconds for which the lease of *owner* still runs; CLOSED where it has closed.

    A statement of its own, after the row was locked: joined with it, it could see the owner's state from before the
    wait for the lock.
    """
    rest: float | None = await connection.fetchval(_REST_S, owner)
    return CLOSED if rest is None else rest


def row_values(row: ClaimRow) -> tuple[object, ...]:
    """Return the values for INSERT and UPDATE, after their first ones."""
    return (
        row.content_hash,
        row.state,
        row.owner,
        row.token,
        row.keep_until_ms,
        row.starts,
        row.deaths,
        row.suspect,
        row.alone,
        min(row.reopened, _MAX_REOPENED),
        row.outputs,
        row.message_id,
    )


async def reset_nothing(_: Any) -> None:
    """Do nothing instead of resetting a connection: these statements leave nothing behind."""
