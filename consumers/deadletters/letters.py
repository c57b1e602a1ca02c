"""Dead letters as a reader sees them: one value per letter, and the letters of a namespace.

Owns the meaning of their headers. Writing them is in `consumers.deadletters.records`, the state of a letter in
`consumers.deadletters.letter_state`.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Mapping
from typing import Annotated

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

__all__ = ["DeadLetter", "dead_letter_ends", "list_dead_letters", "read_dead_letter"]

# The first header that the bus adds; headers before the last one of this name came with the record.
_FIRST_ADDED = "__dlq.errors.topic"
_MAX_SHOWN = 600
_LAST_FRAME = re.compile(r'.*File "([^"\n]*)", line (\d+)', re.DOTALL)
_ADDED = ("__dlq.", "sb-dlq-", "sb-redrive-")


class _Stub(msgspec.Struct, frozen=True):
    """The value of a stub: size and hash of the original value, which was too large to store."""

    sha256: Annotated[str, msgspec.Meta(pattern="^sha256:[0-9a-f]{64}$")]


class DeadLetter(msgspec.Struct, frozen=True, kw_only=True):
    """One dead letter; *message* is None if its bytes are not a message.

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
    message: Message | None

    def __repr__(self) -> str:
        sender = f" from {self.message.metadata.sender.id}" if self.message is not None else ""
        field = f" at {self.pointer}" if self.pointer else ""
        text, _, trace = self.error.partition("\n")
        frame = _LAST_FRAME.search(trace)
        location = f" ({frame[1]}:{frame[2]})" if frame else ""
        summary = f"{self.reason} after {self.attempts} attempts: {text}{field}{location}"
        return printable(f"<DeadLetter {self.message_type or self.topic}{sender}: {summary}>")[:_MAX_SHOWN]

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
    """Read the dead letter in *record*; a missing header reads as empty."""
    # The bus's own headers come last. Some may be missing, and a sender's headers of the same names, before them, do
    # not replace them.
    own = record.headers[_added_at(record.headers) or 0 :]
    headers = {name: value.decode("utf-8", "replace") for name, value in own}
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
        redrive_count=_number(headers.get("sb-redrive-count", "")),
        is_stub="sb-dlq-stub" in headers,
        record=record,
        message=_parse(record),
    )


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
    if ends is None:
        ends = await dead_letter_ends(transport, namespace, message_type)
    for topic in sorted({topic for topic, _ in ends}):
        async for record in scan_topic(transport, topic):
            if record.offset < ends.get((topic, record.partition), 0):
                yield read_dead_letter(record)


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
