"""Which partition each record of an append belongs to, and which records no topic takes.

Owns the choice of a partition (the key's, by murmur2, or any) and refusing what is too large. Pure, but for the turn that keyless records take.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache

from bus.errors import BusError, ConfigurationError, RecordTooLargeError, TopicMissingError, TransportError
from bus.partitioning import partition_of
from bus.transports.base import NewRecord, Outcome
from bus.transports.kafka.batching import BATCH_OVERHEAD, Call, Span, record_bytes
from bus.transports.kafka.link import TopicFacts

__all__ = ["distributed", "likewise"]

_KEYS = 65_536

_partition_of_key = lru_cache(_KEYS)(partition_of)


def distributed(
    call: Call, records: Sequence[NewRecord], topics: Mapping[str, TopicFacts | BusError], *, max_record_bytes: int, turn: int
) -> dict[tuple[str, int], Span]:
    """The records of *call* by topic and partition, each in order; what cannot be appended is settled at once."""
    places: dict[tuple[str, int], tuple[list[NewRecord], list[int]]] = {}
    for index, record in enumerate(records):
        facts = topics[record.topic]
        fault = facts if isinstance(facts, BusError) else _refusal(record, facts, max_record_bytes)
        if fault is not None or isinstance(facts, BusError):
            call.settle(index, likewise(fault))
            continue
        number = record.partition
        if number is None:
            number = turn % facts.partitions if record.key is None else _partition_of_key(record.key, facts.partitions)
        place = places.get((record.topic, number))
        if place is None:
            place = places[record.topic, number] = ([], [])
        place[0].append(record)
        place[1].append(index)
    return {where: Span(call, chosen, indices) for where, (chosen, indices) in places.items()}


def likewise(fault: BusError | None) -> Outcome:
    """A new error of the same kind: one that is raised twice would carry two tracebacks."""
    if isinstance(fault, TransportError | ConfigurationError):
        return type(fault)(*fault.args)
    return TransportError(str(fault))


def _refusal(record: NewRecord, facts: TopicFacts, max_record_bytes: int) -> BusError | None:
    size = len(record.key or b"") + len(record.value or b"") + sum(len(name) + len(value) for name, value in record.headers)
    most = max_record_bytes if facts.max_batch_bytes is None else min(max_record_bytes, facts.max_batch_bytes)
    if size > most or (facts.max_batch_bytes is not None and record_bytes(record) + BATCH_OVERHEAD > facts.max_batch_bytes):
        return RecordTooLargeError(f"a record of {size} bytes is larger than {record.topic} takes ({most} bytes with its headers)")
    if record.partition is not None and not 0 <= record.partition < facts.partitions:
        return TopicMissingError(f"topic {record.topic!r} has no partition {record.partition}")
    return None
