"""Reading a whole topic without a group: every kept record, partition by partition, a page at a time.

Owns the loop over pages. What the records mean is the caller's; following a topic as it grows is `sealbus tail`'s.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

from bus.transports.base import Record, Transport

__all__ = ["scan"]

_PAGE_RECORDS = 500
_PAGE_BYTES = 16 * 1_048_576


async def scan(transport: Transport, topic: str) -> AsyncIterator[Record]:
    """Every record that *topic* has now, oldest first within a partition. Raises TopicMissingError."""
    for partition, kept in sorted((await transport.admin.ranges(topic)).items()):
        offset = kept.start
        while offset < kept.end and (
            records := await transport.read(topic, partition, offset, max_records=_PAGE_RECORDS, max_bytes=_PAGE_BYTES)
        ):
            for record in records:
                yield record
            offset = records[-1].offset + 1
