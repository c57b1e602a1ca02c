"""Read a topic without a group: one record, or every kept one, partition by partition, one page at a time.

Owns the loop over pages, and the start offsets for a reader whose topic was recreated. Following a topic is done in
`bus.topics.topic_reader` and, for replies, `producers.requests.reply_reader`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from types import MappingProxyType

from bus.transports.base import PartitionRange, Record, Transport

__all__ = ["new_partition_starts", "read_partition", "read_record", "scan_topic"]

# A page and the one before it are in memory at once, and between two pages other tasks have their turn.
_PAGE_RECORDS = 250
_PAGE_BYTES = 2 * 1_048_576
_MAX_RECORD_BYTES = 64 * 1_048_576


async def scan_topic(
    transport: Transport, topic: str, starts: Mapping[int, int] = MappingProxyType({})
) -> AsyncIterator[Record]:
    """Yield every record that is now in *topic*, oldest first within a partition.

    Starts at *starts* (partition -> offset) where given. Raises TopicMissingError.
    """
    for partition, retained in sorted((await transport.admin.ranges(topic)).items()):
        async for record in _within(
            transport, topic, partition, max(retained.start, starts.get(partition, 0)), retained.end
        ):
            yield record


async def read_partition(transport: Transport, topic: str, partition: int) -> AsyncIterator[Record]:
    """Yield every record that is now in one partition of *topic*, oldest first. Raises TopicMissingError."""
    retained = (await transport.admin.ranges(topic)).get(partition)
    if retained is not None:
        async for record in _within(transport, topic, partition, retained.start, retained.end):
            yield record


async def _within(transport: Transport, topic: str, partition: int, offset: int, end: int) -> AsyncIterator[Record]:
    while offset < end and (
        records := await transport.read(topic, partition, offset, max_records=_PAGE_RECORDS, max_bytes=_PAGE_BYTES)
    ):
        for record in records:
            yield record
        offset = records[-1].offset + 1


async def read_record(transport: Transport, topic: str, partition: int, offset: int) -> Record | None:
    """Return the record at this place; None where no record is, or retention has deleted it. Raises BusError."""
    if partition not in await transport.admin.ranges(topic):
        return None
    found = await transport.read(topic, partition, offset, max_records=1, max_bytes=_MAX_RECORD_BYTES)
    return found[0] if found and found[0].offset == offset else None


def new_partition_starts(offsets: Mapping[int, int], ranges: Mapping[int, PartitionRange]) -> dict[int, int]:
    """Return the start offset of each partition that is new or recreated since *offsets* were taken.

    A partition counts as recreated if its end lies below the known offset: the topic was deleted and created again.
    """
    return {
        partition: retained.start
        for partition, retained in ranges.items()
        if partition not in offsets or retained.end < offsets[partition]
    }
