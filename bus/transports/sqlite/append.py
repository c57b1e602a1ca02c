"""Append records: check them before the write, and place them within it.

Owns which records are acceptable, their partition, and their outcome. `write_transaction` owns the transaction,
`transport` the deadline.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from bus import native
from bus.errors import RecordTooLargeError, TopicMissingError
from bus.transports.base import Appended, AppendOutcome, NewRecord
from bus.transports.partitioner import partition_of_hash
from bus.transports.sqlite.write_transaction import LogFile

MAX_RECORD_HEADERS = 128
MAX_RECORD_HEADER_BYTES = 65_536
"""A message may use half of both limits; a dead letter has the message's headers and adds its own."""

__all__ = ["AppendDraft", "append", "drafted"]

_encode = msgspec.msgpack.Encoder().encode


class AppendDraft(msgspec.Struct, frozen=True, gc=False):
    """A record within the size limit, with encoded headers."""

    record: NewRecord
    headers: bytes | None
    size: int


def drafted(record: NewRecord, limit: int) -> AppendDraft | RecordTooLargeError:
    """Prepare *record* for appending, or return the error that refuses it."""
    size = len(record.key or b"") + len(record.value or b"")
    if not record.headers:
        return AppendDraft(record, None, size) if size <= limit else _too_large(size, limit)
    headers = _encode(record.headers)
    if len(record.headers) > MAX_RECORD_HEADERS or len(headers) > MAX_RECORD_HEADER_BYTES:
        return RecordTooLargeError(
            f"{len(record.headers)} headers of {len(headers)} bytes are more than the "
            f"{MAX_RECORD_HEADERS} this log takes"
        )
    size += len(headers)
    return AppendDraft(record, headers, size) if size <= limit else _too_large(size, limit)


def append(
    log: LogFile, drafts: Sequence[AppendDraft | RecordTooLargeError], now_ms: int, turns: Iterator[int]
) -> list[AppendOutcome]:
    """Stage every draft that can be placed; return one outcome each, valid once the transaction commits.

    One loop with everything inline: it runs for each record while the event loop waits for the GIL.
    """
    outcomes: list[AppendOutcome] = []
    hashes = iter(
        native.murmur2_many(
            [draft.record.key for draft in drafts if isinstance(draft, AppendDraft) and draft.record.key is not None]
        )
    )
    topics, waiting = log.topics, log.staged
    for draft in drafts:
        if not isinstance(draft, AppendDraft):
            outcomes.append(draft)
            continue
        record = draft.record
        hashed = None if record.key is None else next(hashes)
        topic = topics.get(record.topic)
        if topic is None:
            outcomes.append(TopicMissingError(f"no topic {record.topic[:249]!r}; create it with `sealbus topic apply`"))
            continue
        if hashed is not None and record.partition is None:
            partition = partition_of_hash(hashed, len(topic.parts))
        elif record.partition is None:
            partition = next(turns) % len(topic.parts)
        elif 0 <= record.partition < len(topic.parts):
            partition = record.partition
        else:
            outcomes.append(
                TopicMissingError(
                    f"topic {record.topic!r} has no partition {record.partition}, only {len(topic.parts)}"
                )
            )
            continue
        part = topic.parts[partition]
        staged = waiting.get(part) or log.stage(part)
        offset = staged.next_offset
        staged.next_offset = offset + 1
        staged.size += draft.size
        staged.rows += (part, offset, now_ms, record.key, record.value, draft.headers)
        log.touched.add(topic.id)
        outcomes.append(Appended(record.topic, partition, offset, now_ms))
    return outcomes


def _too_large(size: int, limit: int) -> RecordTooLargeError:
    return RecordTooLargeError(f"a record of {size} bytes is larger than the {limit} this log takes")
