"""Publish a stream: any iterable or async iterable in, one outcome per message out, in order, with bounded memory.

Owns the pump between a source and the batcher. Items that the source gives without waiting are sent together; once the
source waits, the collected items leave at once. Sealing and outcomes belong to `producers.publisher`.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Iterable, Sequence
from typing import TypeAlias, cast

from bus.errors import BusError
from bus.payloads.class_forms import Payload
from bus.transports.base import AppendOutcome, NewRecord
from producers.appending.batcher import buffered_size
from producers.outcomes import PublishRejected, Result
from producers.publisher import Publisher, check_timeout
from producers.sealing.options import Outgoing
from producers.sealing.sealed_record import SealedRecord

__all__ = ["Item", "StreamSource", "publish_stream"]

Item: TypeAlias = Payload | Outgoing | SealedRecord | PublishRejected
"""A payload, a payload with options, a sealed record, or an item that the source itself refuses.

A refused item keeps its place in the results as its error.
"""

StreamSource: TypeAlias = Iterable[Item] | AsyncIterable[Item]

_CHUNK_RECORDS = 1024
_CHUNK_BYTES = 2 * 1_048_576
_CHUNKS_IN_FLIGHT = 8


class _Chunk:
    """Messages that are sent together; a refused one keeps its place as its error."""

    __slots__ = ("entries", "records", "refused", "size", "topics")

    def __init__(self) -> None:
        self.entries: list[SealedRecord | PublishRejected] = []
        self.records: list[NewRecord] = []
        self.topics: set[str] = set()
        self.size = 0
        self.refused = False

    def full(self) -> bool:
        return len(self.entries) >= _CHUNK_RECORDS or self.size >= _CHUNK_BYTES


class _Pump:
    """Reads the source and seals its items, one chunk ahead of those in flight."""

    def __init__(self, publisher: Publisher, source: StreamSource) -> None:
        self._publisher = publisher
        self._source = source
        self._chunk = _Chunk()
        self._changed = asyncio.Event()
        self._taken = asyncio.Event()
        self.finished = False
        self.error: BaseException | None = None

    async def run(self) -> None:
        task = asyncio.current_task()
        try:
            await self._read()
        except BaseException as error:
            if task is not None and task.cancelling():
                raise
            # The source's own error: without it the stream would seem to end normally.
            self.error = error
        finally:
            self.finished = True
            self._changed.set()

    async def _read(self) -> None:
        if isinstance(self._source, AsyncIterable):
            await self._run_along(aiter(self._source))
        elif isinstance(self._source, list | tuple) and self._source.__class__ in {list, tuple}:
            await self._run_through(self._source)
        else:
            for item in self._source:
                if self._add(item):
                    await self._wait_until_taken()

    async def _run_along(self, items: AsyncIterator[Item]) -> None:
        try:
            async for item in items:
                if self._add(item):
                    await self._wait_until_taken()
        finally:
            # Close the generator in the task that ran it, as its timeouts and task groups require, and not at garbage
            # collection.
            if isinstance(items, AsyncGenerator):
                await items.aclose()

    async def _run_through(self, items: Sequence[Item]) -> None:
        """Seal many items in one step: a list or tuple runs no code between two items."""
        at = 0
        while at < len(items):
            chunk = self._chunk
            sealed, records, size = self._publisher.sealer.seal_run(
                items, at, max_count=_CHUNK_RECORDS - len(chunk.entries), room=_CHUNK_BYTES - chunk.size
            )
            if sealed:
                at += len(sealed)
                full = self._take_in(sealed, records, size)
            else:
                full = self._add(items[at])
                at += 1
            if full:
                await self._wait_until_taken()

    def _take_in(self, sealed: Sequence[SealedRecord], records: Sequence[NewRecord], size: int) -> bool:
        """Add records that were sealed in one step; return whether the chunk is full."""
        chunk = self._chunk
        chunk.entries += sealed
        chunk.records += records
        chunk.topics.add(records[0].topic)
        chunk.size += size
        self._changed.set()
        return chunk.full()

    def _add(self, item: Item) -> bool:
        """Seal *item* and add it; return whether the chunk is full."""
        chunk = self._chunk
        try:
            sealed = self._seal(item)
        except PublishRejected as error:
            chunk.entries.append(error)
            chunk.refused = True
        else:
            chunk.entries.append(sealed)
            chunk.records += sealed.records
            chunk.topics.add(sealed.record.topic)
            chunk.size += sum(map(buffered_size, sealed.records))
        if len(chunk.entries) == 1:
            self._changed.set()
        return chunk.full()

    async def _wait_until_taken(self) -> None:
        while self._chunk.full():
            self._taken.clear()
            await self._taken.wait()

    def _seal(self, item: Item) -> SealedRecord:
        if isinstance(item, PublishRejected):
            raise item
        if isinstance(item, SealedRecord):
            return item
        return (
            self._publisher.sealer.seal(item) if isinstance(item, Outgoing) else self._publisher.sealer.seal_plain(item)
        )

    async def take(self) -> _Chunk | None:
        """Return the messages sealed since the last call; wait for the first one, return None at the end."""
        while not self._chunk.entries:
            if self.finished:
                return None
            self._changed.clear()
            await self._changed.wait()
        chunk, self._chunk = self._chunk, _Chunk()
        self._taken.set()
        return chunk

    def ready(self) -> bool:
        """Tell whether `take` would return at once."""
        return bool(self._chunk.entries) or self.finished


async def publish_stream(publisher: Publisher, source: StreamSource, *, timeout_s: float) -> AsyncIterator[Result]:
    """Yield one Receipt, PublishRejected or PublishUnknown per item of *source*, in its order.

    An exception of the source itself comes last. Raises PublishRejected, before it reads *source*, if *timeout_s* is
    not more than 0.
    """
    check_timeout(timeout_s)
    pump = _Pump(publisher, source)
    task = asyncio.get_running_loop().create_task(pump.run())
    flying: deque[tuple[_Chunk, asyncio.Future[Sequence[AppendOutcome]] | BusError]] = deque()
    try:
        while True:
            while len(flying) < _CHUNKS_IN_FLIGHT and (not flying or pump.ready()):
                chunk = await pump.take()
                if chunk is None:
                    break
                flying.append((chunk, await _launch(publisher, chunk, timeout_s)))
                # One turn of the loop lets the source seal the next chunk while this one is written.
                await asyncio.sleep(0)
            if not flying:
                break
            chunk, outcomes = flying.popleft()
            for result in await _results(publisher, chunk, outcomes):
                yield result
        if pump.error is not None:
            raise pump.error
    finally:
        task.cancel()
        await asyncio.wait([task])
        if not task.cancelled():
            # Raise an error that the source raised while it was being cancelled.
            task.result()


async def _launch(
    publisher: Publisher, chunk: _Chunk, timeout_s: float
) -> asyncio.Future[Sequence[AppendOutcome]] | BusError:
    try:
        return await publisher.queue(chunk.records, chunk.topics, timeout_s=timeout_s, size=chunk.size)
    except BusError as error:
        return error


async def _results(
    publisher: Publisher, chunk: _Chunk, outcomes: asyncio.Future[Sequence[AppendOutcome]] | BusError
) -> list[Result]:
    if isinstance(outcomes, BusError):
        return [
            entry if isinstance(entry, PublishRejected) else PublishRejected(f"not sent: {outcomes}", outcomes)
            for entry in chunk.entries
        ]
    if len(chunk.records) == len(chunk.entries) and not chunk.refused:
        return publisher.results_of(cast("Sequence[SealedRecord]", chunk.entries), await outcomes)
    answers = iter(
        publisher.results_of([entry for entry in chunk.entries if isinstance(entry, SealedRecord)], await outcomes)
    )
    return [entry if isinstance(entry, PublishRejected) else next(answers) for entry in chunk.entries]
