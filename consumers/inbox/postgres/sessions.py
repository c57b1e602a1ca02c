"""Handlers' transactions of one inbox on PostgreSQL: a pool of their own, since they may be kept open for long.

Owns opening them, and how long a statement of theirs may take: as long as its server is at work on it, for a lock that another handler holds is
no server that has gone. Does not own what a transaction is (`session`), nor the inbox's own statements (`inbox`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable
from typing import Any, Final

from bus.databases.postgres import failures, place, pool, translating
from consumers.inbox.postgres.session import PostgresTransaction

__all__ = ["Sessions"]

_MOST: Final = 16


class Sessions:
    """In the database behind *url*; *is_at_work* tells of a process of the server whether it runs a statement."""

    def __init__(self, url: str, name: str, timeout_s: float, is_at_work: Callable[[int], Awaitable[bool]]) -> None:
        self._where = place(url)
        self._timeout_s = timeout_s
        self._is_at_work = is_at_work
        self._transactions: set[PostgresTransaction] = set()
        self._pool: Any = pool(url, name, _MOST, timeout_s, command_timeout=None, reset=_reset)

    async def open(self) -> None:
        """Raises what the driver raises."""
        await self._pool

    async def begin(self) -> PostgresTransaction:
        """A transaction, which has begun."""
        with translating(self._where):
            connection = await self._pool.acquire()
        transaction = PostgresTransaction(connection, self._ended, self._where, timeout_s=self._timeout_s, is_at_work=self._is_at_work)
        self._transactions.add(transaction)
        try:
            await transaction.start()
        except BaseException:
            await transaction.rollback()
            raise
        return transaction

    async def undo(self) -> None:
        """Every transaction that is still open."""
        for transaction in tuple(self._transactions):
            await transaction.rollback()

    async def close(self) -> None:
        """End in order."""
        await self._pool.close()

    def terminate(self) -> None:
        """End at once."""
        self._pool.terminate()

    async def _ended(self, transaction: PostgresTransaction) -> None:
        self._transactions.discard(transaction)
        with contextlib.suppress(*failures()):
            await self._pool.release(transaction.connection, timeout=self._timeout_s)


async def _reset(connection: Any) -> None:
    # The driver's own way leaves the role, which the next handler, for another customer perhaps, would have too.
    await connection.execute(f"SET SESSION AUTHORIZATION DEFAULT;{connection.get_reset_query()}")
