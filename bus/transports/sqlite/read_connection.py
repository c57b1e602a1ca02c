"""The reading connection and its thread.

Owns the reader thread (without one for a log in memory) and the short read transaction around each query. Callers
supply the queries.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol, TypeVar

from bus.databases.sqlite_file import identity_of
from bus.errors import ClosedError
from bus.transports.sqlite.errors import check_identity, log_error_of
from bus.transports.sqlite.schema import open_log
from bus.transports.sqlite.write_transaction import LogFile

__all__ = ["InlineReader", "Query", "ReadConnection", "ThreadReader"]

_T = TypeVar("_T")
Query = Callable[[sqlite3.Connection], _T]


class ReadConnection(Protocol):
    """Runs the reads of a log."""

    async def run(self, query: Callable[[sqlite3.Connection], _T]) -> _T:
        """Run *query* on one snapshot of the log."""

    async def close(self) -> None:
        """Release the connection."""


class InlineReader:
    """Reads at once, on the event loop and the writer's connection: for a log in memory."""

    def __init__(self, log: LogFile) -> None:
        self._log = log

    async def run(self, query: Callable[[sqlite3.Connection], _T]) -> _T:
        result = query(self._log.connection)
        # A caller that only reads must not starve the other tasks.
        await asyncio.sleep(0)
        return result

    async def close(self) -> None:
        """Do nothing: the writer closes the connection."""


class ThreadReader:
    """Reads on its own thread."""

    def __init__(self, path: str, *, shared_files: bool) -> None:
        self._path = path
        self._connection = open_log(path, read_only=True, shared_files=shared_files)
        self._identity = identity_of(path)
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="sealbus-reader")
        self._closed = False

    async def run(self, query: Callable[[sqlite3.Connection], _T]) -> _T:
        if self._closed:
            raise ClosedError("the transport is closed")
        return await asyncio.get_running_loop().run_in_executor(self._executor, self._snapshot, query)

    async def close(self) -> None:
        if not self._closed:
            self._closed = True
            await asyncio.get_running_loop().run_in_executor(self._executor, self._connection.close)
            self._executor.shutdown(wait=True)

    def _snapshot(self, query: Callable[[sqlite3.Connection], _T]) -> _T:
        # Nothing is appended to a deleted file: a reader would wait for ever.
        check_identity(self._path, self._identity)
        # Short on purpose: an open read transaction keeps the write-ahead log from being reset.
        try:
            self._connection.execute("BEGIN")
            try:
                return query(self._connection)
            finally:
                self._connection.execute("ROLLBACK")
        except (sqlite3.Error, UnicodeDecodeError) as error:
            raise log_error_of(error, self._path) from error
