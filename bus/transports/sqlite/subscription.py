"""One member of a group, on the embedded log.

Owns positions, pauses, and the listener's callbacks. `membership` owns leases, `heartbeat` the heartbeats, `fetch` the
reading of records.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import chain

from bus.clock import Clock
from bus.errors import ClosedError, FencedError, OffsetOutOfRangeError
from bus.transports.base import Assignment, Listener, Record
from bus.transports.sqlite.fetch import Chunk, Want, fetch
from bus.transports.sqlite.group_commit import LogWriter
from bus.transports.sqlite.heartbeat import Heartbeat
from bus.transports.sqlite.membership import HeartbeatResult, Holding, Member, TakenLease, commit, leave_group, release
from bus.transports.sqlite.read_connection import ReadConnection
from bus.transports.sqlite.wakeups import Signal

__all__ = ["SqliteSubscription"]


class _Held:
    """An assigned partition and its read position."""

    __slots__ = ("assignment", "leaving", "part", "paused", "position", "version")

    def __init__(self, taken: TakenLease) -> None:
        self.assignment = taken.assignment
        self.part = taken.part
        self.position = taken.committed
        self.paused = False
        self.leaving = False
        self.version = 0

    @property
    def holding(self) -> Holding:
        return self.part, self.assignment.epoch

    def want(self) -> Want:
        return Want(self.assignment.topic, self.assignment.partition, self.part, self.position)


class SqliteSubscription:
    """A member that has joined; the heartbeat brings its first assignments."""

    def __init__(
        self,
        member: Member,
        topic_ids: Iterable[int],
        listener: Listener,
        *,
        joined_s: float,
        clock: Clock,
        writer: LogWriter,
        reader: ReadConnection,
        heart: Heartbeat,
    ) -> None:
        self._member = member
        self._listener = listener
        self._clock = clock
        self._writer = writer
        self._reader = reader
        self._heart = heart
        self._renewed_s = joined_s
        self._owned: dict[Assignment, _Held] = {}
        self._turn = 0
        self._signal = Signal()
        self._fault: Exception | None = None
        self._fenced = False
        self._closed = False
        self._leaving: set[asyncio.Task[None]] = set()
        heart.hub.add(self._signal, tuple(topic_ids))
        heart.add(self)

    async def poll(self, *, timeout_s: float, max_records: int, max_bytes: int) -> Sequence[Record]:
        deadline_s = self._clock.monotonic_s() + timeout_s
        while True:
            self._signal.clear()
            self._check()
            records = await self._fetch(max_records, max_bytes) if max_records > 0 and not self.in_doubt() else ()
            if records:
                return records
            if not await self._signal.wait(self._clock, deadline_s - self._clock.monotonic_s()):
                self._check()
                return ()

    async def commit(self, offsets: Mapping[Assignment, int]) -> Sequence[Assignment]:
        # Allowed after a silence too: the statement checks owner and epoch of each lease.
        self._check_open()
        owned = {self._owned[assignment].holding: assignment for assignment in offsets if assignment in self._owned}
        refused = [assignment for assignment in offsets if assignment not in self._owned]
        if owned:
            wanted = {holding: offsets[assignment] for holding, assignment in owned.items()}
            fenced = await self._writer.run(
                partial(commit, group=self._member.group, member_id=self._member.id, offsets=wanted)
            )
            refused += [owned[holding] for holding in fenced]
        return refused

    def pause(self, assignments: Iterable[Assignment]) -> None:
        for owned in self._present(assignments):
            owned.paused = True
            owned.version += 1

    def resume(self, assignments: Iterable[Assignment]) -> None:
        for owned in self._present(assignments):
            owned.paused = False
        self._signal.set()

    def seek(self, assignment: Assignment, offset: int) -> None:
        for owned in self._present((assignment,)):
            owned.position = offset
            owned.version += 1
        self._signal.set()

    @property
    def closed(self) -> bool:
        return self._closed

    def assignments(self) -> Sequence[Assignment]:
        return tuple(self._owned)

    def in_doubt(self) -> bool:
        # In doubt until the next heartbeat tells what is still held. Partitions that no other member took stay here.
        # Otherwise a handler that always blocks too long would run again and again and never be committed.
        if self._is_silent():
            self._heart.beat_now()
            return True
        return False

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._heart.discard(self)
        self._heart.hub.discard(self._signal)
        self._signal.set()
        await self._stop_leaving()
        self._owned.clear()
        if not self._fenced:
            await self._writer.run(partial(leave_group, member_id=self._member.id))

    # Callbacks of the heartbeat.

    def member(self) -> Member:
        owned = frozenset(owned.holding for owned in self._owned.values())
        return Member(
            self._member.id, self._member.group, self._member.name, self._member.topics, self._member.timeout_s, owned
        )

    def apply(self, pulse: HeartbeatResult) -> None:
        self._renewed_s = max(self._renewed_s, pulse.renewed_s)
        self._lose([owned for owned in self._owned.values() if owned.holding in pulse.lost])
        if pulse.id is None:
            self._fenced = True
            self._heart.discard(self)
        else:
            self._member = Member(
                pulse.id, self._member.group, self._member.name, self._member.topics, self._member.timeout_s
            )
        self._gain([_Held(taken) for taken in pulse.taken])
        self._surrender(
            [owned for owned in self._owned.values() if owned.holding in pulse.surrendered and not owned.leaving]
        )
        self._signal.set()

    def fail(self, error: Exception) -> None:
        self._fault = error
        if self._is_silent():
            # Other members may hold these partitions, and this one cannot find out.
            self._lose(list(self._owned.values()))
        self._signal.set()

    # Gaining and losing partitions.

    def _gain(self, gained: Sequence[_Held]) -> None:
        if gained:
            self._owned |= {owned.assignment: owned for owned in gained}
            self._tell(self._listener.assigned, [owned.assignment for owned in gained])

    def _lose(self, lost: Sequence[_Held]) -> None:
        for owned in lost:
            del self._owned[owned.assignment]
            owned.version += 1
        if lost:
            self._tell(self._listener.lost, [owned.assignment for owned in lost])

    def _tell(self, notify: Callable[[Sequence[Assignment]], None], assignments: Sequence[Assignment]) -> None:
        try:
            notify(assignments)
        except Exception as error:  # noqa: BLE001 - the next poll raises it
            self.fail(error)

    def _surrender(self, leaving: Sequence[_Held]) -> None:
        for owned in leaving:
            owned.leaving = True
            owned.version += 1
        if leaving:
            task = asyncio.get_running_loop().create_task(self._drain(leaving), name="sealbus-revoke")
            self._leaving.add(task)
            task.add_done_callback(self._leaving.discard)

    async def _drain(self, leaving: Sequence[_Held]) -> None:
        try:
            await self._listener.revoked([owned.assignment for owned in leaving])
        # The next poll raises it; uncommitted records are delivered again elsewhere.
        except Exception as error:  # noqa: BLE001
            self.fail(error)
        holdings = [owned.holding for owned in leaving]
        try:
            await self._writer.run(
                partial(release, group=self._member.group, member_id=self._member.id, holdings=holdings)
            )
        # The next poll raises it; the next heartbeat frees the leases, or takes them again.
        except Exception as error:  # noqa: BLE001
            self.fail(error)
        finally:
            # Freed or not, the listener has released these partitions and would accept no record of them.
            for owned in leaving:
                self._owned.pop(owned.assignment, None)

    async def _stop_leaving(self) -> None:
        for task in list(self._leaving):
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    def _present(self, assignments: Iterable[Assignment]) -> list[_Held]:
        return [self._owned[assignment] for assignment in assignments if assignment in self._owned]

    # Reading.

    async def _fetch(self, max_records: int, max_bytes: int) -> list[Record]:
        ready = [owned for owned in self._owned.values() if not owned.paused and not owned.leaving]
        if not ready:
            return []
        self._turn += 1
        first = self._turn % len(ready)
        plan = [(owned, owned.version) for owned in ready[first:] + ready[:first]]
        query = partial(
            fetch, wants=[owned.want() for owned, _ in plan], max_records=max_records, max_bytes=max_bytes, strict=True
        )
        try:
            chunks = await self._reader.run(query)
        except OffsetOutOfRangeError:
            if all(owned.version == version for owned, version in plan):
                raise
            # Sought, paused or given away during the read: read again what is wanted now.
            self._signal.set()
            return []
        if self.in_doubt():
            return []
        versions = {owned.part: (owned, version) for owned, version in plan}
        return list(chain.from_iterable(self._accepted(chunk, *versions[chunk.want.part]) for chunk in chunks))

    def _accepted(self, chunk: Chunk, owned: _Held, version: int) -> Sequence[Record]:
        # Sought, paused, drained or lost during the read: these records are not wanted any more.
        if owned.version != version:
            return ()
        owned.position = chunk.position
        return chunk.records

    def _check(self) -> None:
        self._check_open()
        if self._fault is not None:
            fault, self._fault = self._fault, None
            raise fault

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError("the subscription is closed")
        if self._fenced:
            raise FencedError(f"another process joined group {self._member.group!r} as member {self._member.name!r}")

    def _is_silent(self) -> bool:
        return self._clock.monotonic_s() - self._renewed_s > self._member.timeout_s
