"""AuditDatabase: SQLite and PostgreSQL behind one small Protocol, with `$1` for the first argument on both.

Owns connections, transactions, translating failures, and the one place through which text goes in and comes out: what a
database cannot hold is escaped (`bus.databases.stored_text`). Statements are `consumers.operations.audit.store`'s.
"""

from __future__ import annotations

import asyncio
import re
import sqlite3
import time
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar
from urllib.parse import quote, unquote

from bus.databases import postgres
from bus.databases.ownership import keep_private
from bus.databases.sqlite_file import begin_writing, fixed, has_folder, switch_to_wal
from bus.databases.stored_text import restored_row, storable_row
from bus.errors import ConfigurationError, InboxError, UnstorableError
from bus.settings.schema import Settings
from consumers.delivery.inbox.open import log_file

__all__ = ["audit_url", "AuditDatabase", "open_database", "shown_audit_url", "Statements"]

_T = TypeVar("_T")
_SQLITE: Final = "sqlite:///"
_BUSY_S: Final = 10.0
_CLOSING_S: Final = 4.0
_ARGUMENT: Final = re.compile(r"\$(\d+)")


class Statements(Protocol):
    """One transaction."""

    async def fetch(self, statement: str, *arguments: Any) -> list[tuple[Any, ...]]:
        """Run *statement* and return its rows."""
        ...

    async def many(self, statement: str, rows: Sequence[Sequence[Any]]) -> None:
        """Run *statement* once for each of *rows*."""
        ...


class AuditDatabase(Protocol):
    """A database; raises InboxError where it cannot be used just now, ConfigurationError where it never can.

    UnstorableError: it refuses a value of the statement, and would refuse it again.
    """

    bytes_type: str

    async def open(self) -> None:
        """Connect."""
        ...

    async def now_ms(self) -> int:
        """Return the database's time: all who write share it."""
        ...

    def transaction(self) -> AbstractAsyncContextManager[Statements, bool | None]:
        """Begin; commit where the body ends, undo where it raises."""
        ...

    async def read(self, statement: str, *arguments: Any) -> list[tuple[Any, ...]]:
        """Read outside of transactions."""
        ...

    async def close(self) -> None:
        """Close the connection."""
        ...


def audit_url(settings: Settings) -> str:
    """Return the URL of the audit database in *settings*. Raises ConfigurationError if it is not set."""
    if settings.audit.url != "auto":
        return settings.audit.url
    if not settings.bus.url.startswith("sqlite:"):
        raise ConfigurationError(
            "on this log the audit needs a database: audit.url = postgresql://user@host/database, or "
            "sqlite:///audit.db where one machine is enough"
        )
    return f"sqlite:///{quote(str(log_file(settings.bus.url)).removesuffix('.db'))}-audit.db"


def shown_audit_url(settings: Settings) -> str:
    """Return where the audit is, without a password."""
    url = audit_url(settings)
    return url if url.startswith("sqlite:") else postgres.database_of(url)


def open_database(url: str, *, shared_files: bool = False) -> AuditDatabase:
    """Return the database behind *url*, still to be opened. Raises ConfigurationError."""
    if url.startswith(("postgres://", "postgresql://")):
        return _Postgres(url)
    path = unquote(url.removeprefix(_SQLITE))
    if not url.startswith(_SQLITE) or not path or "?" in path:
        raise ConfigurationError(
            f"the audit cannot be kept in {url[:40]!r}: write sqlite:///relative.db, sqlite:////absolute.db or "
            "postgresql://user@host/database"
        )
    return _Sqlite(path, shared_files=shared_files)


@cache
def _marked(statement: str) -> tuple[str, tuple[int, ...]]:
    """Return *statement* with `?` for each `$n`, and which argument each of them stands for.

    SQLite has `?1`, which Python 3.12.0 to 3.12.3 takes for a name and warns of.
    """
    return _ARGUMENT.sub("?", statement), tuple(int(number) - 1 for number in _ARGUMENT.findall(statement))


class _Sqlite:
    """One connection, in a thread of its own."""

    bytes_type = "BLOB"

    def __init__(self, path: str, *, shared_files: bool) -> None:
        self._path = fixed(path)
        self._shared_files = shared_files
        self._thread = ThreadPoolExecutor(1, "audit")
        self._turn = asyncio.Lock()
        self._connection: sqlite3.Connection | None = None

    async def open(self) -> None:
        await self._run(self._connect)

    def _connect(self) -> None:
        if not has_folder(self._path):
            raise InboxError(f"cannot open the audit {self._path}: no directory {Path(self._path).parent}")
        keep_private(self._path, "audit", shared=self._shared_files)
        self._connection = sqlite3.connect(self._path, isolation_level=None, check_same_thread=False, timeout=0)
        switch_to_wal(self._connection, _BUSY_S)
        self._connection.execute("PRAGMA synchronous = FULL")
        # What is erased must not be found in free pages.
        self._connection.execute("PRAGMA secure_delete = ON")

    async def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    @asynccontextmanager
    async def transaction(self) -> AsyncGenerator[Statements]:
        connection = self._opened()
        async with self._turn:
            await self._run(lambda: begin_writing(connection, _BUSY_S))
            try:
                yield self
                await self._run(lambda: connection.execute("COMMIT"))
            except BaseException:
                await self._run(lambda: connection.in_transaction and connection.execute("ROLLBACK"))
                raise

    async def fetch(self, statement: str, *arguments: Any) -> list[tuple[Any, ...]]:
        connection, (text, order) = self._opened(), _marked(statement)
        provided = storable_row(arguments)
        return list(
            map(
                restored_row,
                await self._run(lambda: connection.execute(text, [provided[at] for at in order]).fetchall()),
            )
        )

    async def many(self, statement: str, rows: Sequence[Sequence[Any]]) -> None:
        connection, (text, order) = self._opened(), _marked(statement)
        provided = list(map(storable_row, rows))
        await self._run(lambda: connection.executemany(text, ([row[at] for at in order] for row in provided)))

    async def read(self, statement: str, *arguments: Any) -> list[tuple[Any, ...]]:
        async with self._turn:
            return await self.fetch(statement, *arguments)

    async def close(self) -> None:
        connection, self._connection = self._connection, None
        try:
            if connection is not None:
                # One that cannot be used was an error of its own before.
                with suppress(InboxError):
                    await self._run(lambda: connection.execute("PRAGMA wal_checkpoint(TRUNCATE)"))
                await self._run(connection.close)
        finally:
            self._thread.shutdown()

    def _opened(self) -> sqlite3.Connection:
        assert self._connection is not None  # noqa: S101 - `open` comes first
        return self._connection

    async def _run(self, work: Callable[[], _T]) -> _T:
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, work)
        except (sqlite3.DataError, OverflowError, ValueError) as error:
            raise UnstorableError(f"the audit {self._path} refuses a value: {error}") from error
        except sqlite3.Error as error:
            raise InboxError(f"the audit {self._path} cannot be used just now: {error}") from error


class _Transaction:
    """One transaction of PostgreSQL."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    async def fetch(self, statement: str, *arguments: Any) -> list[tuple[Any, ...]]:
        return list(map(restored_row, await self._connection.fetch(statement, *storable_row(arguments))))

    async def many(self, statement: str, rows: Sequence[Sequence[Any]]) -> None:
        await self._connection.executemany(statement, list(map(storable_row, rows)))


class _Postgres:
    """A pool of two connections."""

    bytes_type = "bytea"

    def __init__(self, url: str) -> None:
        self._url = url
        self._where = postgres.database_of(url)
        self._pool: Any = None

    async def open(self) -> None:
        with postgres.translating(self._where, at_start=True):
            self._pool = await postgres.pool(self._url, "sealbus audit", 2, postgres.POSTGRES_TIMEOUT_S)
            await self._pool.fetch("SELECT 1")

    async def now_ms(self) -> int:
        rows = await self.read("SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint")
        return int(rows[0][0])

    @asynccontextmanager
    async def transaction(self) -> AsyncGenerator[Statements]:
        with self._translating():
            async with self._pool.acquire() as connection, connection.transaction():
                yield _Transaction(connection)

    async def read(self, statement: str, *arguments: Any) -> list[tuple[Any, ...]]:
        with self._translating():
            return list(map(restored_row, await self._pool.fetch(statement, *storable_row(arguments))))

    @contextmanager
    def _translating(self) -> Iterator[None]:
        with postgres.translating(self._where):
            try:
                yield
            except postgres.failures() as error:
                if postgres.is_of_value(error):
                    raise UnstorableError(f"the database {self._where} refuses a value: {error}") from error
                raise

    async def close(self) -> None:
        if self._pool is not None:
            async with postgres.closing(self._where, _CLOSING_S, self._pool.terminate):
                await self._pool.close()
