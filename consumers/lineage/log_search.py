"""Search a log for the messages that belong together: by id, by seal, by cause, by conversation.

Owns which topics hold messages and which hold copies of them, the passes over the log, and what retention can have
taken. A record that is no message any more is found by what is left of it: the members that can still be read, else
its header `sb-id`, which is only a hint.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from typing import Final

import msgspec

from bus.errors import ContractError, TopicMissingError
from bus.protocol import canonical, sealing
from bus.protocol.envelope import Statement
from bus.protocol.sealing import Message
from bus.protocol.timestamps import parse_ms
from bus.topics.names import message_topic, read_topic
from bus.transports.base import Record, Transport
from bus.transports.read_all import scan

__all__ = [
    "ORIGINALS",
    "KeptTimes",
    "Lineage",
    "StoredCopy",
    "find_conversation",
    "find_lineage",
    "find_message",
    "stored_copy",
]

ORIGINALS: Final = frozenset({"message", "reply", "mail"})
"""Kinds of topics that publishers append to. Every other kind holds the same bytes once more."""
_COPIES: Final = frozenset({"dlq", "retry", "redrive"})
_ONE: Final = {"max_records": 1, "max_bytes": 2 * 1_048_576}
_MOST_PASSES: Final = 64
_MOST_BESIDES: Final = 20_000
"""Messages of a conversation that are kept besides those that are looked for."""


class StoredCopy(msgspec.Struct, frozen=True):
    """One record of a message, as it lies in the log.

    *fault* says why its bytes are no message. Then *message* is what they say in spite of it, or None.
    """

    record: Record
    kind: str
    """The purpose of its topic, as in `bus.topics.names`."""
    message_id: str
    seal: str
    causation_id: str
    conversation_id: str
    message: Message | None
    fault: ContractError | None

    @property
    def place(self) -> str:
        return f"{self.record.topic}/{self.record.partition}/{self.record.offset}"


class KeptTimes(msgspec.Struct, frozen=True):
    """By topic, the append time before which retention may have taken records; a topic that lost none is not in it."""

    namespace: str
    lost_before_ms: Mapping[str, int]

    def may_have_lost(self, statement: Statement | None) -> bool:
        """Return whether the message of *statement*, None where nothing is known of it, can have been in the log.

        A message of any type lies in a reply topic if it is an answer, which is addressed to one agent.
        """
        if statement is None:
            return bool(self.lost_before_ms)
        own = message_topic(self.namespace, statement.message_type)
        is_answer = statement.recipient is not None and statement.recipient.id is not None
        sealed_ms = parse_ms(statement.timestamp) or 0
        return any(
            sealed_ms <= before_ms
            for topic, before_ms in self.lost_before_ms.items()
            if topic == own or (is_answer and not _is_typed(topic))
        )


class Lineage(msgspec.Struct, frozen=True):
    """Everything that a log has of the causes of one message: their records, and those of what they caused."""

    copies: Sequence[StoredCopy]
    kept: KeptTimes


class _GlancedMetadata(msgspec.Struct):
    message_id: str = ""
    causation_id: str = ""
    conversation_id: str = ""


class _GlancedVerification(msgspec.Struct):
    seal: str = ""


class _GlancedEnvelope(msgspec.Struct):
    metadata: _GlancedMetadata = msgspec.field(default_factory=_GlancedMetadata)
    verification: _GlancedVerification = msgspec.field(default_factory=_GlancedVerification)


_glance: Final = msgspec.json.Decoder(_GlancedEnvelope).decode


class _Wanted:
    """What a pass looks for."""

    def __init__(self, ids: Iterable[str] = (), conversations: Iterable[str] = ()) -> None:
        self.ids = set(ids)
        self.seals: set[str] = set()
        self.conversations = set(conversations)

    def size(self) -> int:
        return len(self.ids) + len(self.seals) + len(self.conversations)

    def names(self, copy: StoredCopy) -> bool:
        """Return whether *copy* is looked for, or was caused by what is."""
        return copy.message_id in self.ids or copy.seal in self.seals or copy.causation_id in self.ids

    def learn(self, copy: StoredCopy) -> None:
        """Look for what *copy* says of its causes, too, if it is one of them itself."""
        if copy.message_id not in self.ids and copy.seal not in self.seals:
            return
        self.ids |= {name for name in (copy.message_id, copy.causation_id) if name}
        if copy.message is not None:
            verification = copy.message.verification
            self.ids |= {link.statement.message_id for link in verification.proof_chain or ()}
            self.seals |= set((verification.parents or ())[:1])
            for link in verification.proof_chain or ():
                self.seals |= set((link.statement.parents or ())[:1])


async def find_lineage(
    transport: Transport, namespace: str, message_id: str, *, told: Callable[[int], object] = int
) -> Lineage:
    """Return what the log has of *message_id* and its causes; without any record of it, there is none of that id.

    *told* is given the number of records read so far. The log is read two to three times, and once more for each 16
    causes in other conversations.
    """
    topics = await _topics(transport, namespace, ORIGINALS | _COPIES)
    wanted, found, read = _Wanted([message_id]), list[StoredCopy](), 0
    for _ in range(_MOST_PASSES):
        before, found, besides = wanted.size(), [], 0
        async for copy in _copies(transport, topics):
            read += 1
            if read % 1000 == 0:
                told(read)
            if wanted.names(copy):
                found.append(_parsed(copy))
            elif copy.conversation_id in wanted.conversations and besides < _MOST_BESIDES:
                besides += 1
                found.append(_parsed(copy))
        if not any(copy.message_id == message_id for copy in found):
            # Its record is gone: what it caused still tells of it.
            wanted.ids |= {copy.message_id for copy in found}
        ids = set(wanted.ids)
        wanted.conversations |= {copy.conversation_id for copy in found if copy.message_id in ids}
        _learn_all(wanted, found)
        if wanted.size() == before:
            break
    return Lineage(found, await _kept_times(transport, namespace, topics))


async def find_message(
    transport: Transport, namespace: str, message_id: str, *, told: Callable[[int], object] = int
) -> list[StoredCopy]:
    """Return every record of the message, its dead letters, retries and redrives, and of what it has caused."""
    found, read = [], 0
    async for copy in _copies(transport, await _topics(transport, namespace, ORIGINALS | _COPIES)):
        read += 1
        if read % 1000 == 0:
            told(read)
        if message_id in (copy.message_id, copy.causation_id):
            found.append(_parsed(copy))
    return found


async def find_conversation(
    transport: Transport, namespace: str, conversation_id: str, *, told: Callable[[int], object] = int
) -> Sequence[StoredCopy]:
    """Return every record of the conversation, its dead letters, retries and redrives, too."""
    found, read = [], 0
    async for copy in _copies(transport, await _topics(transport, namespace, ORIGINALS | _COPIES)):
        read += 1
        if read % 1000 == 0:
            told(read)
        if copy.conversation_id == conversation_id:
            found.append(_parsed(copy))
    return found


def _learn_all(wanted: _Wanted, found: Sequence[StoredCopy]) -> None:
    """Follow the causes through *found* as far as they lead: the next pass need not find each of them."""
    while True:
        before = wanted.size()
        for copy in found:
            wanted.learn(copy)
        if wanted.size() == before:
            return


async def _topics(transport: Transport, namespace: str, kinds: frozenset[str]) -> dict[str, str]:
    """Return topics of *kinds* in *namespace*, with their kinds."""
    found: dict[str, str] = {}
    for topic in sorted(await transport.admin.topics()):
        name = read_topic(topic)
        if name is not None and name.namespace == namespace and name.kind in kinds:
            found[topic] = name.kind
    return found


async def _copies(transport: Transport, topics: Mapping[str, str]) -> AsyncIterator[StoredCopy]:
    for topic, kind in topics.items():
        try:
            async for record in scan(transport, topic):
                yield _copy_of(record, kind)
        except TopicMissingError:
            continue


def _copy_of(record: Record, kind: str) -> StoredCopy:
    seen = _glance_at(record)
    return StoredCopy(
        record=record,
        kind=kind,
        message_id=seen.metadata.message_id,
        seal=seen.verification.seal,
        causation_id=seen.metadata.causation_id,
        conversation_id=seen.metadata.conversation_id,
        message=None,
        fault=None,
    )


def stored_copy(record: Record, kind: str) -> StoredCopy:
    """Return what *record* of a topic of *kind* holds, whatever that is."""
    return _parsed(_copy_of(record, kind))


def _glance_at(record: Record) -> _GlancedEnvelope:
    try:
        seen = _glance(record.value or b"")
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        seen = _GlancedEnvelope()
    if not seen.metadata.message_id:
        seen.metadata.message_id = dict(record.headers).get("sb-id", b"").decode("utf-8", "replace")
    return seen


def _parsed(copy: StoredCopy) -> StoredCopy:
    """Return *copy* with its message and the fault of its bytes."""
    value = copy.record.value
    try:
        return msgspec.structs.replace(copy, message=sealing.parse(value))
    except ContractError as error:
        fault = error.with_traceback(None)
    try:
        said = sealing.parse(canonical.encode(msgspec.json.decode(value or b"")))
    except (ContractError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        said = None
    return msgspec.structs.replace(copy, message=said, fault=fault)


async def _kept_times(transport: Transport, namespace: str, topics: Mapping[str, str]) -> KeptTimes:
    lost: dict[str, int] = {}
    for topic, kind in topics.items():
        if kind not in ORIGINALS:
            continue
        try:
            ranges = await transport.admin.ranges(topic)
        except TopicMissingError:
            continue
        for partition, kept in ranges.items():
            if kept.start == 0:
                continue
            oldest = await transport.read(topic, partition, kept.start, **_ONE) if kept.end > kept.start else ()
            # Of an empty partition everything may be gone.
            before_ms = oldest[0].timestamp_ms if oldest else 1 << 62
            lost[topic] = max(lost.get(topic, 0), before_ms)
    return KeptTimes(namespace, lost)


def _is_typed(topic: str) -> bool:
    """Return whether *topic* holds messages of one type; a reply topic holds any."""
    name = read_topic(topic)
    return name is not None and name.kind == "message"
