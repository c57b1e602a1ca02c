"""Choose the partition of each record of an append, and refuse records that no topic accepts.

Owns the choice of a partition (murmur2 of the key, or any) and the refusal of oversized records. Pure: the caller
passes the turn for records without a key.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from bus import native
from bus.errors import BusError, ConfigurationError, RecordTooLargeError, TopicMissingError, TransportError
from bus.transports.base import AppendOutcome, NewRecord
from bus.transports.kafka.cluster.topic_facts import TopicFacts
from bus.transports.kafka.producer.batches import AppendCall, RecordRun
from bus.transports.partitioner import partition_of_hash

__all__ = ["distributed", "likewise", "too_large"]


def distributed(
    call: AppendCall,
    records: Sequence[NewRecord],
    topics: Mapping[str, TopicFacts | BusError],
    *,
    max_record_bytes: int,
    turn: int,
) -> dict[tuple[str, int], RecordRun]:
    """Group the records of *call* by topic and partition, in order; settle at once those that cannot be appended."""
    if len(topics) == 1:
        ((name, facts),) = topics.items()
        if not isinstance(facts, BusError) and facts.partitions:
            found = native.distribute(
                list(records), facts.partitions, max(0, min(max_record_bytes, facts.max_record_bytes))
            )
            if found is not None:
                return {(name, number): RecordRun(call, *location) for number, location in found.items()}
    hashes = iter(native.murmur2_many([record.key for record in records if record.key is not None]))
    locations: dict[tuple[str, int], tuple[list[NewRecord], list[int], list[int]]] = {}
    for index, (record, size) in enumerate(zip(records, native.record_sizes(records), strict=True)):
        hashed = None if record.key is None else next(hashes)
        facts = topics[record.topic]
        fault = facts if isinstance(facts, BusError) else _refusal(record, size, facts, max_record_bytes)
        if fault is not None or isinstance(facts, BusError):
            call.settle(index, likewise(fault))
            continue
        number = record.partition
        if number is None:
            number = turn % facts.partitions if hashed is None else partition_of_hash(hashed, facts.partitions)
        location = locations.get((record.topic, number))
        if location is None:
            location = locations[record.topic, number] = ([], [], [])
        location[0].append(record)
        location[1].append(index)
        location[2].append(size)
    return {where: RecordRun(call, *location) for where, location in locations.items()}


def likewise(fault: BusError | None) -> AppendOutcome:
    """Return a new error of the same kind: an error raised twice would carry two tracebacks."""
    if isinstance(fault, TransportError | ConfigurationError):
        return type(fault)(*fault.args)
    return TransportError(str(fault))


def too_large(record: NewRecord, facts: TopicFacts | None, max_record_bytes: int) -> RecordTooLargeError | None:
    """Return the reason why the topic described by *facts* can never accept *record*, or None."""
    if facts is None:
        return None
    fault = _refusal(
        msgspec.structs.replace(record, partition=None), native.record_sizes([record])[0], facts, max_record_bytes
    )
    return fault if isinstance(fault, RecordTooLargeError) else None


def _refusal(record: NewRecord, size: int, facts: TopicFacts, max_record_bytes: int) -> BusError | None:
    if size > facts.max_record_bytes or size > max_record_bytes:
        # *size* is an upper bound: only records near the limit are counted exactly.
        exact = (
            len(record.key or b"")
            + len(record.value or b"")
            + sum(len(name) + len(value) for name, value in record.headers)
        )
        if exact > max_record_bytes or size > facts.max_record_bytes:
            max_bytes = min(max_record_bytes, facts.max_record_bytes)
            return RecordTooLargeError(
                f"a record of {exact} bytes is larger than {record.topic} takes ({max_bytes} bytes with its headers)"
            )
    if record.partition is not None and not 0 <= record.partition < facts.partitions:
        return TopicMissingError(f"topic {record.topic!r} has no partition {record.partition}")
    return None
