"""The recorded messages of a log, topic by topic and one page at a time.

Owns the walk. Records that are not messages are skipped; `verify` reports them.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable
from typing import NamedTuple

from bus.errors import ContractError, TopicMissingError
from bus.protocol import sealing
from bus.protocol.sealing import Message
from bus.transports.base import Transport
from bus.transports.read_all import scan_topic

__all__ = ["RecordedMessage", "recorded_messages"]


class RecordedMessage(NamedTuple):
    """A message, and where it lies: `TOPIC/PARTITION/OFFSET`."""

    topic: str
    message: Message
    place: str


async def recorded_messages(
    transport: Transport, topics: Iterable[str], *, on_progress: Callable[[int, int], object] = lambda *_: None
) -> AsyncIterator[RecordedMessage]:
    """Yield every message that is now in *topics*; missing topics are skipped.

    *on_progress* gets how many records were read, and of how many.
    """
    sizes: dict[str, int] = {}
    for topic in topics:
        try:
            sizes[topic] = sum(
                retained.end - retained.start for retained in (await transport.admin.ranges(topic)).values()
            )
        except TopicMissingError:
            continue
    seen, total = 0, sum(sizes.values())
    for topic in sizes:
        async for record in scan_topic(transport, topic):
            seen += 1
            on_progress(seen, total)
            try:
                message = sealing.parse(record.value)
            except ContractError:
                continue
            yield RecordedMessage(topic, message, f"{topic}/{record.partition}/{record.offset}")
