"""Reading a whole topic without a group: every kept record, partition by partition, a page at a time.

Owns the loop over pages, and where whoever follows a topic has to begin anew. What the records mean is the caller's;
following is `consumers.cli.tail.topic_reader`'s and, for answers, `producers.requests.reply_reader`'s.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from types import MappingProxyType

from bus.transports.base import PartitionRange, Record, Transport

__all__ = ["begun_anew", "scan"]

_PAGE_RECORDS = 500
_PAGE_BYTES = 16 * 1_048_576


async def scan(
    transport: Transport, topic: str, starts: Mapping[int, int] = MappingProxyType({})
) -> AsyncIterator[Record]:
    """Every record that *topic* has now, oldest first within a partition.

    From *starts* on where given. Raises TopicMissingError.
    """
    for partition, kept in sorted((await transport.admin.ranges(topic)).items()):
        offset = max(kept.start, starts.get(partition, 0))
        while offset < kept.end and (
            records := await transport.read(topic, partition, offset, max_records=_PAGE_RECORDS, max_bytes=_PAGE_BYTES)
        ):
            for record in records:
                yield record
            offset = records[-1].offset + 1


def begun_anew(offsets: Mapping[int, int], ranges: Mapping[int, PartitionRange]) -> dict[int, int]:
    """Where to read in partitions that *offsets* does not know yet, or knows further than they reach.

    Their topic was deleted and made again.
    """
    return {
        partition: kept.start
        for partition, kept in ranges.items()
        if partition not in offsets or kept.end < offsets[partition]
    }
