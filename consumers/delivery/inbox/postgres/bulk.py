"""Bulk requests: first claims, and results without outputs, many of them by one statement.

Owns gathering what is asked while a statement is under way: the busier a worker is, the more share one. The answers are
those of `consumers.delivery.inbox.claim_rules`; the rest takes the single way that each `BulkClaims` and `BulkResults`
brings. The SQL is in `statements`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, MutableMapping, MutableSet, Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar

from bus.errors import InboxError
from consumers.delivery.inbox.base import Ask, Claim, End
from consumers.delivery.inbox.claim_rules import FIRST, NOBODY
from consumers.delivery.inbox.postgres import statements

__all__ = ["BulkClaims", "BulkResults", "BulkStatements", "answer_one"]

_LIMIT = 512

_T = TypeVar("_T", bound="BulkClaims | BulkResults")
Connected: TypeAlias = Callable[[], AbstractAsyncContextManager[Any]]
Begin: TypeAlias = Callable[[Coroutine[Any, Any, Any]], asyncio.Task[Any]]


class BulkClaims(NamedTuple):
    """One claim request; *alone* asks for it in the general way."""

    identity: bytes
    text: str
    content_hash: str
    keep_until_ms: int
    message_id: str
    on_answer: Callable[[Claim | Exception], object]
    alone: Callable[[], None]


class BulkResults(NamedTuple):
    """One result without outputs; see `BulkClaims`."""

    identity: bytes
    token: int
    on_answer: Callable[[bool | Exception], object]
    alone: Callable[[], None]


class BulkStatements:
    """Claims and results of one inbox, many by one statement.

    *running* maps the identities that this process runs to tokens, *asking* holds those it has asked for; *begin* runs
    a coroutine.
    """

    def __init__(
        self, connected: Connected, running: MutableMapping[bytes, int], asking: MutableSet[bytes], begin: Begin
    ) -> None:
        self._connected = connected
        self._running = running
        self._asking = asking
        self._begin = begin
        self._claims: _Gathering[BulkClaims] = _Gathering(self._claim, self._claimed, begin)
        self._results: _Gathering[BulkResults] = _Gathering(self._finish, self._finished, begin)
        self.owner = NOBODY

    def claim(self, request: BulkClaims) -> None:
        """Ask for *request* soon; until the answer its identity is in *asking*."""
        self._asking.add(request.identity)
        self._claims.add(request)

    def finish(self, ended: BulkResults) -> None:
        """Store *ended* soon."""
        self._results.add(ended)

    def apart(
        self, on_answer: Callable[[Any], object], ask: Callable[..., Coroutine[Any, Any, object]], *arguments: object
    ) -> None:
        """Run *ask* for one request alone; *on_answer* receives its result or error."""
        self._begin(ask(*arguments)).add_done_callback(partial(_tell, on_answer))

    async def _claim(self, batch: Sequence[BulkClaims]) -> set[bytes]:
        # An INSERT waits for another one of the same row: with all in one order, no two wait for each other.
        batch = sorted(batch, key=lambda request: request.identity)
        columns = [[request[location] for request in batch] for location in range(5)]
        async with self._connected() as connection:
            return {identity for (identity,) in await connection.fetch(statements.INSERT_FIRSTS, self.owner, *columns)}

    def _claimed(self, request: BulkClaims, is_written: bool | Exception) -> None:
        self._asking.discard(request.identity)
        if is_written is True:
            self._running[request.identity] = FIRST.token
            request.on_answer(FIRST)
        elif is_written is False:
            request.alone()
        else:
            request.on_answer(is_written)

    async def _finish(self, batch: Sequence[BulkResults]) -> set[bytes]:
        columns = [[ended[location] for ended in batch] for location in range(2)]
        async with self._connected() as connection:
            return {identity for (identity,) in await connection.fetch(statements.FINISH_SILENT, self.owner, *columns)}

    def _finished(self, ended: BulkResults, is_written: bool | Exception) -> None:
        if is_written is False:
            ended.alone()
            return
        if is_written is True and self._running.get(ended.identity) == ended.token:
            del self._running[ended.identity]
        ended.on_answer(is_written)


def answer_one(on_answer: Callable[[Sequence[Any]], object], item: Ask | End, found: Any) -> None:
    """Set the answer of *item*, and pass it to *on_answer*."""
    item.answer = found
    on_answer((item,))


def _tell(on_answer: Callable[[Any], object], task: asyncio.Task[Any]) -> None:
    # Only a loop that ends cancels such a task.
    if not task.cancelled():
        on_answer(error if (error := task.exception()) is not None else task.result())


class _Gathering(Generic[_T]):
    """One batch at a time; requests that arrive while it runs form the next one."""

    def __init__(
        self,
        write: Callable[[Sequence[_T]], Awaitable[set[bytes]]],
        answer: Callable[[_T, bool | Exception], None],
        begin: Begin,
    ) -> None:
        self._write = write
        self._answer = answer
        self._begin = begin
        self._waiting: list[_T] = []
        self._is_under_way = False

    def add(self, job: _T) -> None:
        self._waiting.append(job)
        if not self._is_under_way:
            self._is_under_way = True
            self._begin(self._run())

    async def _run(self) -> None:
        try:
            while self._waiting:
                batch, self._waiting = self._waiting[:_LIMIT], self._waiting[_LIMIT:]
                written, error = await self._try(batch)
                for job in batch:
                    # An error for each: one raised twice would carry two tracebacks.
                    self._answer(job, InboxError(*error.args) if error is not None else job.identity in written)
        finally:
            self._is_under_way = False

    async def _try(self, batch: Sequence[_T]) -> tuple[set[bytes], InboxError | None]:
        try:
            return await self._write(batch), None
        except InboxError as error:
            return set(), error
        except Exception:  # noqa: BLE001 - a value that the database cannot hold: each alone shows whose it is
            return set(), None
