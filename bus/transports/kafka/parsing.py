"""Records that the client library cannot read, read nevertheless.

A record's header name is UTF-8 by agreement only: brokers take any bytes, and the library raises on the first wrong one, at every fetch, with
all records around it. One hostile record must cost one dead letter and not a partition. Owns a batch that falls back to a parser of its own
where the library's fails; header names are hints, so wrong bytes in them become U+FFFD. Does not own fetching.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from aiokafka.consumer import fetcher
from aiokafka.record.default_records import DefaultRecordBatch, _DefaultRecordBatchPy
from aiokafka.record.memory_records import _MemoryRecordsPy
from aiokafka.record.util import decode_varint

__all__ = ["install"]

_MAGIC = 2


class _Tolerated(NamedTuple):
    """A record with the attributes of the library's."""

    offset: int
    timestamp: int
    timestamp_type: int
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]
    checksum: None = None


class _Batch:
    """The library's batch; its records are read by the library as long as it can."""

    def __init__(self, raw: memoryview) -> None:
        self._raw = raw
        self._batch = DefaultRecordBatch(raw)
        self._records = self._read()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._batch, name)

    def __iter__(self) -> Iterator[Any]:
        return self._records

    def __next__(self) -> Any:
        return next(self._records)

    def _read(self) -> Iterator[Any]:
        read = 0
        try:
            for record in self._batch:
                yield record
                read += 1
        except UnicodeDecodeError:
            yield from _tolerated(self._raw, read)


class _Records(_MemoryRecordsPy):  # type: ignore[misc]  # the library has no types
    """What a fetch brought, batch by batch."""

    def next_batch(self) -> Any:
        raw = self._next_slice
        if raw is None or len(raw) < self.MIN_SLICE or raw[self.MAGIC_OFFSET] < _MAGIC:
            return super().next_batch()
        self._cache_next()
        return _Batch(raw)


def install() -> None:
    """Make every consumer of this process read in this way."""
    fetcher.MemoryRecords = _Records


def _tolerated(raw: memoryview, skip: int) -> Iterator[_Tolerated]:
    """The records of a batch from number *skip* on."""
    batch = _DefaultRecordBatchPy(raw)
    batch._maybe_uncompress()  # noqa: SLF001 - the one step of reading that needs the library's codecs
    buffer, at = batch._buffer, batch._pos  # noqa: SLF001 - see above
    appended = batch.timestamp_type == 1
    for number in range(batch._num_records):  # noqa: SLF001 - see above
        length, at = decode_varint(buffer, at)
        if number >= skip:
            yield _record(buffer, at, batch, batch.max_timestamp if appended else None)
        at += length


def _record(buffer: bytearray, at: int, batch: Any, timestamp: int | None) -> _Tolerated:
    delta, at = decode_varint(buffer, at + 1)
    offset_delta, at = decode_varint(buffer, at)
    key, at = _bytes(buffer, at)
    value, at = _bytes(buffer, at)
    count, at = decode_varint(buffer, at)
    headers = []
    for _ in range(max(0, count)):
        name, at = _bytes(buffer, at)
        content, at = _bytes(buffer, at)
        headers.append(((name or b"").decode("utf-8", "replace"), content))
    moment = batch.first_timestamp + delta if timestamp is None else timestamp
    return _Tolerated(batch.base_offset + offset_delta, moment, batch.timestamp_type, key, value, headers)


def _bytes(buffer: bytearray, at: int) -> tuple[bytes | None, int]:
    length, at = decode_varint(buffer, at)
    return (None, at) if length < 0 else (bytes(buffer[at : at + length]), at + length)
