"""The rows of an outbox, and the interface between the relay and the database.

Owns the values, and the conversion between rows and records. The SQL is in `sqlite` and `postgres` beside it, which
implement the Protocol.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Protocol

import msgspec

from bus.transports.base import Headers, NewRecord, check_topic_name
from producers.sealing.sealed_record import SealedRecord

__all__ = ["Backlog", "NewRow", "PendingRow", "Rows", "row_of", "sealed_of"]

_encode = msgspec.msgpack.Encoder().encode
_headers = msgspec.msgpack.Decoder(Headers)


class NewRow(msgspec.Struct, frozen=True):
    """The values of a row to insert, in column order."""

    message_id: str
    added_ms: int
    topic: str
    key: bytes | None
    value: bytes
    headers: bytes


class PendingRow(msgspec.Struct, frozen=True):
    """A row that is still to be sent."""

    id: int
    message_id: str
    topic: str
    key: bytes | None
    value: bytes
    headers: bytes | None


class Backlog(msgspec.Struct, frozen=True, kw_only=True):
    """The waiting rows of one topic; *error* is the newest permanent refusal."""

    topic: str
    pending: int
    oldest_ms: int | None
    failed: int
    error: str | None


class Rows(Protocol):
    """The table, as a relay uses it.

    Every method raises InboxError if the database cannot be used, and can then be called again.
    """

    async def open(self) -> None:
        """Connect, and create the table if it is missing."""

    async def lead(self) -> bool:
        """Tell whether this relay is the only one of the table; it remains so until it closes, dies or loses the
        database.
        """

    async def pending(self, limit: int, *, but: Collection[str] = ()) -> Sequence[PendingRow]:
        """Return the first *limit* rows to be sent, in id order, without those of the topics in *but*."""

    async def settle(self, sent: Sequence[int], failed: Mapping[int, str]) -> bool:
        """Delete the sent rows, and mark the permanently refused ones with their error.

        Returns False, without a change, if another relay leads.
        """

    async def backlog(self) -> Sequence[Backlog]:
        """Return the waiting rows by topic. Raises ConfigurationError if the table is missing."""

    async def close(self) -> None:
        """Give up the lead, so that another relay can take it."""


def row_of(sealed: SealedRecord, added_ms: int) -> NewRow:
    """Return the row of *sealed*."""
    record = sealed.record
    assert record.value is not None  # noqa: S101 - a sealed message has one
    return NewRow(sealed.message_id, added_ms, record.topic, record.key, record.value, _encode(record.headers))


def sealed_of(row: PendingRow) -> SealedRecord:
    """Return exactly the record that was sealed.

    Raises NameRefusedError, msgspec's DecodeError and UnicodeDecodeError for a row that holds no such record.
    """
    check_topic_name(row.topic)
    headers = _headers.decode(row.headers) if row.headers else ()
    message_type = next((value.decode("utf-8", "replace") for name, value in headers if name == "sb-type"), "other")
    return SealedRecord(row.message_id, message_type, NewRecord(row.topic, row.key, row.value, headers))
