"""The one writer: what many callers ask for is one transaction with one fsync, and a handler's own transaction has the writer to itself.

Owns the order of jobs, what each is told after the commit, and the thread they run on; a database in memory needs none. Does not own what a job
does, which is given the `Batch` it runs in.
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

from bus.databases.sqlite import is_of_store, translated
from bus.errors import BusError, InboxError
from consumers.inbox.rules import Row
from consumers.inbox.sqlite.table import MEMORY, Table

__all__ = ["Batch", "Job", "Session", "Writer"]


class Batch:
    """What jobs of one transaction see and change; written together when all have run."""

    __slots__ = ("changed", "rows", "table")

    def __init__(self, table: Table, keys: Iterable[str]) -> None:
        self.table = table
        self.rows: dict[str, Row] = table.rows(keys)
        self.changed: dict[str, Row] = {}

    def put(self, key: str, row: Row) -> None:
        """*row* stands under *key* from now on, for the jobs that follow too."""
        self.rows[key] = self.changed[key] = row


class Session:
    """A handler's transaction: from the job that begins it, until it is over, the writer does nothing else."""

    __slots__ = ()


class Job:
    """One action: in a transaction with others, or, with a *session*, a step of that one. *keys* are the rows it looks at."""

    __slots__ = ("action", "begins", "future", "keys", "last", "session")

    def __init__(
        self,
        action: Callable[[Batch], Any],
        future: asyncio.Future[Any],
        keys: tuple[str, ...] = (),
        session: Session | None = None,
        *,
        begins: bool = False,
        last: bool = False,
    ) -> None:
        self.action = action
        self.future = future
        self.keys = keys
        self.session = session
        self.begins = begins
        self.last = last


Result: TypeAlias = tuple[Job, Any, BaseException | None]
Told: TypeAlias = Callable[[Sequence[Result]], object]


class Writer:
    """Runs jobs for one event loop.

    *opening* runs first in every transaction, *committed* right after its commit, both where the jobs run; *ended* is told the results, on
    the loop.
    """

    def __init__(self, table: Table, opening: Callable[[Table], object], committed: Told, ended: Told) -> None:
        self._table = table
        self._opening = opening
        self._committed = committed
        self._ended = ended
        self._session: Session | None = None
        self._held_up: deque[Job] = deque()
        self._handed: list[Job] = []
        self._queue: queue.SimpleQueue[list[Job] | None] = queue.SimpleQueue()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Belong to the running loop."""
        self._loop = asyncio.get_running_loop()
        if self._table.path != MEMORY:
            self._thread = threading.Thread(target=self._serve, name="sealbus-inbox", daemon=True)
            self._thread.start()

    def submit(self, job: Job) -> None:
        """Have *job* run; everything that is submitted in one turn of the loop is handed over together."""
        assert self._loop is not None  # noqa: S101 - started
        if not self._handed:
            self._loop.call_soon(self._hand_over)
        self._handed.append(job)

    async def stop(self, last: Callable[[Batch], object]) -> None:
        """Undo a session that is still open, finish what was submitted, with *last* at the end. Raises InboxError where that fails."""
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.submit(Job(last, future, last=True))
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
                ending = True
            self._report(self._run(jobs))
        self._end()

    def _report(self, results: list[Result]) -> None:
        # The loop may have been closed without `close`: nobody is left to tell.
        with contextlib.suppress(RuntimeError):
            assert self._loop is not None  # noqa: S101 - started
            self._loop.call_soon_threadsafe(self._ended, results)

    def _end(self) -> None:
        self._table.rollback()
        self._table.close()

    def _run(self, jobs: Sequence[Job]) -> list[Result]:
        results: list[Result] = []
        together: list[Job] = []
        waiting = deque(jobs)
        while waiting:
            job = waiting.popleft()
            if job.last and self._session is not None:
                self._table.rollback()
                self._session = None
                waiting.appendleft(job)
                self._let_go(waiting)
            elif self._session is not None and job.session is self._session:
                results.append(self._step(job))
                if not self._table.in_transaction:
                    self._session = None
                    self._let_go(waiting)
            elif job.session is not None and not job.begins:
                results.append((job, None, InboxError("the transaction has ended")))
            elif self._session is not None:
                self._held_up.append(job)
            elif job.begins:
                results += self._together(together)
                together = []
                results.append(self._begin(job))
            else:
                together.append(job)
        return results + self._together(together)

    def _let_go(self, waiting: deque[Job]) -> None:
        """Those that the session held up come first now."""
        waiting.extendleft(reversed(self._held_up))
        self._held_up.clear()

    def _together(self, jobs: Sequence[Job]) -> list[Result]:
        """One transaction for all *jobs*. What fails in one of them is its own affair, what fails around them is everybody's."""
        if not jobs:
            return []
        try:
            self._start()
            batch = Batch(self._table, {key: None for job in jobs for key in job.keys})
            results = [_result(job, batch) for job in jobs]
            self._table.write(batch.changed)
            self._commit(results)
        except (sqlite3.Error, BusError) as error:
            self._table.rollback()
            told = self._told(error)
            # A new error for each: one that is raised twice would carry two tracebacks.
            return [(job, None, type(told)(*told.args)) for job in jobs]
        except Exception as error:  # noqa: BLE001 - a value that the database cannot hold: whose it is, shows when each is alone
            self._table.rollback()
            return [result for job in jobs for result in self._together([job])] if len(jobs) > 1 else [(jobs[0], None, error)]
        return results

    def _begin(self, job: Job) -> Result:
        if job.future.cancelled():
            return job, None, None
        try:
            self._start()
        except Exception as error:  # noqa: BLE001 - handed to whoever awaits the job
            self._table.rollback()
            return job, None, self._told(error)
        self._session = job.session
        return job, None, None

    def _step(self, job: Job) -> Result:
        """One step of the open session, which is over when the step has ended its transaction, or when SQLite has undone it."""
        value: Any = None
        failure: BaseException | None = None
        try:
            batch = Batch(self._table, job.keys)
            value = job.action(batch)
            if batch.changed:
                self._table.write(batch.changed)
                self._opening(self._table)
                self._commit([])
        except (sqlite3.Error, BusError) as error:
            failure = self._told(error)
            if isinstance(failure, InboxError):
                self._table.rollback()
        except Exception as error:  # noqa: BLE001 - a value that cannot be bound; handed to whoever gave it
            failure = error
        return job, value, failure

    def _start(self) -> None:
        self._table.begin()
        self._opening(self._table)

    def _commit(self, results: Sequence[Result]) -> None:
        try:
            self._table.commit()
            self._committed(results)
        except sqlite3.Error:
            # Whether it is in the file is unknown; nothing of it may linger in the connection.
            self._table.rollback()
            self._table.disconnect()
            raise

    def _told(self, error: Exception) -> Exception:
        if isinstance(error, sqlite3.Error) and (self._session is None or is_of_store(error)):
            return translated(error, self._table.path)
        return error


def _result(job: Job, batch: Batch) -> Result:
    try:
        return job, job.action(batch), None
    except sqlite3.Error:
        raise
    except Exception as error:  # noqa: BLE001 - handed to whoever awaits the job
        return job, None, error
