"""Appending records: checks before the write, placement within it.

Owns what makes a record acceptable, which partition it goes to, and its outcome. Does not own the transaction (`log`) or the deadline
(`transport`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from bus.errors import RecordTooLargeError, TopicMissingError, TransportError
from bus.partitioning import partition_of
from bus.transports.base import Appended, Headers, NewRecord, Outcome
from bus.transports.sqlite.log import Log, Topic

__all__ = ["Draft", "append", "drafted"]

_encode = msgspec.msgpack.Encoder().encode


class Draft(msgspec.Struct, frozen=True, gc=False):
    """A record that is small enough, with its headers encoded."""

    record: NewRecord
    headers: bytes | None
    size: int


def drafted(record: NewRecord, limit: int) -> Draft | RecordTooLargeError:
    """*record* made ready, or why it is not taken."""
    size = len(record.key or b"") + len(record.value or b"")
    if not record.headers:
        return Draft(record, None, size) if size <= limit else _too_large(size, limit)
    size += _header_bytes(record.headers)
    return Draft(record, _encode(record.headers), size) if size <= limit else _too_large(size, limit)


def append(log: Log, drafts: Sequence[Draft | RecordTooLargeError], now_ms: int, turns: Iterator[int]) -> list[Outcome]:
    """Stage every draft that can be placed; one outcome each, true once the transaction is committed."""
    return [_staged(log, draft, now_ms, turns) if isinstance(draft, Draft) else draft for draft in drafts]


def _staged(log: Log, draft: Draft, now_ms: int, turns: Iterator[int]) -> Outcome:
    record = draft.record
    topic = log.topics.get(record.topic)
    if topic is None:
        return TopicMissingError(f"there is no topic {record.topic[:249]!r}; create it with `sealbus topics apply`")
    partition = _placed(record, topic, turns)
    if isinstance(partition, TransportError):
        return partition
    part = topic.parts[partition]
    offset = log.next_offset(part)
    log.offsets[part] = offset + 1
    log.bytes[part] = log.bytes.get(part, 0) + draft.size
    log.rows += (part, offset, now_ms, record.key, record.value, draft.headers)
    log.touched.add(topic.id)
    return Appended(record.topic, partition, offset, now_ms)


def _placed(record: NewRecord, topic: Topic, turns: Iterator[int]) -> int | TransportError:
    count = len(topic.parts)
    if record.partition is not None:
        if 0 <= record.partition < count:
            return record.partition
        return TopicMissingError(f"topic {record.topic!r} has {count} partitions: there is no partition {record.partition}")
    return next(turns) % count if record.key is None else partition_of(record.key, count)


def _header_bytes(headers: Headers) -> int:
    return sum(len(name.encode()) + len(value) for name, value in headers)


def _too_large(size: int, limit: int) -> RecordTooLargeError:
    return RecordTooLargeError(f"a record of {size} bytes is larger than the {limit} this log takes")
