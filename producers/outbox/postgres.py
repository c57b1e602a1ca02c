"""The outbox in PostgreSQL. Needs the extra `postgres`.

Owns its SQL: the table, adding a row in the caller's transaction, and the relay's statements. A relay uses one
connection for everything. That connection holds the advisory lock that makes the relay the only one: without the
connection there is no lock, and no row can be marked.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final

from bus.databases.postgres import (
    POSTGRES_TIMEOUT_S,
    close_silently,
    database_of,
    driver,
    failures,
    refuse_shared_session,
    translating,
)
from bus.errors import ConfigurationError, InboxError
from producers.outbox.rows import Backlog, PendingRow

__all__ = ["INSERT_OUTBOX_ROW", "PostgresRows", "create_postgres_outbox"]

# The numbers are arbitrary but fixed. A session that changes sealbus tables holds the first lock; a table's relay holds
# the second, plus the table's oid.
_SCHEMA_LOCK: Final = 0x5EA1B050
_RELAY_LOCK: Final = 0x5EA1B0 << 32

INSERT_OUTBOX_ROW: Final = (
    "INSERT INTO sealbus_outbox (message_id, added_ms, topic, key, value, headers) VALUES ($1, $2, $3, $4, $5, $6)"
)
"""Contains nothing specific to PostgreSQL: an inbox's transaction on SQLite runs it too."""

_CREATE: Final = f"""
SELECT pg_advisory_xact_lock({_SCHEMA_LOCK});
CREATE TABLE IF NOT EXISTS sealbus_outbox (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, message_id text NOT NULL, added_ms bigint NOT NULL,
    topic text NOT NULL, key bytea, value bytea NOT NULL, headers bytea, error text)"""
_EXISTS: Final = "SELECT to_regclass('sealbus_outbox') IS NOT NULL"
_LEAD: Final = "SELECT pg_try_advisory_lock($1::bigint + to_regclass('sealbus_outbox')::oid::bigint)"
_PENDING: Final = """
SELECT id, message_id, topic, key, value, headers FROM sealbus_outbox
WHERE error IS NULL AND topic <> ALL ($2::text[]) ORDER BY id LIMIT $1"""
_DELETE: Final = "DELETE FROM sealbus_outbox WHERE id = ANY ($1::bigint[])"
_FAIL: Final = "UPDATE sealbus_outbox SET error = $2 WHERE id = $1"
_BACKLOG: Final = """
SELECT topic, count(*) FILTER (WHERE error IS NULL), min(added_ms) FILTER (WHERE error IS NULL), count(error),
    (array_agg(error ORDER BY id DESC) FILTER (WHERE error IS NOT NULL))[1]
FROM sealbus_outbox GROUP BY topic ORDER BY topic"""

# The server drops a relay whose machine has vanished after about ten seconds instead of hours. SET after connecting: a
# connection pooler refuses unknown start-up parameters.
_ABANDON: Final = "SET tcp_keepalives_idle = 4; SET tcp_keepalives_interval = 2; SET tcp_keepalives_count = 3"
_SERVER_SETTINGS: Final = {"application_name": "sealbus serve outbox"}


async def create_postgres_outbox(connection: Any) -> None:
    """Create the table if it is missing, in the open transaction if there is one."""
    await connection.execute(_CREATE)


class PostgresRows:
    """The database at *url*, as a relay uses it; see `producers.outbox.rows.Rows`."""

    def __init__(self, url: str, *, timeout_s: float = POSTGRES_TIMEOUT_S) -> None:
        self._url = url
        self._where = database_of(url)
        self._timeout_s = timeout_s
        self._connection: Any = None
        self._leads = False
        self._one_at_a_time = asyncio.Lock()

    async def open(self) -> None:
        async with self._connect(at_start=True) as connection:
            await refuse_shared_session(connection, self._url, self._where, self._timeout_s)
            if not await connection.fetchval(_EXISTS):
                await connection.execute(_CREATE)

    async def lead(self) -> bool:
        async with self._connect() as connection:
            if not self._leads:
                leads = await connection.fetchval(_LEAD, _RELAY_LOCK)
                if leads is None:
                    raise InboxError(
                        f"{self._where} has no table sealbus_outbox any more: "
                        "`await outbox.create(connection)` makes it"
                    )
                self._leads = leads
        return self._leads

    async def pending(self, limit: int, *, but: Collection[str] = ()) -> Sequence[PendingRow]:
        async with self._connect() as connection:
            return [PendingRow(*row) for row in await connection.fetch(_PENDING, limit, list(but))]

    async def settle(self, sent: Sequence[int], failed: Mapping[int, str]) -> bool:
        async with self._connect() as connection:
            if not self._leads:
                return False
            async with connection.transaction():
                await connection.execute(_DELETE, list(sent))
                await connection.executemany(_FAIL, list(failed.items()))
        return True

    async def backlog(self) -> Sequence[Backlog]:
        async with self._connect(at_start=True) as connection:
            if not await connection.fetchval(_EXISTS):
                raise ConfigurationError(
                    f"{self._where} has no table sealbus_outbox: `await outbox.create(connection)` makes it"
                )
            return [
                Backlog(topic=topic, pending=pending, oldest_ms=oldest_ms, failed=failed, error=error)
                for topic, pending, oldest_ms, failed, error in await connection.fetch(_BACKLOG)
            ]

    async def close(self) -> None:
        async with self._one_at_a_time:
            if self._connection is not None:
                with contextlib.suppress(*failures()):
                    await self._connection.close(timeout=self._timeout_s)
                self._lose()

    @asynccontextmanager
    async def _connect(self, *, at_start: bool = False) -> AsyncGenerator[Any]:
        async with self._one_at_a_time:
            with translating(self._where, at_start=at_start):
                if self._connection is None or self._connection.is_closed():
                    self._leads = False
                    self._connection = await driver().connect(
                        self._url,
                        timeout=self._timeout_s,
                        command_timeout=self._timeout_s,
                        server_settings=_SERVER_SETTINGS,
                    )
                    await self._connection.execute(_ABANDON)
                try:
                    yield self._connection
                except BaseException:
                    self._lose()
                    raise

    def _lose(self) -> None:
        """Drop the connection, and the lock with it."""
        self._leads = False
        close_silently(self._connection)
        self._connection = None
