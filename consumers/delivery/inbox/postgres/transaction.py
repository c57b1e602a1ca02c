"""PostgresTransaction: a handler's transaction on PostgreSQL.

Owns translating failures of the server, and releasing the connection. The inbox's row is written in it by `inbox`.

A statement may take as long as its server works on it: waiting for another handler's lock does not mean that the server
is gone, and must not kill the message.

A statement that fails spoils the transaction: catch its error only around `transaction.connection.transaction()`, which
is a savepoint.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeVar

from bus.databases.postgres import (
    close_silently,
    database_of,
    failures,
    is_late,
    is_postgres_error,
    pool,
    postgres_error_of,
    translating,
)
from bus.errors import InboxError

__all__ = ["PostgresTransaction", "Sessions"]

_T = TypeVar("_T")


class PostgresTransaction:
    """Open until it is finished or rolled back; see `consumers.delivery.inbox.base.Transaction`.

    *connection* is asyncpg's own.
    """

    def __init__(
        self,
        connection: Any,
        give_back: Callable[[PostgresTransaction], Awaitable[None]],
        where: str,
        *,
        timeout_s: float,
        is_at_work: Callable[[int], Awaitable[bool]],
    ) -> None:
        """Make the transaction of *connection*.

        *is_at_work* is asked about the connection's process on the server when a statement takes longer than
        *timeout_s*.
        """
        self.connection = connection
        self._process: int = connection.get_server_pid()
        self._timeout_s = timeout_s
        self._is_at_work = is_at_work
        self._looking: asyncio.Task[None] | None = None
        self._transaction = connection.transaction()
        self._give_back = give_back
        self._where = where
        self._is_open = True
        self._turn = asyncio.Lock()

    async def start(self) -> None:
        await self.guard(self._transaction.start)

    async def execute(self, statement: str, *arguments: Any) -> None:
        await self.guard(lambda: self.connection.execute(statement, *arguments))

    async def fetch(self, statement: str, *arguments: Any) -> list[tuple[Any, ...]]:
        return [tuple(row) for row in await self.guard(lambda: self.connection.fetch(statement, *arguments))]

    async def fetchrow(self, statement: str, *arguments: Any) -> tuple[Any, ...] | None:
        row = await self.guard(lambda: self.connection.fetchrow(statement, *arguments))
        return None if row is None else tuple(row)

    async def commit(self) -> None:
        """Make everything durable; afterwards it is over, also where that failed."""
        try:
            await self.guard(self._transaction.commit)
        finally:
            await self._end()

    async def rollback(self) -> None:
        if not self._is_open:
            return
        try:
            async with asyncio.timeout(self._timeout_s):
                await self._transaction.rollback()
        except failures():
            # A connection that is cut undoes its transaction.
            close_silently(self.connection)
        finally:
            await self._end()

    async def guard(self, run: Callable[[], Awaitable[_T]]) -> _T:
        """Return what *run* returns.

        Errors about the statement pass through; others are the store's, and end the transaction.
        """
        # A connection runs one statement at a time, and a handler may have several tasks.
        async with self._turn:
            if not self._is_open:
                raise InboxError("the transaction has ended")
            try:
                return await self._patiently(run)
            except Exception as error:
                if not is_postgres_error(error):
                    raise
                if is_late(error):
                    await self.rollback()
                else:
                    close_silently(self.connection)
                    await self._end()
                raise postgres_error_of(error, self._where) from error

    async def _patiently(self, run: Callable[[], Awaitable[_T]]) -> _T:
        """Return what *run* returns, for as long as its server works on it. Raises TimeoutError."""
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(None) as limit:
            timer = loop.call_later(self._timeout_s, self._look, limit)
            try:
                return await run()
            finally:
                timer.cancel()
                if self._looking is not None:
                    self._looking.cancel()
                    self._looking = None

    def _look(self, limit: asyncio.Timeout) -> None:
        self._looking = asyncio.get_running_loop().create_task(self._look_after(limit))

    async def _look_after(self, limit: asyncio.Timeout) -> None:
        while await self._is_at_work(self._process):  # noqa: ASYNC110 - the server has to be asked
            await asyncio.sleep(self._timeout_s)
        limit.reschedule(asyncio.get_running_loop().time())

    async def _end(self) -> None:
        if self._is_open:
            self._is_open = False
            await self._give_back(self)


_LIMIT: Final = 16


class Sessions:
    """Transactions in the database behind *url*; *is_at_work* returns whether a server process runs a statement."""

    def __init__(self, url: str, name: str, timeout_s: float, is_at_work: Callable[[int], Awaitable[bool]]) -> None:
        self._where = database_of(url)
        self._timeout_s = timeout_s
        self._is_at_work = is_at_work
        self._transactions: set[PostgresTransaction] = set()
        self._pool: Any = pool(url, name, _LIMIT, timeout_s, command_timeout=None, reset=_reset)

    async def open(self) -> None:
        """Open the pool. Raises the driver's errors."""
        await self._pool

    async def begin(self) -> PostgresTransaction:
        """Return a transaction that has begun."""
        with translating(self._where):
            connection = await self._pool.acquire()
        transaction = PostgresTransaction(
            connection, self._end, self._where, timeout_s=self._timeout_s, is_at_work=self._is_at_work
        )
        self._transactions.add(transaction)
        try:
            await transaction.start()
        except BaseException:
            await transaction.rollback()
            raise
        return transaction

    async def undo(self) -> None:
        """Roll back every open transaction."""
        for transaction in tuple(self._transactions):
            await transaction.rollback()

    async def close(self) -> None:
        """Close the pool in order."""
        await self._pool.close()

    def terminate(self) -> None:
        """Close the pool at once."""
        self._pool.terminate()

    async def _end(self, transaction: PostgresTransaction) -> None:
        self._transactions.discard(transaction)
        with contextlib.suppress(*failures()):
            await self._pool.release(transaction.connection, timeout=self._timeout_s)


async def _reset(connection: Any) -> None:
    # The driver's own reset keeps the role, and the next handler, perhaps for another customer, would have it.
    await connection.execute(f"SET SESSION AUTHORIZATION DEFAULT;{connection.get_reset_query()}")
