"""Read a topic without a group: its last records, all of them, and new ones.

Owns positions, merging partitions by append time, and following.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator, Sequence
from typing import Final

from bus.errors import BusError, NameRefusedError, TopicMissingError
from bus.nearest import nearest
from bus.topics.names import message_topic
from bus.transports.base import Record, Transport
from bus.transports.read_all import new_partition_starts

__all__ = ["follow_topic", "history", "reading_positions", "resolve_topic"]

_PAGE_RECORDS: Final = 500
_PAGE_BYTES: Final = 8 * 1_048_576
_WAIT_S: Final = 5.0


async def resolve_topic(transport: Transport, namespace: str, name: str) -> str:
    """Return the topic named *name*, or that of the message type *name*.

    Raises TopicMissingError, which names the nearest one.
    """
    existing = await transport.admin.topics()
    for topic in (name, message_topic(namespace, name)):
        if topic in existing:
            return topic
    # Topics this user may not see are not listed; the log reports them when asked by name.
    with contextlib.suppress(TopicMissingError, NameRefusedError):
        await transport.admin.ranges(message_topic(namespace, name))
    raise TopicMissingError(f"no topic {name} or {message_topic(namespace, name)}{nearest(name, existing)}")


async def reading_positions(
    transport: Transport, topic: str, start: str | int, last: int
) -> dict[int, tuple[int, int]]:
    """Return, by partition, the first offset to read and the end.

    *start* is "beginning", "end", "last" (the *last* ones) or an offset.
    """
    found = {}
    for partition, retained in (await transport.admin.ranges(topic)).items():
        first = (
            {"beginning": retained.start, "end": retained.end, "last": max(retained.start, retained.end - last)}[start]
            if isinstance(start, str)
            else start
        )
        found[partition] = (max(retained.start, first), retained.end)
    return found


async def history(
    transport: Transport, topic: str, spans: dict[int, tuple[int, int]]
) -> AsyncIterator[Sequence[Record]]:
    """Yield the records in *spans*, in pages.

    Oldest first over all partitions, as far as each partition's order allows.
    """
    readers = [_TopicReader(transport, topic, partition, *span) for partition, span in sorted(spans.items())]
    page: list[Record] = []
    while True:
        for reader in readers:
            if not reader.buffer:
                await reader.fill()
        readers = [reader for reader in readers if reader.buffer]
        if not readers:
            break
        oldest = min(readers, key=_head)
        page.append(oldest.buffer.popleft())
        if len(page) >= _PAGE_RECORDS:
            yield page
            page = []
    if page:
        yield page


async def follow_topic(transport: Transport, topic: str, starts: dict[int, int]) -> AsyncIterator[Sequence[Record]]:
    """Yield records appended from *starts* on, also in partitions added later; ends only with an error."""
    followed = _Followed(transport, topic, starts)
    try:
        while True:
            taking = asyncio.create_task(followed.arrived.get())
            done, _ = await asyncio.wait([taking, *followed.tasks], return_when=asyncio.FIRST_COMPLETED)
            if taking not in done:
                taking.cancel()
                for task in done:
                    task.result()
            else:
                yield taking.result()
    finally:
        for task in followed.tasks:
            task.cancel()
        await asyncio.gather(*followed.tasks, return_exceptions=True)


class _Followed:
    """The followed partitions; *tasks* end only with an error."""

    def __init__(self, transport: Transport, topic: str, starts: dict[int, int]) -> None:
        self._transport = transport
        self._topic = topic
        self._offsets = dict(starts)
        self.arrived: asyncio.Queue[Sequence[Record]] = asyncio.Queue(maxsize=len(starts) or 1)
        self.tasks = [asyncio.create_task(self._watch(partition)) for partition in starts]
        self.tasks.append(asyncio.create_task(self._look()))

    async def _watch(self, partition: int) -> None:
        while True:
            offset = self._offsets[partition]
            records = await self._transport.read(
                self._topic, partition, offset, max_records=_PAGE_RECORDS, max_bytes=_PAGE_BYTES, wait_s=_WAIT_S
            )
            if records:
                self._offsets[partition] = records[-1].offset + 1
                await self.arrived.put(records)

    async def _look(self) -> None:
        while True:
            await asyncio.sleep(_WAIT_S)
            # The reading tasks report what is wrong with the log.
            with contextlib.suppress(BusError):
                starts = new_partition_starts(self._offsets, await self._transport.admin.ranges(self._topic))
                added = starts.keys() - self._offsets.keys()
                self._offsets |= starts
                self.tasks += [asyncio.create_task(self._watch(partition)) for partition in added]


class _TopicReader:
    """Reads one partition, a page at a time."""

    def __init__(self, transport: Transport, topic: str, partition: int, start: int, end: int) -> None:
        self.buffer: deque[Record] = deque()
        self._transport = transport
        self._topic = topic
        self._partition = partition
        self._next = start
        self._end = end

    async def fill(self) -> None:
        """Read the next page; an empty buffer afterwards means the end of this partition."""
        if self._next >= self._end:
            return
        records = await self._transport.read(
            self._topic, self._partition, self._next, max_records=_PAGE_RECORDS, max_bytes=_PAGE_BYTES, wait_s=1.0
        )
        self.buffer.extend(record for record in records if record.offset < self._end)
        self._next = records[-1].offset + 1 if records else self._end


def _head(reader: _TopicReader) -> int:
    return reader.buffer[0].timestamp_ms
