"""The embedded log as a `Transport`.

Owns the lifetime of threads and tasks, and the deadline of an append. All SQL statements are in the sibling modules.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Iterable, Sequence
from functools import partial

from bus.clock import Clock
from bus.databases.sqlite_file import fixed
from bus.errors import AppendUnknownError, BusError, ClosedError, DeadlineError, RecordTooLargeError, TransportError
from bus.transports.base import (
    Admin,
    AppendOutcome,
    Features,
    Listener,
    NewRecord,
    OnOutcomes,
    Record,
    check_group_name,
    check_topic_name,
)
from bus.transports.sqlite.admin import SqliteAdmin
from bus.transports.sqlite.append import AppendDraft, append, drafted
from bus.transports.sqlite.fetch import PartitionRows, Want, fetch, locate
from bus.transports.sqlite.group_commit import InlineWriter, LogWriter, ThreadWriter, WriteJob
from bus.transports.sqlite.heartbeat import Heartbeat
from bus.transports.sqlite.membership import Member, join, unlisten
from bus.transports.sqlite.read_connection import InlineReader, ReadConnection, ThreadReader
from bus.transports.sqlite.retention import Sweeper
from bus.transports.sqlite.schema import MEMORY
from bus.transports.sqlite.subscription import SqliteSubscription
from bus.transports.sqlite.wakeups import Signal
from bus.transports.sqlite.write_transaction import LogFile

__all__ = ["SqliteTransport"]

_MAX_RECORD_BYTES = 64 * 1024 * 1024


class SqliteTransport:
    """A log in one file, or in memory. Belongs to the event loop that uses it first."""

    features: Features
    admin: Admin

    def __init__(
        self,
        path: str,
        *,
        clock: Clock,
        heartbeat_s: float = 1.0,
        session_timeout_s: float = 5.0,
        retention_interval_s: float = 60.0,
        max_record_bytes: int = _MAX_RECORD_BYTES,
        shared_files: bool = False,
    ) -> None:
        in_memory, path = path == MEMORY, fixed(path)
        self.features = Features(
            name="memory" if in_memory else "sqlite",
            durable=not in_memory,
            between_processes=not in_memory,
            max_record_bytes=max_record_bytes,
            creates_topics_at_start=True,
            own_clock=True,
        )
        self._clock = clock
        self._session_timeout_s = session_timeout_s
        log = LogFile(path, shared_files=shared_files)
        self._writer: LogWriter = (
            InlineWriter(log, self._note_commit) if in_memory else ThreadWriter(log, self._note_commit, self._announce)
        )
        try:
            self._reader: ReadConnection = (
                InlineReader(log) if in_memory else ThreadReader(path, shared_files=shared_files)
            )
        except BaseException:
            log.close()
            raise
        self._heart = Heartbeat(clock, self._writer, heartbeat_s)
        self._sweeper = Sweeper(clock, self._writer, self._reader, retention_interval_s)
        self.admin = SqliteAdmin(clock, self._writer, self._reader, self._ready)
        self._locations: dict[tuple[str, int], PartitionRows] = {}
        self._subscriptions: list[SqliteSubscription] = []
        self._turns = itertools.count()
        self._closed: asyncio.Task[None] | None = None

    async def append(
        self,
        records: Sequence[NewRecord],
        *,
        timeout_s: float,
        on_outcomes: OnOutcomes | None = None,  # noqa: ARG002 - one transaction: all outcomes come at once
    ) -> Sequence[AppendOutcome]:
        self._ready()
        drafts = [drafted(record, self.features.max_record_bytes) for record in records]
        if timeout_s <= 0:
            return _failed(drafts, DeadlineError("no time was left to append"))
        job = self._writer.submit(
            lambda log: append(log, drafts, self._clock.now_ms(), self._turns), uncertain=AppendUnknownError
        )
        timer = self._clock.call_later(timeout_s, partial(_expire, job))
        try:
            outcomes: Sequence[AppendOutcome] = await self._finish(job)
        except (TransportError, AppendUnknownError) as error:
            return _failed(drafts, error)
        finally:
            timer.cancel()
            job.claim()
        return outcomes

    async def refusals(self, records: Sequence[NewRecord]) -> Sequence[RecordTooLargeError | None]:
        drafts = [drafted(record, self.features.max_record_bytes) for record in records]
        return [draft if isinstance(draft, RecordTooLargeError) else None for draft in drafts]

    async def subscribe(
        self, group: str, topics: Sequence[str], listener: Listener, *, member: str
    ) -> SqliteSubscription:
        self._ready()
        check_group_name(group)
        for topic in topics:
            check_topic_name(topic)
        await self._listen()
        joining = Member(0, group, member, tuple(dict.fromkeys(topics)), self._session_timeout_s)
        joined_s = self._clock.monotonic_s()
        joined, topic_ids = await self._writer.run(partial(_joined, member=joining, now_s=joined_s))
        self._ready()
        subscription = SqliteSubscription(
            joined,
            topic_ids,
            listener,
            joined_s=joined_s,
            clock=self._clock,
            writer=self._writer,
            reader=self._reader,
            heart=self._heart,
        )
        self._subscriptions = [*(known for known in self._subscriptions if not known.closed), subscription]
        return subscription

    async def read(
        self, topic: str, partition: int, offset: int, *, max_records: int, max_bytes: int, wait_s: float = 0.0
    ) -> Sequence[Record]:
        self._ready()
        location = await self._location(topic, partition)
        want = Want(topic, partition, location.part, offset)
        query = partial(fetch, wants=(want,), max_records=max_records, max_bytes=max_bytes, strict=False)
        if wait_s <= 0:
            return [record for chunk in await self._reader.run(query) for record in chunk.records]
        await self._listen()
        # If closed in the meantime, this would start the heartbeat again, and nothing would stop it.
        self._ready()
        deadline_s = self._clock.monotonic_s() + wait_s
        signal = Signal()
        self._heart.hub.add(signal, (location.topic_id,))
        self._heart.start()
        try:
            while True:
                self._ready()
                signal.clear()
                records = [record for chunk in await self._reader.run(query) for record in chunk.records]
                if records or not await signal.wait(self._clock, deadline_s - self._clock.monotonic_s()):
                    return records
        finally:
            self._heart.hub.discard(signal)

    async def close(self) -> None:
        if self._closed is None:
            # The shutdown is a task of its own: it must go on when the caller is cancelled, as a second call could not
            # finish it.
            self._closed = asyncio.get_running_loop().create_task(self._shut())
        await asyncio.shield(self._closed)

    async def _shut(self) -> None:
        port = self._heart.hub.port
        self._heart.hub.wake_all()
        await self._sweeper.stop()
        await self._heart.stop()
        for subscription in self._subscriptions:
            # The other members expire a member that cannot leave now.
            with contextlib.suppress(BusError):
                await subscription.close()
        if port is not None:
            with contextlib.suppress(BusError):
                await self._writer.run(partial(unlisten, port=port))
        await self._writer.close()
        await self._reader.close()
        await self._heart.hub.close()

    def _ready(self) -> None:
        if self._closed is not None:
            raise ClosedError("the transport is closed")
        self._sweeper.start()

    async def _listen(self) -> None:
        if self.features.between_processes:
            await self._heart.hub.open()

    async def _location(self, topic: str, partition: int) -> PartitionRows:
        if (known := self._locations.get((topic, partition))) is None:
            known = self._locations[topic, partition] = await self._reader.run(
                partial(locate, topic=topic, partition=partition)
            )
        return known

    async def _finish(self, job: WriteJob) -> Sequence[AppendOutcome]:
        outcomes: Sequence[AppendOutcome] = await job.future
        if not self.features.between_processes:
            # The record was written without a wait: let other tasks run.
            await asyncio.sleep(0)
        return outcomes

    def _note_commit(self, touched: Iterable[int]) -> None:
        self._heart.hub.wake(touched)

    def _announce(self, touched: Iterable[int], ports: Sequence[int]) -> None:
        self._heart.hub.announce(touched, ports)


def _joined(log: LogFile, member: Member, now_s: float) -> tuple[Member, tuple[int, ...]]:
    joined = Member(join(log, member, now_s), member.group, member.name, member.topics, member.timeout_s)
    return joined, tuple(log.topics[name].id for name in member.topics)


def _expire(job: WriteJob) -> None:
    """Withdraw an append at its deadline, unless the writer has claimed it."""
    if job.future.done():
        return
    if job.claim():
        job.future.set_exception(
            DeadlineError("the append was still waiting for its turn when its time was up; nothing was written")
        )
    else:
        job.future.set_exception(AppendUnknownError("the append was being written when its time was up"))


def _failed(
    drafts: Sequence[AppendDraft | RecordTooLargeError], error: TransportError | AppendUnknownError
) -> list[AppendOutcome]:
    # A new error for each record: an error raised twice would carry two tracebacks.
    return [type(error)(*error.args) if isinstance(draft, AppendDraft) else draft for draft in drafts]
