"""Parse fetched batches into records of the bus.

Owns parsing: by the compiled code if present, otherwise by the library, and by a Python parser where both fail. The
library decodes header names as UTF-8, but brokers accept any bytes. One wrong byte makes it raise at every fetch and
blocks the partition. Header names are hints, so wrong bytes become U+FFFD: a hostile record costs one dead letter. A
batch that expands to gigabytes, or has endless headers, costs only its unreadable part: one empty record stands for it.
The library's intermediate record objects are skipped. Decompression is in `decompression`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from struct import Struct
from typing import Any, Final, NamedTuple

from aiokafka import TopicPartition
from aiokafka.consumer import fetcher
from aiokafka.errors import CorruptRecordException
from aiokafka.record.default_records import DefaultRecordBatch, _DefaultRecordBatchPy
from aiokafka.record.memory_records import _MemoryRecordsPy
from aiokafka.record.util import decode_varint_py

from bus import native
from bus.telemetry.logs import get_logger
from bus.transports.base import Record
from bus.transports.kafka.consumer.decompression import TooLargeError, usual, whole
from bus.transports.kafka.options import as_bus_records

__all__ = ["install"]

_MAGIC = 2
_HEADER: Final = Struct(">qiibIhiqqqhii")
_CODEC, _APPEND_TIME = 0x07, 0x08
_MAX_RECORDS = 100_000
"""Batches with more records are parsed lazily, so that the first is handled before the last is parsed."""
_MAX_HEADERS = 10_000
"""The most headers of a record. The compiled code has the same limit: each two-byte header takes many times that in
memory.
"""
_KEPT_HEADERS = 256
"""The most headers kept of a record; those behind them are dropped.

A message with so many headers is refused anyway. The compiled code has the same limit.
"""
_FETCHED_BYTES = 8 * 1_048_576
"""The bytes one fetch parses of one partition, give or take a batch; the rest is fetched again."""
_header_names: Final[dict[bytes, str]] = {}

_log = get_logger("kafka")


class _Tolerated(NamedTuple):
    """A record with the attributes of the library's record."""

    offset: int
    timestamp: int
    timestamp_type: int
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]
    checksum: None = None


class _Batch:
    """The library's batch, parsed by the library as far as it can. With *location*, its records are the bus's."""

    def __init__(self, raw: memoryview, location: TopicPartition | None) -> None:
        self._raw = raw
        self._batch = DefaultRecordBatch(raw)
        found, self.content_bytes = (None, 0) if location is None else _bounded(raw, location)
        self._records = self._read() if found is None else iter(found)

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
    """The fetched data, batch by batch; with a *location*, as records of the bus."""

    location: TopicPartition | None = None
    _content_bytes = 0

    def has_next(self) -> bool:
        # The library continues behind the last record that it was given.
        return self._content_bytes < _FETCHED_BYTES and bool(super().has_next())

    def next_batch(self) -> Any:
        raw = self._next_slice
        if raw is None or len(raw) < self.MIN_SLICE or raw[self.MAGIC_OFFSET] < _MAGIC:
            return super().next_batch()
        self._cache_next()
        batch = _Batch(raw, self.location)
        self._content_bytes += batch.content_bytes
        return batch


class _PartitionRecords(fetcher.PartitionRecords):  # type: ignore[misc]  # the library has no types
    """The records of one partition: the bus's for a consumer marked with `as_bus_records`, otherwise the library's."""

    def __init__(
        self, location: TopicPartition, records: Any, aborted: Any, offset: int, key_deserializer: Any, *rest: Any
    ) -> None:
        self._ours = key_deserializer is as_bus_records
        if self._ours and isinstance(records, _Records):
            records.location = location
        super().__init__(location, records, aborted, offset, key_deserializer, *rest)

    def _consumer_record(self, tp: TopicPartition, record: Any) -> Any:
        if not self._ours:
            return super()._consumer_record(tp, record)
        return record if record.__class__ is Record else _as_record(tp, record)


def install() -> None:
    """Make every consumer of this process parse with this module."""
    fetcher.MemoryRecords = _Records
    fetcher.PartitionRecords = _PartitionRecords


def _as_record(location: TopicPartition, record: Any) -> Record:
    """Convert a record of the library into one of the bus; a header without a value becomes an empty one."""
    headers = tuple((name, content or b"") for name, content in record.headers)
    return Record(
        location.topic, location.partition, record.offset, record.timestamp, record.key, record.value, headers
    )


def _bounded(raw: memoryview, location: TopicPartition) -> tuple[Iterable[Record] | None, int]:
    """Return the records of a batch, parsed within the size limit, and their size in bytes.

    The records are None if the library must parse the batch.
    """
    base_offset, *_, attributes, _, base_ms, max_ms, _, _, _, count = _HEADER.unpack_from(raw)
    section, codec, plenty = raw[_HEADER.size :], attributes & _CODEC, count > _MAX_RECORDS
    append_ms = max_ms if attributes & _APPEND_TIME else None

    def compiled(content: bytes | memoryview | None) -> list[Record] | None:
        if content is None:
            return None
        try:
            return native.read_records(
                content,
                len(content),
                count,
                Record,
                location.topic,
                location.partition,
                base_offset,
                base_ms,
                append_ms,
                _header_names,
            )
        except (ValueError, OverflowError):
            return None

    if native.core is not None and not plenty:
        first = usual(section, codec)
        if first is not None and (found := compiled(first)) is not None:
            return found, len(first)
    try:
        content = whole(section, codec)
    except TooLargeError as error:
        return _cut(raw, error.beginning, location), len(error.beginning)
    except ValueError:
        # The library finds the fault too, and reports it in its own way.
        return None, 0
    if content is None or (native.core is None and not plenty):
        return None, len(content or section)
    return (None if plenty else compiled(content)) or _cut(raw, content, location), len(content)


def _cut(raw: memoryview, beginning: bytes | memoryview, location: TopicPartition) -> Iterator[Record]:
    """Yield the records in the *beginning* of a batch's content.

    One record without content, at the batch's last offset, stands for the missing ones.
    """
    batch = _DefaultRecordBatchPy(raw)
    try:
        for record in _parsed(batch, beginning, 0):
            yield _as_record(location, record)
    except CorruptRecordException as error:
        _log.error(
            "kafka.batch_unreadable",
            topic=location.topic,
            partition=location.partition,
            offset=batch.base_offset,
            error=str(error),
        )
        yield Record(location.topic, location.partition, batch.next_offset - 1, batch.max_timestamp, None, b"", ())


def _tolerated(raw: memoryview, skip: int) -> Iterator[_Tolerated]:
    """Return the records of a batch, without the first *skip*."""
    batch = _DefaultRecordBatchPy(raw)
    batch._maybe_uncompress()  # noqa: SLF001 - the one step of reading that needs the library's codecs
    return islice(_parsed(batch, batch._buffer, batch._pos), skip, None)  # noqa: SLF001 - see above


def _parsed(batch: _DefaultRecordBatchPy, buffer: bytes | bytearray | memoryview, at: int) -> Iterator[_Tolerated]:
    """Yield the records of *batch* in *buffer* from byte *at* on.

    Raises CorruptRecordException at an incomplete record.
    """
    appended = batch.timestamp_type == 1
    for number in range(batch._num_records):  # noqa: SLF001 - there is no public way
        try:
            length, begin = decode_varint_py(buffer, at)
            record, at = _record(buffer, begin, batch, batch.max_timestamp if appended else None)
        except (IndexError, ValueError) as error:
            raise CorruptRecordException(
                f"record {number} of the batch at {batch.base_offset} cannot be read: {error}"
            ) from error
        if at - begin != length:
            raise CorruptRecordException(
                f"record {number} of the batch at {batch.base_offset} does not have its declared length"
            )
        yield record


def _record(
    buffer: bytes | bytearray | memoryview, at: int, batch: Any, timestamp: int | None
) -> tuple[_Tolerated, int]:
    """Return the record whose content begins at *at*, and where it ends."""
    # The library's compiled varint decoder does not stop at the end of the buffer, so it is not used.
    delta, at = decode_varint_py(buffer, at + 1)
    offset_delta, at = decode_varint_py(buffer, at)
    key, at = _bytes(buffer, at)
    value, at = _bytes(buffer, at)
    count, at = decode_varint_py(buffer, at)
    if count > _MAX_HEADERS:
        raise ValueError(f"{count} headers are more than {_MAX_HEADERS}")
    headers: list[tuple[str, bytes | None]] = []
    for _ in range(max(0, count)):
        name, at = _bytes(buffer, at)
        content, at = _bytes(buffer, at)
        if len(headers) < _KEPT_HEADERS:
            headers.append(((name or b"").decode("utf-8", "replace"), content))
    moment = batch.first_timestamp + delta if timestamp is None else timestamp
    return _Tolerated(batch.base_offset + offset_delta, moment, batch.timestamp_type, key, value, headers), at


def _bytes(buffer: bytes | bytearray | memoryview, at: int) -> tuple[bytes | None, int]:
    length, at = decode_varint_py(buffer, at)
    if length < 0:
        return None, at
    if at + length > len(buffer):
        raise IndexError("it ends before its time")
    return bytes(buffer[at : at + length]), at + length
