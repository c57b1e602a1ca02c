"""A `LogSubscription` on Kafka: polling, committing, pausing.

Owns background fetching that is never cancelled, and commits that are fenced by the assignment's epoch and never move
backwards. `membership` owns gaining and losing partitions, `held_partitions` the buffers.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable, Mapping, Sequence

from aiokafka import TopicPartition
from aiokafka.errors import ConsumerStoppedError, KafkaError, NoOffsetForPartitionError, OffsetOutOfRangeError

from bus.errors import BusError, ClosedError, FencedError, UnreachableError
from bus.telemetry.logs import get_logger
from bus.transports.base import Assignment, Listener, Record
from bus.transports.kafka.cluster.client import ClusterClient
from bus.transports.kafka.consumer.consumer import Committing, Consumer
from bus.transports.kafka.consumer.held_partitions import HeldPartition
from bus.transports.kafka.consumer.membership import Membership
from bus.transports.kafka.consumer.start_positions import Position, out_of_range, start_positions
from bus.transports.kafka.errors import kafka_error_of

__all__ = ["KafkaSubscription"]

_FETCH_S = 0.5
_PAUSE_S = 0.5
_AGAIN_S = 0.05
_OVERTAKEN_S = 10.0

_log = get_logger("kafka")


class KafkaSubscription:
    """One member of a group; `open` joins it."""

    def __init__(
        self,
        group: str,
        topics: Sequence[str],
        listener: Listener,
        *,
        member: str,
        link: ClusterClient,
    ) -> None:
        self._group = group
        self._link = link
        self._clock = link.clock
        self._wake = asyncio.Event()
        self._life = Membership(
            group,
            topics,
            listener,
            member=member,
            link=link,
            changed=self._wake.set,
            positions=self._positions,
        )
        self._holdings = self._life.holdings
        self._fetching: asyncio.Task[None] | None = None
        self._fetching_from: Consumer | None = None
        self._committing = asyncio.Lock()
        self._closed = False

    async def open(self) -> None:
        """Join the group. Raises UnreachableError, NotPermittedError."""
        await self._life.open()

    @property
    def closed(self) -> bool:
        """Whether it has left the group for good."""
        return self._closed

    async def poll(self, *, timeout_s: float, max_records: int, max_bytes: int) -> Sequence[Record]:
        deadline_s = self._clock.monotonic_s() + timeout_s
        # A caller that polls in a loop must not starve the background fetch. Yield before taking records: a cancelled
        # poll then loses nothing.
        await asyncio.sleep(0)
        while True:
            self._wake.clear()
            self._check()
            if max_records > 0:
                records = self._holdings.take(max_records, max_bytes)
                if self._holdings.readable_share < 1:
                    self._start_fetch()
                if records:
                    return records
            left_s = deadline_s - self._clock.monotonic_s()
            if not await self._woken(left_s):
                self._check()
                return self._holdings.take(max_records, max_bytes) if max_records > 0 else ()

    async def commit(self, offsets: Mapping[Assignment, int]) -> Sequence[Assignment]:
        self._check_open()
        self._life.note_silence()
        deadline_s = self._clock.monotonic_s() + _OVERTAKEN_S
        while True:
            refused = [assignment for assignment in offsets if self._holdings.get(assignment) is None]
            owned = self._holdings.held_among(offsets)
            consumer = self._life.consumer
            stale = [] if self._life.knows(consumer) else owned
            moved = {
                item: offset for item in owned if (offset := item.settled(offsets[item.assignment])) > item.committed
            }
            if stale or consumer is None or not moved:
                break
            # A commit that arrives after this member joined a new round costs the membership.
            if self._life.steady:
                outcome = await self._commit(consumer, moved)
                if outcome is Committing.FENCED:
                    stale = list(moved)
                if outcome is not Committing.OVERTAKEN:
                    break
                # The library may not have started the round yet.
                await self._clock.sleep(_AGAIN_S)
            if self._clock.monotonic_s() > deadline_s or not await self._life.wait_until_steady():
                raise UnreachableError("the group has been rebalancing for long; the commit is tried again")
        if stale:
            self._holdings.drop(stale)
            _log.warning("kafka.commit_fenced", group=self._group, partitions=len(stale))
        return refused + [item.assignment for item in stale]

    def pause(self, assignments: Iterable[Assignment]) -> None:
        chosen = self._holdings.held_among(assignments)
        for owned in chosen:
            owned.paused = True
        if self._life.consumer is not None:
            self._life.consumer.pause(owned.location for owned in chosen)
        # A paused partition is not fetched, and its buffered records do not stop fetching for others. If all of them
        # were kept, each partition in turn could leave its prefetch and one more fetch in memory.
        if self._holdings.paused_share > 1:
            for owned in chosen:
                if owned.buffer and owned.position is not None:
                    self._life.location(owned, owned.position)

    def resume(self, assignments: Iterable[Assignment]) -> None:
        chosen = self._holdings.held_among(assignments)
        for owned in chosen:
            owned.paused = False
        if self._life.consumer is not None:
            self._life.consumer.resume(owned.location for owned in chosen if owned.position is not None)
        self._wake.set()

    def seek(self, assignment: Assignment, offset: int) -> None:
        owned = self._holdings.get(assignment)
        if owned is not None:
            self._life.location(owned, offset)
            self._wake.set()

    def assignments(self) -> Sequence[Assignment]:
        return self._holdings.assignments()

    def in_doubt(self) -> bool:
        # note_silence drops the partitions that others hold, so none is in doubt afterwards.
        self._life.note_silence()
        return False

    async def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._wake.set()
            await self._life.close()
            if self._fetching is not None:
                # The fetch ended with the consumer; it is never cancelled.
                await asyncio.wait([self._fetching], timeout=_PAUSE_S)

    def _start_fetch(self) -> None:
        consumer = self._life.consumer
        # The pending fetch of a replaced consumer may never end.
        if consumer is not None and (self._fetching is None or self._fetching_from is not consumer):
            self._fetching_from = consumer
            self._fetching = asyncio.get_running_loop().create_task(self._fetch(consumer))

    async def _fetch(self, consumer: Consumer) -> None:
        wanted = self._holdings.versions()
        batch: Mapping[TopicPartition, Sequence[Record]] = {}
        try:
            batch = await consumer.fetch(_FETCH_S)
        except (ConsumerStoppedError, NoOffsetForPartitionError):
            # The consumer stopped, or the library looks for a position itself while ours is still being looked up.
            pass
        except OffsetOutOfRangeError as error:
            await self._out_of_range(error.args[0] if error.args and isinstance(error.args[0], dict) else {})
        except Exception as error:  # noqa: BLE001 - an unreported failed fetch leaves the worker waiting for ever
            await self._fetch_failed(error)
        finally:
            if self._fetching_from is consumer:
                self._fetching = None
        for location, records in batch.items():
            self._store(location, records, wanted.get(location), consumer)
        self._pass_over(wanted, consumer)
        if batch:
            self._wake.set()
        elif not self._closed and not self._life.faults:
            self._start_fetch()

    def _store(
        self,
        location: TopicPartition,
        records: Sequence[Record],
        wanted: tuple[HeldPartition, int] | None,
        consumer: Consumer,
    ) -> None:
        owned = self._holdings.at(location)
        if owned is None or owned.position is None or consumer is not self._life.consumer:
            return
        if wanted == (owned, owned.version):
            owned.keep(records)
        else:
            # Assigned or sought during the fetch: the records may not be the ones wanted now.
            consumer.seek(location, owned.next_offset or 0)

    def _pass_over(self, wanted: Mapping[TopicPartition, tuple[HeldPartition, int]], consumer: Consumer) -> None:
        """Advance past offsets without records, and commit that if everything before them is settled.

        Otherwise they would never be committed, as no handler settles them.
        """
        for location, (owned, version) in wanted.items():
            if (
                owned.version == version
                and consumer is self._life.consumer
                and (position := consumer.position(location)) is not None
            ):
                owned.pass_over(position)
        passed = {owned: owned.gap.stop for owned in self._holdings.all() if owned.committed in owned.gap}
        if passed and self._life.steady and not self._committing.locked():
            self._life.spawn(self._passed(consumer, passed))

    async def _passed(self, consumer: Consumer, passed: Mapping[HeldPartition, int]) -> None:
        with contextlib.suppress(BusError):
            await self._commit(consumer, passed)

    async def _fetch_failed(self, error: Exception) -> None:
        fault = (
            kafka_error_of(error, f"reading as group {self._group!r}")
            if isinstance(error, KafkaError | OSError)
            else error
        )
        if isinstance(fault, BusError) and fault.retriable:
            _log.warning("kafka.fetch_failed", group=self._group, error=str(fault))
        else:
            self._life.fail(fault)
        await self._clock.sleep(_PAUSE_S)

    async def _out_of_range(self, locations: Mapping[TopicPartition, int]) -> None:
        for location, offset in locations.items():
            owned = self._holdings.at(location)
            if owned is None or (owned.position is not None and owned.position > offset):
                continue
            try:
                span = (await self._link.spans([location]))[location]
            except BusError as error:
                _log.warning(
                    "kafka.range_unknown", topic=location.topic, partition=location.partition, error=str(error)
                )
                continue
            if not span.start <= offset <= span.end:
                self._life.fail(out_of_range(location, offset, span))

    async def _woken(self, timeout_s: float) -> bool:
        if timeout_s <= 0:
            # Let a finished fetch store its records.
            await asyncio.sleep(0)
            return False
        timer = self._clock.call_later(timeout_s, self._wake.set)
        started_s = self._clock.monotonic_s()
        try:
            await self._wake.wait()
        finally:
            timer.cancel()
        return self._clock.monotonic_s() - started_s < timeout_s

    async def _positions(self, gained: Sequence[HeldPartition]) -> Mapping[TopicPartition, Position]:
        """Return where the group continues in *gained*; without a commit, commit the start position first.

        A group without a commit starts at the oldest kept record. Records deleted before its first commit do not count
        as missed.
        """
        found = await start_positions(self._link, self._group, [owned.location for owned in gained])
        for owned in gained:
            owned.committed = found[owned.location].committed
        begun, consumer = (
            {owned: found[owned.location].offset for owned in gained if owned.committed < 0},
            self._life.consumer,
        )
        if not begun:
            return found
        if (
            consumer is not None
            and await self._life.wait_until_steady()
            and await self._commit(consumer, begun) is Committing.TAKEN
        ):
            return found
        # Overtaken: other members may hold some of these partitions.
        await self._clock.sleep(_AGAIN_S)
        return {}

    async def _commit(self, consumer: Consumer, moved: Mapping[HeldPartition, int]) -> Committing:
        def is_current() -> bool:
            # When a coordinator returns after a long absence, it may have assigned these partitions to another member.
            return (
                self._life.steady
                and self._life.knows(consumer)
                and all(self._holdings.get(item.assignment) is item for item in moved)
            )

        # Commits run one at a time: of two in parallel, the smaller could arrive last. An earlier one may have covered
        # this one already.
        async with self._committing:
            if not (ahead := {item: offset for item, offset in moved.items() if offset > item.committed}):
                return Committing.TAKEN
            try:
                outcome = await consumer.commit({item.location: offset for item, offset in ahead.items()}, is_current)
            except KafkaError as error:
                fault = kafka_error_of(error, f"committing for group {self._group!r}")
                if isinstance(fault, FencedError):
                    return Committing.FENCED
                raise fault from error
            if outcome is Committing.TAKEN:
                for item, offset in ahead.items():
                    item.committed = offset
            return outcome

    def _check(self) -> None:
        self._check_open()
        self._life.polled()
        if self._life.faults:
            raise self._life.faults.pop(0)

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError("the subscription is closed")
        if self._life.gave_up:
            raise FencedError(self._life.gave_up)
