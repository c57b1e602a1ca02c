"""InboxWriter: one writer that commits the requests of many callers in one transaction.

A handler's own transaction has the writer to itself.

Owns the order of jobs, their answers after the commit, which of them wait for the file to be synchronised, and the
writer's thread (a database in memory has none). The actions are in `inbox`; they run in a `JobBatch`.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import sqlite3
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias

import msgspec

from bus.databases.sqlite_errors import is_sqlite_error, sqlite_error_of
from bus.errors import BusError, InboxError
from consumers.delivery.inbox.base import Ask, End
from consumers.delivery.inbox.claim_rules import ClaimRow
from consumers.delivery.inbox.sqlite.table import MEMORY, Table

__all__ = ["JobBatch", "InboxJob", "WriterSession", "InboxWriter"]


class JobBatch:
    """The rows that the jobs of one transaction read and change; they are written together after all jobs have run."""

    __slots__ = ("changed", "rows", "table")

    def __init__(self, table: Table, keys: Iterable[str]) -> None:
        self.table = table
        self.rows: dict[str, ClaimRow] = table.rows(keys)
        self.changed: dict[str, ClaimRow] = {}

    def put(self, key: str, row: ClaimRow) -> None:
        """Set *row* under *key*, also for the jobs that follow."""
        self.rows[key] = self.changed[key] = row

    def delete(self, key: str) -> None:
        """Delete the row under *key*, also for the jobs that follow."""
        self.rows.pop(key, None)
        self.changed.pop(key, None)
        self.table.delete(key)


class WriterSession:
    """A handler's transaction: from the job that begins it until its end, the writer does nothing else."""

    __slots__ = ()


class InboxJob(msgspec.Struct, eq=False):
    """One action: in a transaction with others, or, with a *session*, a step of that session.

    *key* is the row it looks at. Without an *action* it holds claims or results, which carry their answers and which
    the writer's `quick` answers many at once. Without a *future*, *on_answers* is called with them. *durable*: it is
    answered once its work survives a crash of the machine; without an action, claims and results it only waits for
    that.
    """

    future: asyncio.Future[Any] | None = None
    action: Callable[[JobBatch], Any] | None = None
    key: str = ""
    session: WriterSession | None = None
    begins: bool = False
    last: bool = False
    durable: bool = False
    asks: Sequence[Ask] = ()
    ends: Sequence[End] = ()
    on_answers: Callable[[Any], object] | None = None
    value: Any = None
    error: BaseException | None = None

    def items(self) -> Sequence[Ask | End]:
        """Return its claims or results."""
        return self.asks or self.ends

    def fail(self, error: Exception) -> None:
        """Fail the job with *error*.

        Each of several claims or results gets an error of its own: an error raised twice would carry two tracebacks.
        """
        self.value, self.error = None, error
        items = self.items()
        for item in items:
            item.answer = error if len(items) == 1 else type(error)(*error.args)

    def apart(self) -> list[InboxJob]:
        """Return one job per claim or result, as if nothing had been tried."""
        self.value = self.error = None
        for item in self.items():
            item.answer = None
        return (
            [self]
            if len(self.items()) <= 1
            else [*(InboxJob(asks=(ask,)) for ask in self.asks), *(InboxJob(ends=(end,)) for end in self.ends)]
        )


OnJobs: TypeAlias = Callable[[Sequence[InboxJob]], object]


class InboxWriter:
    """Runs jobs for one event loop.

    *opening* runs first in every transaction. *quick* then answers the jobs that it can answer together, and returns
    the others with an action. *committed* runs right after the commit, on the thread of the jobs. *ended* receives the
    jobs on the loop.
    """

    def __init__(
        self,
        table: Table,
        *,
        opening: Callable[[Table], object],
        quick: Callable[[Table, Sequence[InboxJob]], Sequence[InboxJob]],
        committed: OnJobs,
        ended: OnJobs,
    ) -> None:
        self._table = table
        self._opening = opening
        self._quick = quick
        self._committed = committed
        self._ended = ended
        self._session: WriterSession | None = None
        self._held_up: deque[InboxJob] = deque()
        self._handed: list[InboxJob] = []
        self._queue: queue.SimpleQueue[list[InboxJob] | None] = queue.SimpleQueue()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Attach to the running loop."""
        self._loop = asyncio.get_running_loop()
        if self._table.path != MEMORY:
            self._thread = threading.Thread(target=self._serve, name="sealbus-inbox", daemon=True)
            self._thread.start()

    @property
    def is_loose(self) -> bool:
        """Whether something was committed and not yet synchronised."""
        return self._table.is_loose

    def future(self) -> asyncio.Future[Any]:
        """Return a new future for a job."""
        assert self._loop is not None  # noqa: S101 - started
        return self._loop.create_future()

    def submit(self, job: InboxJob) -> None:
        """Queue *job*; all jobs of one turn of the loop are handed over together."""
        assert self._loop is not None  # noqa: S101 - started
        if not self._handed:
            self._loop.call_soon(self._hand_over)
        self._handed.append(job)

    async def stop(self, last: Callable[[JobBatch], object]) -> None:
        """Undo an open session, and finish the submitted jobs, with *last* at the end.

        Raises InboxError where that fails.
        """
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.submit(InboxJob(future, last, last=True))
        await asyncio.wait([future])
        if self._thread is not None:
            self._queue.put(None)
            await asyncio.to_thread(self._thread.join)
        else:
            self._end()
        await future

    def _hand_over(self) -> None:
        jobs, self._handed = self._handed, []
        if self._thread is not None:
            self._queue.put(jobs)
        else:
            self._ended(self._run(jobs))

    def _serve(self) -> None:
        ending = False
        while not ending and (jobs := self._queue.get()) is not None:
            with contextlib.suppress(queue.Empty):
                while (more := self._queue.get_nowait()) is not None:
                    jobs += more
                    more.clear()
                ending = True
            # First: it needs no lock, which another program may hold for seconds.
            self._report(self._synchronised(jobs))
            answered = self._run(jobs)
            # Each job holds a whole delivery. Freeing it is cheaper on the loop, whose CPU cache has it.
            jobs.clear()
            self._report(answered)
        self._end()

    def _report(self, jobs: list[InboxJob]) -> None:
        if not jobs:
            return
        # The loop may have been closed without `close`: no caller is left.
        with contextlib.suppress(RuntimeError):
            assert self._loop is not None  # noqa: S101 - started
            self._loop.call_soon_threadsafe(self._tell, jobs)

    def _tell(self, jobs: list[InboxJob]) -> None:
        self._ended(jobs)
        jobs.clear()

    def _end(self) -> None:
        self._table.rollback()
        self._table.close()

    def _synchronised(self, jobs: list[InboxJob]) -> list[InboxJob]:
        """Remove from *jobs* those that only wait for a sync, answer and return them.

        Their data were committed before.
        """
        found = [job for job in jobs if job.durable and job.action is None and not job.items()]
        if found:
            jobs[:] = [job for job in jobs if job not in found]
            self._make_durable(found)
        return found

    def _make_durable(self, jobs: Sequence[InboxJob]) -> None:
        """Answer *jobs*, which are committed, once they survive a crash of the machine too."""
        try:
            self._table.sync()
        except BusError as error:
            for job in jobs:
                job.fail(type(error)(*error.args))

    def _run(self, jobs: Sequence[InboxJob]) -> list[InboxJob]:
        """Run *jobs*; return the jobs that have an answer now, which may be earlier ones that had waited."""
        answered: list[InboxJob] = []
        together: list[InboxJob] = []
        waiting = deque(jobs)
        while waiting:
            job = waiting.popleft()
            if job.last and self._session is not None:
                self._table.rollback()
                self._session = None
                waiting.appendleft(job)
                self._let_go(waiting)
            elif self._session is not None and job.session is self._session:
                self._step(job)
                answered.append(job)
                if not self._table.in_transaction:
                    self._session = None
                    self._let_go(waiting)
            elif job.session is not None and not job.begins:
                job.error = InboxError("the transaction has ended")
                answered.append(job)
            elif self._session is not None:
                self._held_up.append(job)
            elif job.begins:
                self._together(together)
                answered += together
                together = []
                self._begin(job)
                answered.append(job)
            else:
                together.append(job)
        self._together(together)
        return answered + together

    def _let_go(self, waiting: deque[InboxJob]) -> None:
        """Put the jobs that waited for the session first."""
        waiting.extendleft(reversed(self._held_up))
        self._held_up.clear()

    def _together(self, jobs: Sequence[InboxJob]) -> None:
        """Run all *jobs* in one transaction.

        A failure inside one job fails that job, a failure of the transaction fails all.
        """
        if not jobs:
            return
        try:
            self._start()
            if left := self._quick(self._table, jobs):
                batch = JobBatch(self._table, {job.key: None for job in left if job.key})
                for job in left:
                    _carry_out(job, batch)
                self._table.write(batch.changed)
            self._commit(jobs)
            if durable := [job for job in jobs if job.durable]:
                self._make_durable(durable)
        except (sqlite3.Error, UnicodeDecodeError, BusError) as error:
            self._table.rollback()
            on_answers = self._translated(error)
            for job in jobs:
                job.fail(type(on_answers)(*on_answers.args))
        # A value that the database cannot hold: running each job alone shows whose it is.
        except Exception as error:  # noqa: BLE001
            self._table.rollback()
            alone = [each for job in jobs for each in job.apart()]
            if len(alone) == 1:
                jobs[0].fail(error)
                return
            for job in alone:
                self._together([job])

    def _begin(self, job: InboxJob) -> None:
        if job.future is not None and job.future.cancelled():
            return
        try:
            self._start()
        except Exception as error:  # noqa: BLE001 - handed to the caller that awaits the job
            self._table.rollback()
            job.error = self._translated(error)
            return
        self._session = job.session

    def _step(self, job: InboxJob) -> None:
        """Run one step of the open session.

        The session is over when the step has ended its transaction, or when SQLite has undone it.
        """
        assert job.action is not None  # noqa: S101 - only a transaction of many has others
        try:
            batch = JobBatch(self._table, (job.key,) if job.key else ())
            job.value = job.action(batch)
            if batch.changed:
                self._table.write(batch.changed)
                self._opening(self._table)
                self._commit(())
                self._table.sync()
        except (sqlite3.Error, UnicodeDecodeError, BusError) as error:
            job.error = self._translated(error)
            if isinstance(job.error, InboxError):
                self._table.rollback()
        except Exception as error:  # noqa: BLE001 - a value that cannot be bound; handed to its caller
            job.error = error

    def _start(self) -> None:
        self._table.begin()
        self._opening(self._table)

    def _commit(self, jobs: Sequence[InboxJob]) -> None:
        try:
            self._table.commit()
            self._committed(jobs)
        except sqlite3.Error:
            # Whether it is in the file is unknown; nothing of it may stay in the connection.
            self._table.rollback()
            self._table.disconnect()
            raise

    def _translated(self, error: Exception) -> Exception:
        if getattr(error, "sqlite_errorcode", 0) == sqlite3.SQLITE_FULL:
            self._table.was_full = True
        if isinstance(error, UnicodeDecodeError) or (
            isinstance(error, sqlite3.Error) and (self._session is None or is_sqlite_error(error))
        ):
            return sqlite_error_of(error, self._table.path)
        return error


def _carry_out(job: InboxJob, batch: JobBatch) -> None:
    assert job.action is not None  # noqa: S101 - `quick` gave it one
    try:
        job.value = job.action(batch)
    except sqlite3.Error:
        raise
    except Exception as error:  # noqa: BLE001 - handed to the caller that awaits the job
        job.fail(error)
