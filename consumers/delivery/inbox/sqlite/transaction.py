"""SqliteTransaction: a handler's transaction on SQLite.

Owns `$1` placeholders, and refusing statements that would end the transaction or change the connection. Its turn of the
writer is in `group_commit`, its end by a result in `inbox`.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import sqlite3
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol, TypeVar

from bus.errors import InboxError
from consumers.delivery.inbox.base import Write
from consumers.delivery.inbox.sqlite.group_commit import JobBatch

__all__ = ["SqliteTransaction", "fetched", "or_undone", "written_whole"]

_T = TypeVar("_T")

_RESERVED = {"BEGIN", "COMMIT", "END", "ROLLBACK", "ATTACH", "DETACH", "PRAGMA", "VACUUM"}
_FIRST_WORD = re.compile(r"(?:\s|--[^\n]*(?:\n|$)|/\*.*?\*/|;)*([A-Za-z]*)", re.DOTALL)


class _Steps(Protocol):
    """Submits a step of the transaction."""

    def __call__(self, action: Callable[[JobBatch], Any], key: str = "", /) -> asyncio.Future[Any]: ...


class SqliteTransaction:
    """Open until it is finished or rolled back; see `consumers.delivery.inbox.base.Transaction`."""

    def __init__(self, steps: _Steps) -> None:
        self._steps = steps

    async def execute(self, statement: str, *arguments: Any) -> None:
        await self.run(partial(_executed, statement, arguments))

    async def fetch(self, statement: str, *arguments: Any) -> list[tuple[Any, ...]]:
        return await self.run(partial(fetched, statement, arguments))

    async def fetchrow(self, statement: str, *arguments: Any) -> tuple[Any, ...] | None:
        rows = await self.fetch(statement, *arguments)
        return rows[0] if rows else None

    async def commit(self) -> None:
        """Make everything durable; afterwards it is over, also where that failed."""
        await self.run(_keep_nothing)

    async def rollback(self) -> None:
        with contextlib.suppress(InboxError):
            await self.run(_undone)

    async def run(self, action: Callable[[JobBatch], _T], key: str = "") -> _T:
        """Run one step. A cancelled step is carried out all the same; the transaction stays open then."""
        result: _T = await self._steps(action, key)
        return result

    def undo_soon(self) -> None:
        """Roll back without waiting."""
        with contextlib.suppress(InboxError):
            self._steps(_undone).add_done_callback(lambda future: future.cancelled() or future.exception())


def or_undone(finish: Callable[[JobBatch], bool], batch: JobBatch) -> bool:
    """Run *finish*; where the result must not be written, roll back the handler's own writes too."""
    is_done = finish(batch)
    if not batch.changed:
        batch.table.rollback()
    return is_done


def _executed(statement: str, arguments: tuple[Any, ...], batch: JobBatch) -> None:
    _run(statement, arguments, batch).close()


def fetched(statement: str, arguments: tuple[Any, ...], batch: JobBatch) -> list[tuple[Any, ...]]:
    """Return the rows of *statement*, run by the writer of *batch*."""
    return _run(statement, arguments, batch).fetchall()


def written_whole(writes: Sequence[Write], batch: JobBatch) -> bool:
    """Run *writes* among other jobs of one transaction; where one does not return its row, run none, and return False.

    Raises the database's error about one of them, and none is run either.
    """
    connection = batch.table.connection
    connection.execute("SAVEPOINT writes")
    try:
        is_whole = all(
            # The statement is reset at once: an open one would keep the transaction from its end.
            len(_run(write.statement, write.arguments, batch).fetchall()) >= write.must_return
            for write in writes
        )
    except BaseException:
        _leave(connection, undo=True)
        raise
    _leave(connection, undo=not is_whole)
    return is_whole


def _leave(connection: sqlite3.Connection, *, undo: bool) -> None:
    # A fault of the disk may have ended the whole transaction.
    if connection.in_transaction:
        if undo:
            connection.execute("ROLLBACK TO writes")
        connection.execute("RELEASE writes")


def _run(statement: str, arguments: tuple[Any, ...], batch: JobBatch) -> sqlite3.Cursor:
    found = _FIRST_WORD.match(statement)
    if found is not None and found[1].upper() in _RESERVED:
        raise sqlite3.ProgrammingError(f"{found[1].upper()} is not for a handler: its transaction ends with it")
    return batch.table.connection.execute(statement, {str(number): value for number, value in enumerate(arguments, 1)})


def _keep_nothing(batch: JobBatch) -> None:
    try:
        batch.table.commit()
        batch.table.sync()
    except BaseException:
        batch.table.rollback()
        raise


def _undone(batch: JobBatch) -> None:
    batch.table.rollback()
