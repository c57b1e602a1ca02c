"""The single writer: many jobs, one transaction, one fsync.

Owns the writer thread, group commit and each job's result, and the same without a thread for a log in memory. The
submitter decides what a job writes and its deadline; it can withdraw the job until the writer claims it.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import sqlite3
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol, TypeAlias, TypeVar

from bus.errors import BusError, ClosedError, LogFullError, UnreachableError
from bus.transports.sqlite.errors import is_certain, log_error_of
from bus.transports.sqlite.write_transaction import LogFile

__all__ = ["Committed", "InlineWriter", "WriteJob", "ThreadWriter", "LogWriter"]

_T = TypeVar("_T")
WriteAction: TypeAlias = Callable[[LogFile], Any]
Committed: TypeAlias = Callable[[Iterable[int]], object]
"""Called on the event loop after each commit, with the wake-up keys it touched."""


class WriteJob:
    """An action waiting for its transaction."""

    __slots__ = ("_unclaimed", "action", "future", "uncertain")

    def __init__(self, action: WriteAction, future: asyncio.Future[Any], uncertain: type[BusError]) -> None:
        self.action = action
        self.future = future
        self.uncertain = uncertain
        self._unclaimed = [None]

    def claim(self) -> bool:
        """Return True to the first caller only: the writer, or a deadline on the loop. A list's pop is atomic between
        threads.
        """
        try:
            self._unclaimed.pop()
        except IndexError:
            return False
        return True


WriteResult: TypeAlias = tuple[WriteJob, Any, BaseException | None]


class LogWriter(Protocol):
    """Accepts the writes of a log."""

    def submit(self, action: WriteAction, *, uncertain: type[BusError] = UnreachableError) -> WriteJob:
        """Queue *action*; *uncertain* is the error class for a COMMIT with unknown outcome."""

    async def run(self, action: Callable[[LogFile], _T]) -> _T:
        """Queue *action* and wait until it is durable."""

    async def close(self) -> None:
        """Finish the submitted jobs, then close the connection."""


def _transacted(log: LogFile, jobs: Sequence[WriteJob]) -> list[WriteResult]:
    """Run *jobs* in the open transaction and commit it; if that fails, run each alone."""
    try:
        values = [job.action(log) for job in jobs]
        log.flush()
    except Exception as error:  # noqa: BLE001 - passed to the caller that awaits the job
        log.rollback()
        return _each_alone(log, jobs) if len(jobs) > 1 else [(jobs[0], None, _translated(log, error))]
    try:
        log.commit()
    except sqlite3.Error as error:
        log.rollback()
        if is_certain(error):
            return _each_alone(log, jobs) if len(jobs) > 1 else [(jobs[0], None, _translated(log, error))]
        log.reopen()
        return [
            (job, None, job.uncertain(f"the outcome of a commit is unknown: {_translated(log, error)}")) for job in jobs
        ]
    return [(job, value, None) for job, value in zip(jobs, values, strict=True)]


def _each_alone(log: LogFile, jobs: Sequence[WriteJob]) -> list[WriteResult]:
    return [result for job in jobs for result in _alone(log, job)]


def _alone(log: LogFile, job: WriteJob) -> list[WriteResult]:
    return _turn(log, lambda: [job])


def _turn(log: LogFile, claimed: Callable[[], Sequence[WriteJob]]) -> list[WriteResult]:
    """Run one transaction.

    Jobs are claimed once the write lock is held, so that a deadline can withdraw jobs that only wait for the lock.
    """
    try:
        log.begin()
    # Passed to the callers that await the jobs: raised here it would end the writer thread.
    except Exception as error:  # noqa: BLE001
        log.rollback()
        return [(job, None, _translated(log, error)) for job in claimed()]
    jobs = claimed()
    if jobs:
        return _transacted(log, jobs)
    log.rollback()
    return []


def _translated(log: LogFile, error: Exception) -> Exception:
    if not isinstance(error, sqlite3.Error | UnicodeDecodeError):
        return error
    shown_error = log_error_of(error, log.path)
    log.was_full = log.was_full or isinstance(shown_error, LogFullError)
    return shown_error


def _settle(results: Iterable[WriteResult]) -> None:
    for job, value, error in results:
        if job.future.done():
            continue
        if error is None:
            job.future.set_result(value)
        else:
            job.future.set_exception(error)


class InlineWriter:
    """Writes at once, on the event loop: for a log in memory."""

    def __init__(self, log: LogFile, committed: Committed) -> None:
        self._log = log
        self._committed = committed

    def submit(self, action: WriteAction, *, uncertain: type[BusError] = UnreachableError) -> WriteJob:
        job = WriteJob(action, asyncio.get_running_loop().create_future(), uncertain)
        job.claim()
        _settle(_alone(self._log, job))
        if touched := self._log.take_announced():
            self._committed(touched)
        return job

    async def run(self, action: Callable[[LogFile], _T]) -> _T:
        result: _T = await self.submit(action).future
        # A caller that only writes must not starve the other tasks.
        await asyncio.sleep(0)
        return result

    async def close(self) -> None:
        self._log.close()


class ThreadWriter:
    """Writes on its own thread, all queued jobs in one transaction."""

    def __init__(
        self, log: LogFile, committed: Committed, announce: Callable[[Iterable[int], Sequence[int]], object]
    ) -> None:
        self._log = log
        self._committed = committed
        self._announce = announce
        self._queue: queue.SimpleQueue[WriteJob | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping = False

    def submit(self, action: WriteAction, *, uncertain: type[BusError] = UnreachableError) -> WriteJob:
        if self._stopping:
            raise ClosedError("the transport is closed")
        loop = self._started()
        job = WriteJob(action, loop.create_future(), uncertain)
        self._queue.put(job)
        return job

    async def run(self, action: Callable[[LogFile], _T]) -> _T:
        result: _T = await self.submit(action).future
        return result

    async def close(self) -> None:
        if self._thread is None:
            self._log.close()
        elif not self._stopping:
            finished = self.submit(lambda _: None).future
            self._stopping = True
            self._queue.put(None)
            # Only its end matters: a fault that keeps transactions from beginning fails this one too.
            with contextlib.suppress(Exception):
                await finished
            self._thread.join()

    def _started(self) -> asyncio.AbstractEventLoop:
        loop = asyncio.get_running_loop()
        if self._thread is None:
            self._loop = loop
            self._thread = threading.Thread(target=self._serve, name="sealbus-writer", daemon=True)
            self._thread.start()
        elif loop is not self._loop:
            raise RuntimeError(
                "a transport belongs to the event loop that used it first; open another one for this loop"
            )
        return loop

    def _serve(self) -> None:
        ending = False
        while not ending and (first := self._queue.get()) is not None:
            jobs = [first]

            def claimed(jobs: list[WriteJob] = jobs) -> list[WriteJob]:
                nonlocal ending
                ending = self._drain(jobs)
                return [job for job in jobs if job.claim()]

            self._report(_turn(self._log, claimed))
        self._log.close()

    def _drain(self, jobs: list[WriteJob]) -> bool:
        with contextlib.suppress(queue.Empty):
            while (job := self._queue.get_nowait()) is not None:
                jobs.append(job)
            return True
        return False

    def _report(self, results: list[WriteResult]) -> None:
        touched = self._log.take_announced()
        # The loop may have been closed without `close`: then no caller is left.
        with contextlib.suppress(RuntimeError):
            assert self._loop is not None  # noqa: S101 - set before the thread starts
            self._loop.call_soon_threadsafe(self._deliver, results, touched)
        if touched:
            self._announce(touched, self._log.ports)

    def _deliver(self, results: list[WriteResult], touched: set[int]) -> None:
        _settle(results)
        if touched:
            self._committed(touched)
