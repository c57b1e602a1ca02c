"""Read a partition without a group: tail, dead-letter lists, replies.

Owns a small pool of consumers, one per partition being read. A reader that continues where it stopped fetches nothing
twice. Groups are in `subscription`.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import ConsumerStoppedError, KafkaError, OffsetOutOfRangeError

from bus.clock import Clock
from bus.errors import ClosedError, TopicMissingError, UnreachableError
from bus.transports.base import HEADER_BYTES, Record
from bus.transports.kafka.cluster.client import ClusterClient
from bus.transports.kafka.consumer.consumer import kill
from bus.transports.kafka.errors import kafka_error_of
from bus.transports.kafka.options import KafkaOptions

__all__ = ["Reading"]

_KEPT = 16
_START_S = 15.0
_CLOSE_S = 2.0
_FETCH_S = 0.5
_PAUSE_S = 0.2
_ANSWER_S = 15.0


class _Reader:
    """The state of one partition: the next expected offset, and the records fetched but not yet returned."""

    __slots__ = ("buffer", "consumer", "expected", "fetching", "lock", "users")

    def __init__(self) -> None:
        self.consumer: AIOKafkaConsumer | None = None
        self.buffer: deque[Record] = deque()
        self.expected = -1
        self.fetching: asyncio.Future[None] | None = None
        """The fetch in progress; it continues if its caller is cancelled."""
        self.lock = asyncio.Lock()
        self.users = 0
        """The number of callers that read or wait for their turn."""


class Reading:
    """The read side of one transport."""

    def __init__(self, options: KafkaOptions, link: ClusterClient, clock: Clock) -> None:
        self._options = options
        self._link = link
        self._clock = clock
        self._readers: dict[TopicPartition, _Reader] = {}
        self._closed = False

    async def read(
        self, topic: str, partition: int, offset: int, *, max_records: int, max_bytes: int, wait_s: float
    ) -> Sequence[Record]:
        """Return records from *offset*, or from the oldest kept one if that is later.

        Waits up to *wait_s* for the first record.
        """
        facts = await self._link.topic(topic)
        if partition >= facts.partitions:
            raise TopicMissingError(f"topic {topic!r} has no partition {partition}")
        location = TopicPartition(topic, partition)
        reader = self._readers.pop(location, None) or _Reader()
        # Re-insert: the most recently used reader is last.
        self._readers[location] = reader
        reader.users += 1
        try:
            async with reader.lock:
                if reader.expected != offset or reader.consumer is None:
                    await self._go(reader, location, offset)
                try:
                    await self._fill(reader, location, wait_s)
                except BaseException:
                    reader.expected = -1
                    raise
                taken = _taken(reader, max_records, max_bytes)
        finally:
            reader.users -= 1
        await self._trim()
        return taken

    async def close(self) -> None:
        """End every reader; waiting callers get a ClosedError."""
        self._closed = True
        readers, self._readers = self._readers, {}
        await asyncio.gather(*(_close(reader) for reader in readers.values()))

    async def _go(self, reader: _Reader, location: TopicPartition, offset: int) -> None:
        if reader.fetching is not None:
            # The fetch in progress returns records from the old position.
            await asyncio.wait((reader.fetching,))
        reader.expected = -1
        reader.buffer.clear()
        if reader.consumer is None:
            reader.consumer = await self._start(location)
        span = (await self._link.spans([location]))[location]
        self._check_open()
        reader.expected = max(offset, span.start)
        reader.consumer.seek(location, min(reader.expected, span.end))

    async def _start(self, location: TopicPartition) -> AIOKafkaConsumer:
        consumer = AIOKafkaConsumer(**self._options.reader())
        try:
            async with asyncio.timeout(_START_S):
                await consumer.start()
            # Closed in the meantime: nothing else would stop this consumer.
            self._check_open()
        except BaseException as error:
            await _end(consumer)
            if isinstance(error, KafkaError | OSError | TimeoutError):
                raise kafka_error_of(error, f"reading {location.topic}") from error
            raise
        consumer.assign([location])
        return consumer

    async def _fill(self, reader: _Reader, location: TopicPartition, wait_s: float) -> None:
        """Fetch until the buffer holds a record, or the end is reached and *wait_s* is over."""
        consumer = reader.consumer
        assert consumer is not None  # noqa: S101 - _go came first
        deadline_s = self._clock.monotonic_s() + wait_s
        answer_s = self._clock.monotonic_s() + max(wait_s, _ANSWER_S)
        end: int | None = None
        while not reader.buffer:
            self._check_open()
            now_s = self._clock.monotonic_s()
            if now_s >= deadline_s:
                if end is None:
                    end = (await self._link.spans([location]))[location].end
                if reader.expected >= end or await _position(consumer, location) >= end:
                    return
                if now_s >= answer_s:
                    # Records exist but none arrives: this client may have lost its brokers. The next read starts with a
                    # new one.
                    await _close(reader)
                    raise UnreachableError(
                        f"{location.topic} partition {location.partition} was not answered in {_ANSWER_S:g} s"
                    )
            await self._fetch(reader, location, consumer, min(_FETCH_S, max(0.05, deadline_s - now_s)))

    async def _fetch(
        self, reader: _Reader, location: TopicPartition, consumer: AIOKafkaConsumer, timeout_s: float
    ) -> None:
        # The fetch continues as its own task: a cancelled fetch loses the records it has taken from the library.
        reader.fetching = work = asyncio.ensure_future(self._store(reader, location, consumer, timeout_s))
        try:
            await asyncio.wait((work,))
            work.result()
        except asyncio.CancelledError:
            work.add_done_callback(lambda done: done.cancelled() or done.exception())
            raise

    async def _store(
        self, reader: _Reader, location: TopicPartition, consumer: AIOKafkaConsumer, timeout_s: float
    ) -> None:
        try:
            batch = await consumer.getmany(location, timeout_ms=round(timeout_s * 1000))
        except OffsetOutOfRangeError:
            # Retention deleted the records before they were read: a reader without a group has no claim on them.
            span = (await self._link.spans([location]))[location]
            reader.expected = max(reader.expected, span.start)
            consumer.seek(location, min(reader.expected, span.end))
            return
        except (KafkaError, ConsumerStoppedError) as error:
            if self._closed:
                raise ClosedError("the transport is closed") from error
            fault = kafka_error_of(error, f"reading {location.topic}")
            if not fault.retriable:
                raise fault from error
            await self._clock.sleep(_PAUSE_S)
            return
        reader.buffer.extend(record for record in batch.get(location, ()) if record.offset >= reader.expected)

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError("the transport is closed")

    async def _trim(self) -> None:
        while len(self._readers) > _KEPT:
            # Choose again after each close: meanwhile other readers are used, or closed by other callers.
            idle = next((location for location, reader in self._readers.items() if not reader.users), None)
            if idle is None:
                return
            await _close(self._readers.pop(idle))


def _taken(reader: _Reader, max_records: int, max_bytes: int) -> list[Record]:
    taken: list[Record] = []
    size = 0
    while reader.buffer and len(taken) < max_records:
        record = reader.buffer[0]
        size += len(record.value or b"") + len(record.key or b"") + HEADER_BYTES * len(record.headers)
        if size > max_bytes and taken:
            break
        taken.append(reader.buffer.popleft())
        reader.expected = record.offset + 1
    return taken


async def _position(consumer: AIOKafkaConsumer, location: TopicPartition) -> int:
    """Return the library's position.

    It can be behind entries at the end that are not records (transaction markers, compacted records).
    """
    return int(await consumer.position(location))


async def _close(reader: _Reader) -> None:
    consumer, reader.consumer = reader.consumer, None
    reader.expected = -1
    if consumer is not None:
        await _end(consumer)


async def _end(consumer: AIOKafkaConsumer) -> None:
    # A task of its own, which may be abandoned; its errors are ignored.
    await asyncio.wait((asyncio.get_running_loop().create_task(kill(consumer)),), timeout=_CLOSE_S)
