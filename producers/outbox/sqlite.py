"""The outbox in a SQLite file.

Owns its SQL: the table, adding a row in the caller's transaction, and the relay's statements, with a lease that keeps
other relays waiting.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import sqlite3
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from bus.clock import Clock
from bus.databases.sqlite_errors import sqlite_error_of
from bus.databases.sqlite_file import fixed, identity_of
from bus.errors import ConfigurationError, InboxError
from producers.outbox.rows import Backlog, NewRow, PendingRow

__all__ = ["OUTBOX_LEASE_S", "SqliteRows", "create_sqlite_outbox", "insert"]

_T = TypeVar("_T")

OUTBOX_LEASE_S: Final = 5.0
"""A relay that is silent for this many seconds is replaced."""

_BUSY_TIMEOUT_S: Final = 5.0
_TABLE = """CREATE TABLE IF NOT EXISTS sealbus_outbox (
    id INTEGER PRIMARY KEY AUTOINCREMENT, message_id TEXT NOT NULL, added_ms INTEGER NOT NULL, topic TEXT NOT NULL,
    key BLOB, value BLOB NOT NULL, headers BLOB, error TEXT)"""
_RELAY = (
    "CREATE TABLE IF NOT EXISTS sealbus_outbox_relay "
    "(id INTEGER PRIMARY KEY, holder TEXT NOT NULL, renewed_s REAL NOT NULL)"
)
_INSERT = "INSERT INTO sealbus_outbox (message_id, added_ms, topic, key, value, headers) VALUES (?, ?, ?, ?, ?, ?)"
# The casts, here and below: SQLite keeps the type that another driver gave a value.
_PENDING = """SELECT id, CAST(message_id AS TEXT), CAST(topic AS TEXT),
        CAST(key AS BLOB), CAST(value AS BLOB), CAST(headers AS BLOB)
    FROM sealbus_outbox
    WHERE error IS NULL AND CAST(topic AS TEXT) NOT IN ({marks})
    ORDER BY id LIMIT ?"""
_BACKLOG = """SELECT CAST(topic AS TEXT), count(*) FILTER (WHERE error IS NULL),
    min(CAST(added_ms AS INTEGER)) FILTER (WHERE error IS NULL), count(error),
    (SELECT error FROM sealbus_outbox AS f
        WHERE CAST(f.topic AS TEXT) = CAST(o.topic AS TEXT) AND error IS NOT NULL ORDER BY id DESC LIMIT 1)
    FROM sealbus_outbox AS o GROUP BY 1 ORDER BY 1"""


def create_sqlite_outbox(connection: sqlite3.Connection) -> None:
    """Create the table if it is missing, in the open transaction if there is one."""
    connection.execute(_TABLE)


def insert(connection: sqlite3.Connection, row: NewRow) -> None:
    """Add *row*, in the open transaction if there is one."""
    connection.execute(_INSERT, msgspec.structs.astuple(row))


class SqliteRows:
    """The file at *path*, as a relay uses it; see `producers.outbox.rows.Rows`."""

    def __init__(self, path: str, clock: Clock) -> None:
        self._path = fixed(path)
        self._clock = clock
        self._holder = secrets.token_hex(8)
        self._connection: sqlite3.Connection | None = None
        self._identity: tuple[int, int] | None = None
        self._one_at_a_time = asyncio.Lock()
        self._renewal: asyncio.Task[None] | None = None
        self._leads_until_s = 0.0

    async def open(self) -> None:
        await self._run(_prepare)

    async def lead(self) -> bool:
        if self._clock.monotonic_s() < self._leads_until_s:
            return True
        leads = await self._run(self._take_lease)
        if leads and self._renewal is None:
            self._renewal = asyncio.get_running_loop().create_task(self._keep_alive())
        return leads

    async def pending(self, limit: int, *, but: Collection[str] = ()) -> Sequence[PendingRow]:
        statement = _PENDING.format(marks=", ".join("?" * len(but)))
        return await self._run(
            lambda connection: [PendingRow(*row) for row in connection.execute(statement, (*but, limit))], writes=False
        )

    async def settle(self, sent: Sequence[int], failed: Mapping[int, str]) -> bool:
        return await self._run(lambda connection: self._settled(connection, sent, failed))

    async def backlog(self) -> Sequence[Backlog]:
        def read(connection: sqlite3.Connection) -> list[Backlog]:
            if connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'sealbus_outbox'").fetchone() is None:
                raise ConfigurationError(
                    f"{self._path} has no table sealbus_outbox: `outbox.create(connection)` makes it"
                )
            return [
                Backlog(topic=topic, pending=pending, oldest_ms=oldest_ms, failed=failed, error=error)
                for topic, pending, oldest_ms, failed, error in connection.execute(_BACKLOG)
            ]

        return await self._run(read, writes=False)

    async def close(self) -> None:
        if self._renewal is not None:
            self._renewal.cancel()
            await asyncio.wait([self._renewal])
        # Also needed if a `lead` call was cancelled before it learnt that it leads.
        if self._leads_until_s:
            with contextlib.suppress(InboxError):
                await self._run(
                    lambda connection: connection.execute(
                        "DELETE FROM sealbus_outbox_relay WHERE holder = ?", (self._holder,)
                    )
                )
        async with self._one_at_a_time:
            self._disconnect()

    def _take_lease(self, connection: sqlite3.Connection) -> bool:
        # Prepare here too: the file may not be the one that was opened.
        _prepare(connection)
        now_s = self._clock.monotonic_s()
        row = connection.execute("SELECT holder, renewed_s FROM sealbus_outbox_relay").fetchone()
        # Monotonic seconds restart at a reboot: a far-away time, on either side, counts as long ago.
        if row is not None and row[0] != self._holder and abs(now_s - row[1]) <= OUTBOX_LEASE_S:
            self._leads_until_s = 0.0
            return False
        connection.execute("INSERT OR REPLACE INTO sealbus_outbox_relay VALUES (1, ?, ?)", (self._holder, now_s))
        self._leads_until_s = now_s + OUTBOX_LEASE_S / 2
        return True

    def _settled(self, connection: sqlite3.Connection, sent: Sequence[int], failed: Mapping[int, str]) -> bool:
        if (
            connection.execute("SELECT 1 FROM sealbus_outbox_relay WHERE holder = ?", (self._holder,)).fetchone()
            is None
        ):
            self._leads_until_s = 0.0
            return False
        connection.executemany("DELETE FROM sealbus_outbox WHERE id = ?", [(number,) for number in sent])
        connection.executemany(
            "UPDATE sealbus_outbox SET error = ? WHERE id = ?", [(error, number) for number, error in failed.items()]
        )
        return True

    async def _keep_alive(self) -> None:
        while True:
            await self._clock.sleep(OUTBOX_LEASE_S / 4)
            with contextlib.suppress(InboxError):
                await self._run(self._take_lease)

    async def _run(self, action: Callable[[sqlite3.Connection], _T], *, writes: bool = True) -> _T:
        async with self._one_at_a_time:
            running = asyncio.ensure_future(asyncio.to_thread(self._transacted, action, writes=writes))
            try:
                return await asyncio.shield(running)
            except asyncio.CancelledError:
                # The caller is gone, but the next one needs the connection to itself.
                await asyncio.wait([running])
                raise

    def _transacted(self, action: Callable[[sqlite3.Connection], _T], *, writes: bool) -> _T:
        self._look_again()
        try:
            connection = self._connected()
            connection.execute("BEGIN IMMEDIATE" if writes else "BEGIN")
            value = action(connection)
            connection.execute("COMMIT")
        except sqlite3.Error as error:
            self._disconnect()
            raise sqlite_error_of(error, self._path) from error
        except BaseException:
            self._disconnect()
            raise
        return value

    def _look_again(self) -> None:
        """Drop a file that was deleted or replaced at its path: no application adds rows to it.

        The leading relay must take the lease again.
        """
        if self._connection is not None and self._identity != identity_of(self._path):
            self._disconnect()
            self._leads_until_s = 0.0
            raise InboxError(f"the database {self._path} was deleted or replaced while it was open")

    def _connected(self) -> sqlite3.Connection:
        if self._connection is None:
            # The application creates its database; a mistyped path must not create one.
            if not Path(self._path).is_file():
                raise InboxError(f"no database at {self._path}")
            self._connection = sqlite3.connect(
                self._path, timeout=_BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False
            )
            self._identity = identity_of(self._path)
            # Undecodable text would otherwise fail the whole query, and with it every other row. Read like this, only
            # its own row is refused.
            self._connection.text_factory = partial(str, encoding="utf-8", errors="replace")
        return self._connection

    def _disconnect(self) -> None:
        """Close the connection; without COMMIT this undoes its transaction."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def _prepare(connection: sqlite3.Connection) -> None:
    connection.execute(_TABLE)
    connection.execute(_RELAY)
