"""Reading dead letters back: one value per letter, and the letters of a namespace.

Owns what the headers of design section 3 mean to a reader. Writing them is `consumers.deadletter`'s; redrive comes with its own step.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

import msgspec

from bus import sealing
from bus.errors import ContractError
from bus.sealing import Message
from bus.topics import read_topic
from bus.transports.base import Headers, Record, Transport
from bus.transports.scanning import scan

__all__ = ["DeadLetter", "list_dead_letters", "read_dead_letter"]


class DeadLetter(msgspec.Struct, frozen=True, kw_only=True):
    """One dead letter; *message* is None where its bytes are no message. *topic*, *partition*, *offset* are where it died."""

    reason: str
    gate: str
    error: str
    pointer: str
    group: str
    attempts: int
    failed_at: str
    topic: str
    partition: int
    offset: int
    is_stub: bool
    record: Record
    message: Message | None

    @property
    def headers(self) -> Headers:
        """The headers the record came with."""
        return tuple(header for header in self.record.headers if not header[0].startswith(("__dlq.", "sb-dlq-", "sb-redrive-")))


def read_dead_letter(record: Record) -> DeadLetter:
    """What the dead letter in *record* says; a header that is missing reads as empty."""
    # The bus's own headers come last, so they win over any that the sender put there.
    headers = {name: value.decode("utf-8", "replace") for name, value in record.headers}
    return DeadLetter(
        reason=headers.get("sb-dlq-reason", ""),
        gate=headers.get("sb-dlq-gate", ""),
        error=headers.get("sb-dlq-error", ""),
        pointer=headers.get("sb-dlq-pointer", ""),
        group=headers.get("__dlq.errors.group", ""),
        attempts=_number(headers.get("__dlq.errors.delivery.count", "")),
        failed_at=headers.get("sb-dlq-failed-at", ""),
        topic=headers.get("__dlq.errors.topic", ""),
        partition=_number(headers.get("__dlq.errors.partition", "")),
        offset=_number(headers.get("__dlq.errors.offset", "")),
        is_stub="sb-dlq-stub" in headers,
        record=record,
        message=_parse(record),
    )


async def list_dead_letters(transport: Transport, namespace: str, message_type: str | None = None) -> AsyncIterator[DeadLetter]:
    """Every dead letter of *namespace* (of one type), topic by topic, oldest first within a partition."""
    for topic in sorted(await transport.admin.topics()):
        name = read_topic(topic)
        if name is None or name.kind != "dlq" or name.namespace != namespace or message_type not in (None, name.message_type):
            continue
        async for record in scan(transport, topic):
            yield read_dead_letter(record)


def _parse(record: Record) -> Message | None:
    try:
        return sealing.parse(record.value)
    except ContractError:
        return None


def _number(text: str) -> int:
    return int(text) if text.isascii() and text.isdigit() else 0
