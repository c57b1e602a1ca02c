"""Dead letters as a reader sees them: one value per letter, and the letters of a namespace.

Owns the meaning of their headers. Writing them is in `consumers.deadletters.records`, the state of a letter in
`consumers.deadletters.letter_state`.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Mapping
from typing import Annotated, Any

import msgspec

from bus.errors import ContractError
from bus.protocol import canonical, sealing
from bus.protocol.sealing import Message
from bus.protocol.timestamps import parse_ms
from bus.telemetry.terminal import printable
from bus.topics.names import read_topic
from bus.transports.base import Headers, Record, Transport
from bus.transports.read_all import scan_topic
from consumers.deadletters.park_orders import PARKED

__all__ = [
    "DeadLetter",
    "LetterFacts",
    "dead_letter_ends",
    "list_dead_letters",
    "list_letter_facts",
    "read_dead_letter",
    "read_letter_facts",
]

# The first header that the bus adds; headers before the last one of this name came with the record.
_FIRST_ADDED = "__dlq.errors.topic"
_MAX_SHOWN = 600
_FRAME = re.compile(r'File "([^"\n]{1,4096})", line (\d{1,9})')
_MAX_TRACE = 16_384
_MAX_WHERE = 120
# Gates of these reasons refuse bytes that are no message: what such bytes call their sender is nobody's.
_NO_MESSAGE = frozenset(("malformed", "unsupported_protocol"))
_ADDED = ("__dlq.", "sb-dlq-", "sb-redrive-")


class _Stub(msgspec.Struct, frozen=True):
    """The value of a stub: size and hash of the original value, which was too large to store."""

    sha256: Annotated[str, msgspec.Meta(pattern="^sha256:[0-9a-f]{64}$")]


class _SealedSender(msgspec.Struct, frozen=True):
    id: str = ""


class _SealedMetadata(msgspec.Struct, frozen=True):
    sender: _SealedSender


class _Envelope(msgspec.Struct, frozen=True):
    """The sender in an envelope: all else is skipped, the payload too."""

    metadata: _SealedMetadata


_decode_envelope = msgspec.json.Decoder(_Envelope).decode


class LetterFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What the headers of one dead letter say; its value is not parsed.

    *topic*, *partition* and *offset* locate the record that failed.
    """

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
    redrive_count: int
    is_stub: bool
    record: Record
    where: str = ""
    """The line of code that raised the error, FILE:LINE; empty if unknown. A traceback has the folder of the file."""

    @property
    def headers(self) -> Headers:
        """The headers the record came with."""
        headers = self.record.headers
        if (at := _added_at(headers)) is not None:
            return headers[:at]
        return tuple(header for header in headers if not header[0].startswith(_ADDED))

    @property
    def place(self) -> str:
        """The location of the letter itself: TOPIC/PARTITION/OFFSET.

        It is unique unless the topic is deleted and created again.
        """
        return f"{self.record.topic}/{self.record.partition}/{self.record.offset}"

    @property
    def origin(self) -> str:
        """The location where its message was first read, TOPIC/PARTITION/OFFSET; empty if unknown."""
        return f"{self.topic}/{self.partition}/{self.offset}" if self.topic else ""

    @property
    def was_set_aside(self) -> bool:
        """Whether an operator parked the message (`sealbus group list --park`)."""
        return self.reason == "rejected" and self.error.partition(":")[0] == PARKED

    @property
    def content(self) -> str:
        """The hash of the value that died; a stub tells that of the value it stands for.

        A null value has the hash of no bytes.
        """
        value = self.record.value or b""
        if self.is_stub:
            try:
                return msgspec.json.decode(value, type=_Stub).sha256
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                pass
        return canonical.digest(value)

    @property
    def failed_ms(self) -> int:
        """The time of death; if that is unreadable, the append time of the dead letter."""
        found = parse_ms(self.failed_at)
        return self.record.timestamp_ms if found is None else found

    @property
    def topic_type(self) -> str:
        """The type of the topic that the letter lies in, else of the one that its record came from; or ""."""
        for topic in (self.record.topic, self.topic):
            if (name := read_topic(topic)) is not None and name.message_type:
                return name.message_type
        return ""

    @property
    def message_type(self) -> str:
        """The type of its topic."""
        return self.topic_type

    @property
    def sender(self) -> str:
        """The id of the sender in the envelope, or ""; nothing else of the value is read."""
        if self.reason in _NO_MESSAGE or self.is_stub:
            return ""
        try:
            return _decode_envelope(self.record.value or b"").metadata.sender.id
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return ""


class DeadLetter(LetterFacts, frozen=True, kw_only=True):
    """One dead letter; *message* is None if its bytes are not a message."""

    message: Message | None

    def __repr__(self) -> str:
        sender = f" from {self.message.metadata.sender.id}" if self.message is not None else ""
        field = f" at {self.pointer}" if self.pointer else ""
        where = f" ({self.where})" if self.where else ""
        summary = f"{self.reason} after {self.attempts} attempts: {self.error.partition(chr(10))[0]}{field}{where}"
        return printable(f"<DeadLetter {self.message_type or self.topic}{sender}: {summary}>")[:_MAX_SHOWN]

    @property
    def message_type(self) -> str:
        """The sealed type, else that of the topic; empty if neither is known."""
        if self.message is not None:
            return self.message.message_type
        name = read_topic(self.topic)
        return name.message_type if name is not None else ""

    @property
    def sender(self) -> str:
        """The sealed sender's id, or ""."""
        return self.message.metadata.sender.id or "" if self.message is not None else ""


def read_dead_letter(record: Record) -> DeadLetter:
    """Read the dead letter in *record*, and parse its value; a missing header reads as empty."""
    return DeadLetter(**_facts_in(record), message=_parse(record))


def read_letter_facts(record: Record) -> LetterFacts:
    """Read the headers of the dead letter in *record*; a missing header reads as empty."""
    return LetterFacts(**_facts_in(record))


def _facts_in(record: Record) -> dict[str, Any]:
    # The bus's own headers come last. Some may be missing, and a sender's headers of the same names, before them, do
    # not replace them.
    own = record.headers[_added_at(record.headers) or 0 :]
    headers = {name: value.decode("utf-8", "replace") for name, value in own}
    known = headers.get
    error = known("sb-dlq-error", "")
    return {
        "reason": known("sb-dlq-reason", ""),
        "gate": known("sb-dlq-gate", ""),
        "error": error,
        "pointer": known("sb-dlq-pointer", ""),
        "group": known("__dlq.errors.group", ""),
        "attempts": _number(known("__dlq.errors.delivery.count", "")),
        "failed_at": known("sb-dlq-failed-at", ""),
        "topic": known("__dlq.errors.topic", ""),
        "partition": _number(known("__dlq.errors.partition", "")),
        "offset": _number(known("__dlq.errors.offset", "")),
        "redrive_count": _number(known("sb-redrive-count", "")),
        "is_stub": "sb-dlq-stub" in headers,
        "record": record,
        "where": _last_frame(error) or known("sb-dlq-where", "")[:_MAX_WHERE],
    }


def _last_frame(error: str) -> str:
    """Return the last line of code in the traceback of *error*, FILE:LINE; or ""."""
    if "\n" not in error:
        return ""
    trace = error[-_MAX_TRACE:].partition("\n")[2]
    at = trace.rfind('File "')
    frame = _FRAME.match(trace, at) if at >= 0 else None
    return "" if frame is None else f"{frame[1]}:{frame[2]}"


async def dead_letter_ends(
    transport: Transport, namespace: str, message_type: str | None = None
) -> dict[tuple[str, int], int]:
    """Return where the dead letter topics of *namespace* (of one type) end, by (topic, partition)."""
    ends = {}
    for topic in sorted(await transport.admin.topics()):
        name = read_topic(topic)
        if (
            name is None
            or name.kind != "dlq"
            or name.namespace != namespace
            or message_type not in (None, name.message_type)
        ):
            continue
        for partition, retained in (await transport.admin.ranges(topic)).items():
            ends[topic, partition] = retained.end
    return ends


async def list_dead_letters(
    transport: Transport,
    namespace: str,
    message_type: str | None = None,
    *,
    ends: Mapping[tuple[str, int], int] | None = None,
) -> AsyncIterator[DeadLetter]:
    """Yield every dead letter of *namespace* (of one type), topic by topic, oldest first within a partition.

    Only those before *ends*, if given.
    """
    async for record in _letter_records(transport, namespace, message_type, ends):
        yield read_dead_letter(record)


async def list_letter_facts(
    transport: Transport,
    namespace: str,
    message_type: str | None = None,
    *,
    ends: Mapping[tuple[str, int], int] | None = None,
) -> AsyncIterator[LetterFacts]:
    """Yield the headers of the same dead letters in the same order; their values are not parsed."""
    async for record in _letter_records(transport, namespace, message_type, ends):
        yield read_letter_facts(record)


async def _letter_records(
    transport: Transport, namespace: str, message_type: str | None, ends: Mapping[tuple[str, int], int] | None
) -> AsyncIterator[Record]:
    if ends is None:
        ends = await dead_letter_ends(transport, namespace, message_type)
    for topic in sorted({topic for topic, _ in ends}):
        async for record in scan_topic(transport, topic):
            if record.offset < ends.get((topic, record.partition), 0):
                yield record


def _added_at(headers: Headers) -> int | None:
    """Return the index of the first header that the bus added; None if it added none."""
    return next((at for at in range(len(headers) - 1, -1, -1) if headers[at][0] == _FIRST_ADDED), None)


def _parse(record: Record) -> Message | None:
    try:
        return sealing.parse(record.value)
    except ContractError:
        return None


def _number(text: str) -> int:
    # States cannot hold all larger numbers, and none is that large.
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 15 else 0  # noqa: PLR2004 - see above
