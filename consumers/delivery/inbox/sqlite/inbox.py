"""SqliteInbox: claims, results, transactions and the lease, as jobs of one writer.

Owns what each call of `consumers.delivery.inbox.base.Inbox` does in its transaction, and what this process runs now.
The decision is in `consumers.delivery.inbox.claim_rules`, the SQL in `table`, threads and commits in `group_commit`.
"""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

from bus.clock import Clock
from bus.databases.sqlite_errors import is_sqlite_error
from bus.databases.sqlite_holder import who_writes
from bus.errors import InboxError
from bus.telemetry.logs import get_logger
from bus.transports.base import NewRecord
from consumers.delivery.inbox import claim_rules
from consumers.delivery.inbox.base import (
    AlreadyDead,
    AlreadyDone,
    Ask,
    Claim,
    Claimed,
    End,
    InboxKey,
    SomeAsk,
    SomeEnd,
    SqlDialect,
    Transaction,
    Write,
    Written,
)
from consumers.delivery.inbox.claim_rules import Claimant
from consumers.delivery.inbox.lease import Lease
from consumers.delivery.inbox.row_encoding import encode_outputs, key_text
from consumers.delivery.inbox.sqlite import bulk, steps
from consumers.delivery.inbox.sqlite.group_commit import InboxJob, InboxWriter, JobBatch, WriterSession
from consumers.delivery.inbox.sqlite.table import Table
from consumers.delivery.inbox.sqlite.transaction import SqliteTransaction, fetched, or_undone, written_whole

__all__ = ["SqliteInbox"]

_T = TypeVar("_T")

_PURGED_AT_ONCE = 5_000
_CLOSED = "the inbox is not open"

_log = get_logger("inbox")


class SqliteInbox:
    """The inbox in the file at *path*, or, at MEMORY, in this object.

    *owner* names this process to people who look at the rows.
    """

    shared = False
    dialect: SqlDialect = "sqlite"

    def __init__(
        self, path: str, *, owner: str, clock: Clock, lease_s: float = 20.0, shared_files: bool = False
    ) -> None:
        self._path = path
        self._name = owner
        self._clock = clock
        self._owner = claim_rules.NOBODY
        self._lease = Lease(lease_s, clock.monotonic_s())
        self._renewing_s: float | None = None
        self._running: dict[str, int] = {}
        table = Table(path, shared_files=shared_files)
        self._writer = InboxWriter(
            table,
            opening=self._renew_when_due,
            quick=self._answer_together,
            committed=self._committed,
            ended=self._settle,
        )
        self._renewal: asyncio.Task[None] | None = None
        self._open = False

    async def open(self) -> None:
        if self._renewal is not None:
            raise InboxError("an inbox is opened once")
        self._writer.start()
        self._open = True
        try:
            self._owner = await self._run(self._enrol)
        except BaseException:
            self._open = False
            await self._writer.stop(_nothing)
            raise
        self._renewal = asyncio.get_running_loop().create_task(self._keep_alive())

    async def claim(
        self,
        key: InboxKey,
        content_hash: str,
        *,
        keep_until_ms: int,
        reopen: int = 0,
        alone: bool = False,
        message_id: str = "",
    ) -> Claim:
        text = key_text(key)
        future: asyncio.Future[Claim] = self._future()
        self._writer.submit(
            InboxJob(future, asks=(Ask(key, content_hash, keep_until_ms, reopen, alone, text, message_id=message_id),))
        )
        try:
            return await future
        except asyncio.CancelledError:
            if not future.cancelled() and future.exception() is None:
                self._give_back(text, future.result())
            raise

    async def find_done(self, key: InboxKey, content_hash: str) -> AlreadyDone | AlreadyDead | None:
        text = key_text(key)
        return await self._run(lambda batch: claim_rules.found_done(batch.rows.get(text), content_hash), text)

    async def finish(
        self, key: InboxKey, token: int, outputs: Sequence[NewRecord], transaction: Transaction | None = None
    ) -> bool:
        text, data = key_text(key), encode_outputs(outputs)
        if transaction is None:
            future: asyncio.Future[bool] = self._future()
            self._writer.submit(InboxJob(future, ends=(End(key, token, text, data),), durable=True))
            is_done = await future
        elif isinstance(transaction, SqliteTransaction):
            is_done = await transaction.run(partial(or_undone, partial(self._finish, text, token, data)), text)
        else:
            raise TypeError(f"a {type(transaction).__name__} is not a transaction of this inbox")
        self._forget(text, token)
        return is_done

    async def finish_with(
        self, key: InboxKey, token: int, outputs: Sequence[NewRecord], writes: Sequence[Write]
    ) -> Written:
        text = key_text(key)
        action = partial(self._finish_with, text, token, encode_outputs(outputs), writes)
        future: asyncio.Future[Written | sqlite3.Error] = self._future()
        self._writer.submit(InboxJob(future, action, text, durable=True))
        written = await future
        if isinstance(written, Exception):
            raise written
        if written != "moved":
            self._forget(text, token)
        return written

    async def write(self, writes: Sequence[Write]) -> Written:
        future: asyncio.Future[Written | sqlite3.Error] = self._future()
        self._writer.submit(InboxJob(future, partial(_write, writes), durable=True))
        written = await future
        if isinstance(written, Exception):
            raise written
        return written

    def claim_soon(self, asks: Sequence[SomeAsk], on_answers: Callable[[Sequence[SomeAsk]], object]) -> None:
        for ask in asks:
            ask.identity = key_text(ask.key)
        self._submit_soon(InboxJob(asks=asks, on_answers=on_answers))

    def finish_soon(self, ends: Sequence[SomeEnd], on_answers: Callable[[Sequence[SomeEnd]], object]) -> None:
        for end in ends:
            if end.identity is None:
                end.identity = key_text(end.key)
        self._submit_soon(InboxJob(ends=ends, on_answers=on_answers))

    async def sync(self) -> None:
        future: asyncio.Future[None] = self._future()
        # The result of a write that is still under way was not reported yet.
        if self._writer.is_loose:
            self._writer.submit(InboxJob(future, durable=True))
            await future

    async def release(self, key: InboxKey, token: int) -> None:
        text = key_text(key)
        try:
            await self._run(partial(self._release, text, token), text)
        finally:
            # A message that no longer runs here may be claimed again, also where the release could not be stored.
            self._forget(text, token)

    async def void(self, key: InboxKey, token: int) -> None:
        text = key_text(key)
        try:
            await self._run(partial(self._forgotten, text, token), text)
        finally:
            self._forget(text, token)

    async def release_with(self, key: InboxKey, token: int, transaction: Transaction) -> bool:
        text = key_text(key)
        if not isinstance(transaction, SqliteTransaction):
            raise TypeError(f"a {type(transaction).__name__} is not a transaction of this inbox")
        try:
            return await transaction.run(partial(or_undone, partial(self._released, text, token)), text)
        finally:
            self._forget(text, token)

    async def remembered(self, key: InboxKey) -> Mapping[str, bytes]:
        return await self._run(partial(steps.remembered, key_text(key)))

    async def remember(self, key: InboxKey, token: int, name: str, data: bytes) -> bool:
        text = key_text(key)
        future: asyncio.Future[bool] = self._future()
        action = partial(steps.remember, text, self._owner, token, name, data)
        # Durable: a crash of the machine must not cost the call once more.
        self._writer.submit(InboxJob(future, action, text, durable=True))
        return await future

    async def remember_with(
        self, key: InboxKey, token: int, name: str, data: bytes, writes: Sequence[Write]
    ) -> Written:
        text = key_text(key)
        action = partial(self._remember_with, text, token, name, data, writes)
        future: asyncio.Future[Written | sqlite3.Error] = self._future()
        self._writer.submit(InboxJob(future, action, text, durable=True))
        written = await future
        if isinstance(written, Exception):
            raise written
        return written

    async def forget(self, key: InboxKey) -> None:
        await self._run(partial(steps.forget, key_text(key)))

    async def begin(self) -> SqliteTransaction:
        session = WriterSession()
        transaction = SqliteTransaction(lambda action, key="": self._submit(action, key, session=session))
        beginning = self._submit(_nothing, session=session, begins=True)
        try:
            await beginning
        except asyncio.CancelledError:
            transaction.undo_soon()
            raise
        return transaction

    async def read(self, statement: str, *arguments: Any) -> list[tuple[Any, ...]]:
        return await self._run(partial(fetched, statement, arguments))

    async def query(self, statement: str, arguments: Sequence[Any]) -> list[tuple[Any, ...]]:
        """Run *statement* in a transaction of its own, and return its rows. For tests, and never in a handler."""
        return await self._run(partial(fetched, statement, tuple(arguments)))

    async def who_blocks(self) -> str:
        return who_writes(self._path)

    async def purge(self) -> int:
        total = 0
        while count := await self._run(self._purge):
            total += count
        await self._run(steps.purge_steps)
        return total

    async def close(self) -> None:
        if not self._open:
            return
        self._open = False
        if self._renewal is not None:
            self._renewal.cancel()
            await asyncio.wait([self._renewal])
        try:
            await self._writer.stop(lambda batch: batch.table.strike(self._owner))
        except InboxError as error:
            _log.warning("inbox.lease_left", error=str(error))

    # On the writer's thread -------------------------------------------------------------------------------------------

    def _enrol(self, batch: JobBatch) -> int:
        now_s = self._clock.monotonic_s()
        self._lease = Lease(self._lease.length_s, now_s)
        return batch.table.enrol(self._name, self._lease.length_s, self._clock.now_ms(), now_s)

    def _answer_together(self, table: Table, jobs: Sequence[InboxJob]) -> Sequence[InboxJob]:
        bulk.answer_batch(table, jobs, self._owner, self._running)
        left: list[InboxJob] = []
        for job in jobs:
            if job.action is not None:
                left.append(job)
            else:
                left += [
                    InboxJob(action=partial(self._claim, ask), key=ask.identity, asks=(ask,))
                    for ask in job.asks
                    if ask.answer is None
                ]
                left += [
                    InboxJob(action=partial(self._end, end), key=end.identity, ends=(end,))
                    for end in job.ends
                    if end.answer is None
                ]
        return left

    def _claim(self, ask: Ask, batch: JobBatch) -> None:
        key, row = ask.identity, batch.rows.get(ask.identity)
        asker = Claimant(self._owner, ask.content_hash, ask.keep_until_ms, False, ask.reopen, ask.alone, ask.message_id)
        rest_s = claim_rules.CLOSED
        if row is not None and row.state == "claimed":
            if row.owner == asker.owner:
                # Claimed in this batch, it is not yet among the running ones.
                asker = asker._replace(running=key in batch.changed or key in self._running)
            else:
                now_s = self._clock.monotonic_s()
                rest_s = self._lease.judged(batch.table.rest_s(row.owner, now_s), now_s)
        elif key in self._running:
            asker = asker._replace(running=True)
        decision = claim_rules.decide_claim(row, asker, rest_s)
        if decision.row is not None:
            batch.put(key, decision.row)
        ask.answer = decision.claim

    def _end(self, end: End, batch: JobBatch) -> None:
        end.answer = self._finish(end.identity, end.token, end.outputs, batch)

    def _finish(self, key: str, token: int, outputs: bytes, batch: JobBatch) -> bool:
        row = batch.rows.get(key)
        done = claim_rules.finished(row, owner=self._owner, token=token, outputs=outputs)
        if done is not None and done is not row:
            batch.put(key, done)
        return done is not None

    def _finish_with(
        self, key: str, token: int, outputs: bytes, writes: Sequence[Write], batch: JobBatch
    ) -> Written | sqlite3.Error:
        row = batch.rows.get(key)
        done = claim_rules.finished(row, owner=self._owner, token=token, outputs=outputs)
        if done is None or done is row:
            return "stale" if done is None else "written"
        written = _write(writes, batch)
        if written == "written":
            batch.put(key, done)
        return written

    def _remember_with(  # noqa: PLR0917 - the form of an action
        self, key: str, token: int, name: str, data: bytes, writes: Sequence[Write], batch: JobBatch
    ) -> Written | sqlite3.Error:
        if not steps.is_claimed(key, self._owner, token, batch):
            return "stale"
        written = _write(writes, batch)
        if written == "written":
            steps.remember(key, self._owner, token, name, data, batch)
        return written

    def _released(self, key: str, token: int, batch: JobBatch) -> bool:
        row = claim_rules.released(batch.rows.get(key), owner=self._owner, token=token)
        if row is not None:
            batch.put(key, row)
        return row is not None

    def _release(self, key: str, token: int, batch: JobBatch) -> None:
        self._forget(key, token)
        self._released(key, token, batch)

    def _forgotten(self, key: str, token: int, batch: JobBatch) -> None:
        self._forget(key, token)
        if claim_rules.released(batch.rows.get(key), owner=self._owner, token=token) is not None:
            batch.delete(key)

    def _purge(self, batch: JobBatch) -> int:
        return batch.table.purge(self._clock.now_ms(), self._clock.monotonic_s(), _PURGED_AT_ONCE)

    def _renew_when_due(self, table: Table) -> None:
        now_s = self._clock.monotonic_s()
        self._renewing_s = None
        if self._owner != claim_rules.NOBODY and self._lease.is_due(now_s):
            table.renew(self._owner, self._name, self._lease.length_s, self._clock.now_ms(), now_s)
            self._renewing_s = now_s

    def _committed(self, jobs: Sequence[InboxJob]) -> None:
        if self._renewing_s is not None:
            self._lease.renewed(self._renewing_s)
        for job in jobs:
            for ask in job.asks:
                if isinstance(ask.answer, Claimed):
                    self._running[ask.identity] = ask.answer.token

    # On the loop ------------------------------------------------------------------------------------------------------

    def _future(self) -> asyncio.Future[Any]:
        if not self._open:
            raise InboxError(_CLOSED)
        return self._writer.future()

    def _submit_soon(self, job: InboxJob) -> None:
        if self._open:
            self._writer.submit(job)
        elif job.on_answers is not None:
            job.fail(InboxError(_CLOSED))
            asyncio.get_running_loop().call_soon(job.on_answers, job.items())

    def _submit(
        self,
        action: Callable[[JobBatch], _T],
        key: str = "",
        session: WriterSession | None = None,
        *,
        begins: bool = False,
    ) -> asyncio.Future[_T]:
        future = self._future()
        self._writer.submit(InboxJob(future, action, key, session, begins))
        return future

    async def _run(self, action: Callable[[JobBatch], _T], key: str = "") -> _T:
        return await self._submit(action, key)

    def _settle(self, jobs: Sequence[InboxJob]) -> None:
        for job in jobs:
            if job.on_answers is not None:
                for end in job.ends:
                    if not isinstance(end.answer, Exception):
                        self._forget(end.identity, end.token)
                job.on_answers(job.items())
            elif job.future is not None:
                for item in job.items():
                    job.key = item.identity
                    job.value, job.error = (
                        (None, item.answer) if isinstance(item.answer, Exception) else (item.answer, None)
                    )
                self._answer(job, job.future)

    def _answer(self, job: InboxJob, future: asyncio.Future[Any]) -> None:
        if future.done():
            self._give_back(job.key, job.value)
        elif job.error is None:
            future.set_result(job.value)
        else:
            future.set_exception(job.error)

    def _give_back(self, key: str, value: Any) -> None:
        """Release a claim whose caller no longer waits for the answer."""
        if isinstance(value, Claimed):
            self._forget(key, value.token)
            with contextlib.suppress(InboxError):
                self._submit(partial(self._release, key, value.token), key).add_done_callback(_heard)

    def _forget(self, key: str, token: int) -> None:
        if self._running.get(key) == token:
            self._running.pop(key, None)

    async def _keep_alive(self) -> None:
        failing = False
        while True:
            await self._clock.sleep(self._lease.interval_s)
            try:
                # Every transaction renews the lease where that is due.
                await self._run(_nothing)
            except InboxError as error:
                if not failing:
                    _log.warning("inbox.lease_not_renewed", error=str(error))
                failing = True
            else:
                failing = False


def _write(writes: Sequence[Write], batch: JobBatch) -> Written | sqlite3.Error:
    try:
        return "written" if written_whole(writes, batch) else "moved"
    except sqlite3.Error as error:
        if is_sqlite_error(error):
            raise
        # Its own fault: the other jobs of the batch know nothing of it.
        return error


def _nothing(_: JobBatch) -> None:
    """Do nothing: the transaction itself renews the lease."""


def _heard(future: asyncio.Future[Any]) -> None:
    if not future.cancelled():
        future.exception()
