"""Sealed messages as records: their key and headers (PROTOCOL.md section 5).

Headers are hints for tools; gates judge only the value.
"""

from __future__ import annotations

import msgspec

from bus.protocol import sealing
from bus.protocol.identifiers import is_traceparent
from bus.protocol.sealing import Message
from bus.transports.base import NewRecord

__all__ = ["RECORD_CONTENT_TYPE", "SealedRecord", "record_of", "sealed_as"]

RECORD_CONTENT_TYPE = b"application/vnd.sealbus.v1+json"


class SealedRecord(msgspec.Struct, frozen=True, gc=False):
    """A sealed message and the record that carries it."""

    message_id: str
    message_type: str
    record: NewRecord
    made: Message | None = None
    older: SealedRecord | None = None
    """The same message in the older version that it is sent in, too; it is appended first."""

    @property
    def records(self) -> tuple[NewRecord, ...]:
        """The records to be appended, in this order, as one."""
        return (self.record,) if self.older is None else (self.older.record, self.record)

    @property
    def message(self) -> Message:
        """The full message; parsed from the record if a template made it."""
        return self.made or sealing.parse(self.record.value)


def record_of(message: Message, topic: str) -> NewRecord:
    """Return the record of *message* for *topic*."""
    metadata = message.metadata
    headers: list[tuple[str, bytes]] = [
        ("content-type", RECORD_CONTENT_TYPE),
        ("sb-type", metadata.message_type.encode()),
        ("sb-id", metadata.message_id.encode()),
    ]
    if metadata.recipient is not None:
        headers.append(("sb-to", (metadata.recipient.id or metadata.recipient.role or "").encode()))
    if metadata.traceparent is not None and is_traceparent(metadata.traceparent):
        headers.append(("traceparent", metadata.traceparent.encode()))
    return NewRecord(topic, message.key, message.value, tuple(headers))


def sealed_as(message: Message, topic: str) -> SealedRecord:
    """Return *message* with its record for *topic*."""
    return SealedRecord(message.message_id, message.message_type, record_of(message, topic), message)
