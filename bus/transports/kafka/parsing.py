"""What a fetch brought, as records of the bus, batch by batch.

The library reads a record's header names as UTF-8, which they are by agreement only: brokers take any bytes, and it raises on the first wrong
one, at every fetch, with all records around it. One hostile record must cost one dead letter and not a partition. Owns reading batches: by the
compiled hot path where it is there, by the library where not, by a parser of its own where the library's fails; header names are hints, so wrong
bytes in them become U+FFFD. Owns giving the bus its own kind of record without the library's in between. Does not own fetching.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from struct import Struct
from typing import Any, Final, NamedTuple

import cramjam
from aiokafka import TopicPartition
from aiokafka.consumer import fetcher
from aiokafka.errors import CorruptRecordException
from aiokafka.record.default_records import DefaultRecordBatch, _DefaultRecordBatchPy
from aiokafka.record.memory_records import _MemoryRecordsPy
from aiokafka.record.util import decode_varint_py

from bus import native
from bus.transports.base import Record

__all__ = ["as_bus_records", "install"]

_MAGIC = 2
_HEADER: Final = Struct(">qiibIhiqqqhii")
_CODEC, _APPEND_TIME = 0x07, 0x08
_NONE, _ZSTD = 0, 4
_header_names: Final[dict[bytes, str]] = {}


class _Room(threading.local):
    """Where batches are decompressed, used again for every one: made anew each time it costs more in page faults than the decompressing.

    One for each thread: the codec lets other threads run meanwhile.
    """

    def __init__(self) -> None:
        self.content = bytearray(1_048_576)


_room: Final = _Room()


def as_bus_records(key: bytes | None) -> bytes | None:
    """Given to a consumer as its `key_deserializer`: what it reads are records of the bus. Never called."""
    return key


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
    """The library's batch; its records are read by the library as long as it can. With *place* they are the bus's."""

    def __init__(self, raw: memoryview, place: TopicPartition | None) -> None:
        self._raw = raw
        self._batch = DefaultRecordBatch(raw)
        self._records = iter(found) if place is not None and (found := _compiled(raw, place)) is not None else self._read()

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
    """What a fetch brought, batch by batch; with a *place*, as records of the bus."""

    place: TopicPartition | None = None

    def next_batch(self) -> Any:
        raw = self._next_slice
        if raw is None or len(raw) < self.MIN_SLICE or raw[self.MAGIC_OFFSET] < _MAGIC:
            return super().next_batch()
        self._cache_next()
        return _Batch(raw, self.place)


class _PartitionRecords(fetcher.PartitionRecords):  # type: ignore[misc]  # the library has no types
    """The records of one partition: the bus's for a consumer that wants these, else the library's."""

    def __init__(self, place: TopicPartition, records: Any, aborted: Any, offset: int, key_deserializer: Any, *rest: Any) -> None:
        self._ours = key_deserializer is as_bus_records
        if self._ours and isinstance(records, _Records):
            records.place = place
        super().__init__(place, records, aborted, offset, key_deserializer, *rest)

    def _consumer_record(self, tp: TopicPartition, record: Any) -> Any:
        if not self._ours:
            return super()._consumer_record(tp, record)
        return record if record.__class__ is Record else _as_record(tp, record)


def install() -> None:
    """Make every consumer of this process read in this way."""
    fetcher.MemoryRecords = _Records
    fetcher.PartitionRecords = _PartitionRecords


def _as_record(place: TopicPartition, record: Any) -> Record:
    """A record of the library as a record of the bus; a header without a value counts as an empty one."""
    headers = tuple((name, content or b"") for name, content in record.headers)
    return Record(place.topic, place.partition, record.offset, record.timestamp, record.key, record.value, headers)


def _compiled(raw: memoryview, place: TopicPartition) -> list[Record] | None:
    """The records of a batch by the compiled way; None where that is not there, or leaves the batch to the others."""
    if native.core is None:
        return None
    base_offset, *_, attributes, _, base_ms, max_ms, _, _, _, count = _HEADER.unpack_from(raw)
    section, codec = raw[_HEADER.size :], attributes & _CODEC
    append_ms = max_ms if attributes & _APPEND_TIME else None
    try:
        content: bytearray | bytes | memoryview
        if codec == _ZSTD:
            content, length = _decompressed(section)
        elif codec == _NONE:
            content, length = section, len(section)
        else:
            return None
        found: list[Record] = native.core.read_records(
            content, length, count, Record, place.topic, place.partition, base_offset, base_ms, append_ms, _header_names
        )
    except (ValueError, OverflowError, cramjam.DecompressionError):
        # The library finds out what is wrong, and says so in its own way.
        return None
    return found


def _decompressed(section: memoryview) -> tuple[bytearray | bytes, int]:
    """What *section* holds, good until the next call, and how long it is."""
    content = _room.content
    try:
        return content, cramjam.zstd.decompress_into(section, content)
    except cramjam.DecompressionError:
        # Larger than usual, or broken.
        whole = bytes(cramjam.zstd.decompress(section))
        return whole, len(whole)


def _tolerated(raw: memoryview, skip: int) -> Iterator[_Tolerated]:
    """The records of a batch from number *skip* on."""
    batch = _DefaultRecordBatchPy(raw)
    batch._maybe_uncompress()  # noqa: SLF001 - the one step of reading that needs the library's codecs
    buffer, at = batch._buffer, batch._pos  # noqa: SLF001 - see above
    appended = batch.timestamp_type == 1
    for number in range(batch._num_records):  # noqa: SLF001 - see above
        begin = at
        try:
            length, at = decode_varint_py(buffer, begin)
            record, end = _record(buffer, at, batch, batch.max_timestamp if appended else None)
        except (IndexError, ValueError) as error:
            raise CorruptRecordException(f"record {number} of the batch at {batch.base_offset} ends before its time") from error
        if end - at != length:
            raise CorruptRecordException(f"record {number} of the batch at {batch.base_offset} is not of the length that it says")
        at = end
        if number >= skip:
            yield record


def _record(buffer: bytearray, at: int, batch: Any, timestamp: int | None) -> tuple[_Tolerated, int]:
    """The record whose content begins at *at*, and where it ends."""
    # Not by the library's compiled numbers, which don't stop at the end of the buffer.
    delta, at = decode_varint_py(buffer, at + 1)
    offset_delta, at = decode_varint_py(buffer, at)
    key, at = _bytes(buffer, at)
    value, at = _bytes(buffer, at)
    count, at = decode_varint_py(buffer, at)
    headers = []
    for _ in range(max(0, count)):
        name, at = _bytes(buffer, at)
        content, at = _bytes(buffer, at)
        headers.append(((name or b"").decode("utf-8", "replace"), content))
    moment = batch.first_timestamp + delta if timestamp is None else timestamp
    return _Tolerated(batch.base_offset + offset_delta, moment, batch.timestamp_type, key, value, headers), at


def _bytes(buffer: bytearray, at: int) -> tuple[bytes | None, int]:
    length, at = decode_varint_py(buffer, at)
    if length < 0:
        return None, at
    if at + length > len(buffer):
        raise IndexError(at + length)
    return bytes(buffer[at : at + length]), at + length
