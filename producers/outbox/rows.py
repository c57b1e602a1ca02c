"""The rows of an outbox, and the seam between the relay and the database that holds them.

Owns the values and what a row's record is. Does not own SQL: `sqlite` and `postgres` beside it fulfil the Protocol.
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
    """The values of a row to insert, in the order of the columns."""

    message_id: str
    added_ms: int
    topic: str
    key: bytes | None
    value: bytes
    headers: bytes


class PendingRow(msgspec.Struct, frozen=True):
    """A row that is to be sent."""

    id: int
    message_id: str
    topic: str
    key: bytes | None
    value: bytes
    headers: bytes | None


class Backlog(msgspec.Struct, frozen=True, kw_only=True):
    """What waits for one topic. *error* is the newest of those that were refused for ever."""

    topic: str
    pending: int
    oldest_ms: int | None
    failed: int
    error: str | None


class Rows(Protocol):
    """The table, as a relay uses it.

    Every method raises InboxError where the database cannot be used, and can be called again.
    """

    async def open(self) -> None:
        """Connect, and make the table where it is missing."""

    async def lead(self) -> bool:
        """Whether this is the one relay of the table: it stays so until it is closed, dies or loses the database."""

    async def pending(self, most: int, *, but: Collection[str] = ()) -> Sequence[PendingRow]:
        """The first rows that are to be sent, in the order of ids, less those of the topics in *but*."""

    async def settle(self, sent: Sequence[int], failed: Mapping[int, str]) -> bool:
        """Delete what was sent, and mark what is refused for ever.

        False: another relay leads by now, nothing was done.
        """

    async def backlog(self) -> Sequence[Backlog]:
        """What waits, topic by topic. Raises ConfigurationError where there is no such table."""

    async def close(self) -> None:
        """Let another relay lead."""


def row_of(sealed: SealedRecord, added_ms: int) -> NewRow:
    """The row that stands for *sealed*."""
    record = sealed.record
    assert record.value is not None  # noqa: S101 - a sealed message has one
    return NewRow(sealed.message_id, added_ms, record.topic, record.key, record.value, _encode(record.headers))


def sealed_of(row: PendingRow) -> SealedRecord:
    """The very record that was sealed.

    Raises NameRefusedError, msgspec's DecodeError and UnicodeDecodeError for a row that stands for none.
    """
    check_topic_name(row.topic)
    headers = _headers.decode(row.headers) if row.headers else ()
    message_type = next((value.decode("utf-8", "replace") for name, value in headers if name == "sb-type"), "other")
    return SealedRecord(row.message_id, message_type, NewRecord(row.topic, row.key, row.value, headers))
