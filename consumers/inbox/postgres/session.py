"""A handler's transaction on PostgreSQL.

Owns translating failures of the server, and giving the connection back. Does not own the inbox's row, which `inbox` writes in it.

A statement that fails spoils the transaction: catch its error only around `transaction.connection.transaction()`, which is a savepoint.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from bus.databases.postgres import cut, failures, is_late, is_of_store, translated
from bus.errors import InboxError

__all__ = ["PostgresTransaction"]

T = TypeVar("T")


class PostgresTransaction:
    """Open until it is finished or rolled back; see `consumers.inbox.base.Transaction`. *connection* is asyncpg's own."""

    def __init__(self, connection: Any, give_back: Callable[[PostgresTransaction], Awaitable[None]], where: str) -> None:
        self.connection = connection
        self._transaction = connection.transaction()
        self._give_back = give_back
        self._where = where
        self._is_open = True
        self._turn = asyncio.Lock()

    async def start(self) -> None:
        await self.guarded(self._transaction.start)

    async def execute(self, statement: str, *arguments: Any) -> None:
        await self.guarded(lambda: self.connection.execute(statement, *arguments))

    async def fetch(self, statement: str, *arguments: Any) -> list[tuple[Any, ...]]:
        return [tuple(row) for row in await self.guarded(lambda: self.connection.fetch(statement, *arguments))]

    async def fetchrow(self, statement: str, *arguments: Any) -> tuple[Any, ...] | None:
        row = await self.guarded(lambda: self.connection.fetchrow(statement, *arguments))
        return None if row is None else tuple(row)

    async def commit(self) -> None:
        """Make everything durable; whether it failed or not, it is over."""
        try:
            await self.guarded(self._transaction.commit)
        finally:
            await self._end()

    async def rollback(self) -> None:
        if not self._is_open:
            return
        try:
            await self._transaction.rollback()
        except failures():
            # A connection that is cut undoes its transaction.
            cut(self.connection)
        finally:
            await self._end()

    async def guarded(self, run: Callable[[], Awaitable[T]]) -> T:
        """What *run* answers. Errors about the statement go through; others are the store's, and the end of the transaction."""
        # A connection has one statement at a time, and a handler may have several tasks.
        async with self._turn:
            if not self._is_open:
                raise InboxError("the transaction has ended")
            try:
                return await run()
            except Exception as error:
                if not is_of_store(error):
                    raise
                if is_late(error):
                    await self.rollback()
                else:
                    cut(self.connection)
                    await self._end()
                raise translated(error, self._where) from error

    async def _end(self) -> None:
        if self._is_open:
            self._is_open = False
            await self._give_back(self)
