"""What nearly every message needs, for many of them by one statement: a first claim, then a result with nothing in it.

Owns gathering what is asked while a statement is under way, so that the busier a worker is, the more travel together,
and the answers, which are those of `consumers.inbox.claim_rules`. Whatever is not answered so goes to the way of its
own that each `BulkClaims` and `BulkResults` brings. Does not own the SQL (`statements`) or connections.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, MutableMapping, MutableSet, Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar

from bus.errors import InboxError
from consumers.inbox.base import Ask, Claim, End
from consumers.inbox.claim_rules import FIRST, NOBODY
from consumers.inbox.postgres import statements

__all__ = ["BulkClaims", "BulkResults", "Together", "answer"]

_MOST = 512

T = TypeVar("T", bound="BulkClaims | BulkResults")
Connected: TypeAlias = Callable[[], AbstractAsyncContextManager[Any]]
Begin: TypeAlias = Callable[[Coroutine[Any, Any, Any]], asyncio.Task[Any]]


class BulkClaims(NamedTuple):
    """A claim that is asked for; *alone* asks for it in the general way."""

    identity: bytes
    text: str
    content_hash: str
    keep_until_ms: int
    message_id: str
    told: Callable[[Claim | Exception], object]
    alone: Callable[[], None]


class BulkResults(NamedTuple):
    """A result without outputs; see `BulkClaims`."""

    identity: bytes
    token: int
    told: Callable[[bool | Exception], object]
    alone: Callable[[], None]


class Together:
    """Claims and results of one inbox, many by one statement.

    *running* is what this process is at work on, by identity, *asking* what it has asked for; *begin* runs a coroutine.
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

    def claim(self, asked: BulkClaims) -> None:
        """*asked*, soon; until it is answered its identity is among those that are asked for."""
        self._asking.add(asked.identity)
        self._claims.add(asked)

    def finish(self, ended: BulkResults) -> None:
        """*ended*, soon."""
        self._results.add(ended)

    def apart(
        self, told: Callable[[Any], object], ask: Callable[..., Coroutine[Any, Any, object]], *arguments: object
    ) -> None:
        """*ask* for one alone; *told* of what comes of it."""
        self._begin(ask(*arguments)).add_done_callback(partial(_tell, told))

    async def _claim(self, batch: Sequence[BulkClaims]) -> set[bytes]:
        # Whoever inserts what another is inserting waits for it: all in one order, so that no two wait for each other.
        batch = sorted(batch, key=lambda asked: asked.identity)
        columns = [[asked[place] for asked in batch] for place in range(5)]
        async with self._connected() as connection:
            return {identity for (identity,) in await connection.fetch(statements.INSERT_FIRSTS, self.owner, *columns)}

    def _claimed(self, asked: BulkClaims, is_written: bool | Exception) -> None:
        self._asking.discard(asked.identity)
        if is_written is True:
            self._running[asked.identity] = FIRST.token
            asked.told(FIRST)
        elif is_written is False:
            asked.alone()
        else:
            asked.told(is_written)

    async def _finish(self, batch: Sequence[BulkResults]) -> set[bytes]:
        columns = [[ended[place] for ended in batch] for place in range(2)]
        async with self._connected() as connection:
            return {identity for (identity,) in await connection.fetch(statements.FINISH_SILENT, self.owner, *columns)}

    def _finished(self, ended: BulkResults, is_written: bool | Exception) -> None:
        if is_written is False:
            ended.alone()
            return
        if is_written is True and self._running.get(ended.identity) == ended.token:
            del self._running[ended.identity]
        ended.told(is_written)


def answer(told: Callable[[Sequence[Any]], object], item: Ask | End, found: Any) -> None:
    """What one of many is told."""
    item.answer = found
    told((item,))


def _tell(told: Callable[[Any], object], task: asyncio.Task[Any]) -> None:
    # A task of ours is cancelled by nobody but a loop that ends.
    if not task.cancelled():
        told(error if (error := task.exception()) is not None else task.result())


class _Gathering(Generic[T]):
    """One batch at a time; what comes meanwhile is the next."""

    def __init__(
        self,
        write: Callable[[Sequence[T]], Awaitable[set[bytes]]],
        answer: Callable[[T, bool | Exception], None],
        begin: Begin,
    ) -> None:
        self._write = write
        self._answer = answer
        self._begin = begin
        self._waiting: list[T] = []
        self._is_under_way = False

    def add(self, job: T) -> None:
        self._waiting.append(job)
        if not self._is_under_way:
            self._is_under_way = True
            self._begin(self._run())

    async def _run(self) -> None:
        try:
            while self._waiting:
                batch, self._waiting = self._waiting[:_MOST], self._waiting[_MOST:]
                written, error = await self._tried(batch)
                for job in batch:
                    # A new error for each: one that is raised twice would carry two tracebacks.
                    self._answer(job, InboxError(*error.args) if error is not None else job.identity in written)
        finally:
            self._is_under_way = False

    async def _tried(self, batch: Sequence[T]) -> tuple[set[bytes], InboxError | None]:
        try:
            return await self._write(batch), None
        except InboxError as error:
            return set(), error
        except Exception:  # noqa: BLE001 - a value that the database cannot hold: whose it is, shows when each is alone
            return set(), None
