"""Read records from given positions.

Owns how a fetch is shared among partitions, and when a position is out of range. Positions and waiting belong to
`subscription`, the reader thread to `read_connection`.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

import msgspec

from bus.errors import OffsetOutOfRangeError, TopicMissingError
from bus.transports.base import Headers, PartitionRange, Record

__all__ = ["Chunk", "PartitionRows", "Want", "fetch", "locate"]

_decoder = msgspec.msgpack.Decoder(Headers)

# The casts are for rows written by hand, which may hold text instead of blobs or numbers.
_SELECT = """SELECT off, CAST(ts AS INTEGER), CAST(key AS BLOB), CAST(value AS BLOB), CAST(headers AS BLOB) FROM records
    WHERE part = ? AND off >= ? AND off < ? ORDER BY off LIMIT ?"""


class PartitionRows(msgspec.Struct, frozen=True):
    """The row ids of a partition and its topic."""

    topic_id: int
    part: int


class Want(msgspec.Struct, frozen=True, gc=False):
    """A partition to read, from *position* on."""

    topic: str
    partition: int
    part: int
    position: int


class Chunk(msgspec.Struct, frozen=True, gc=False):
    """The records read from one partition, and the position to continue at."""

    want: Want
    records: Sequence[Record]
    position: int


def locate(connection: sqlite3.Connection, topic: str, partition: int) -> PartitionRows:
    """Find a partition. Raises TopicMissingError."""
    row = connection.execute(
        "SELECT t.id, p.id FROM topics t JOIN partitions p ON p.topic_id = t.id WHERE t.name = ? AND p.partition = ?",
        (topic, partition),
    ).fetchone()
    if row is None:
        raise TopicMissingError(f"no partition {partition} of a topic {topic[:249]!r}")
    return PartitionRows(*row)


def fetch(
    connection: sqlite3.Connection, wants: Sequence[Want], max_records: int, max_bytes: int, *, strict: bool
) -> list[Chunk]:
    """Read up to the limits, shared among the partitions that have records, in the given order.

    At least one record is returned if there is any. A position outside the stored offsets raises OffsetOutOfRangeError
    if *strict*. Otherwise a position before the start is moved to the start, and one behind the end returns no records.
    """
    ranges = _ranges(connection, wants)
    placed = [(want, _position(want, ranges[want.part], strict=strict)) for want in wants if want.part in ranges]
    ready = [(want, position) for want, position in placed if position < ranges[want.part].end]
    chunks: list[Chunk] = []
    for index, (want, position) in enumerate(ready):
        quota, must = -(-max_records // (len(ready) - index)), not any(chunk.records for chunk in chunks)
        chunk, size = _read(
            connection, want, position, ranges[want.part].end, max_records=quota, max_bytes=max_bytes, must=must
        )
        chunks.append(chunk)
        max_records -= len(chunk.records)
        max_bytes -= size
        if max_records <= 0 or max_bytes <= 0:
            break
    return chunks


def _ranges(connection: sqlite3.Connection, wants: Sequence[Want]) -> dict[int, PartitionRange]:
    marks = ", ".join("?" * len(wants))
    rows = connection.execute(
        # The inserted text is only question marks.
        f"SELECT id, start_offset, next_offset FROM partitions WHERE id IN ({marks})",  # noqa: S608
        [want.part for want in wants],
    )
    return {part: PartitionRange(start, end) for part, start, end in rows}


def _position(want: Want, retained: PartitionRange, *, strict: bool) -> int:
    if strict and not retained.start <= want.position <= retained.end:
        raise OffsetOutOfRangeError(
            f"{want.topic} partition {want.partition}: offset {want.position} is outside the kept offsets "
            f"{retained.start} to {retained.end}; "
            "records this group had not settled may be lost"
        )
    return max(want.position, retained.start)


def _decoded(headers: bytes | None) -> Headers:
    if headers is None:
        return ()
    try:
        return _decoder.decode(headers)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        # The row was altered by hand. Without headers the record is judged and dead-lettered; an error here would stop
        # the partition for ever.
        return ()


def _read(
    connection: sqlite3.Connection, want: Want, position: int, end: int, *, max_records: int, max_bytes: int, must: bool
) -> tuple[Chunk, int]:
    records: list[Record] = []
    total = 0
    cursor = connection.execute(_SELECT, (want.part, position, end, max_records))
    for off, ts, key, value, headers in cursor:
        size = len(key or b"") + len(value or b"") + len(headers or b"")
        if total + size > max_bytes and (records or not must):
            cursor.close()
            return Chunk(want, records, records[-1].offset + 1 if records else position), max(total, max_bytes)
        total += size
        records.append(Record(want.topic, want.partition, off, ts, key, value, _decoded(headers)))
    # Offsets may have gaps: if no record is left below the end, reading continues at the end.
    return Chunk(want, records, records[-1].offset + 1 if records else end), total
