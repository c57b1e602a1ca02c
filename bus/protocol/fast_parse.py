"""Moulds: what the plain messages of one sender, type and route share, so that the next one is proven by its text
alone.

Owns the layout of a plain message, and casting: a record is written as its mould says, with the record's own ids, times
and data, and is accepted when those are its very bytes and its hashes are right. A message is plain when nothing caused
it, nothing signed it, and it has no optional field before its `message_type` or after its `timestamp`. Accepts and
never refuses: None says nothing, and the exact way (`bus.protocol.sealing`) finds out. Whatever a cast accepts, the
exact way accepts as the same message; that holds because encoding is compositional: a mould comes from layers of right
shape, and only texts that are written as they stand take the place of others.
"""

from __future__ import annotations

from functools import lru_cache
from hashlib import sha256
from typing import Final, Generic, Protocol, TypeAlias, TypeVar

import msgspec
from msgspec.structs import replace

from bus import native
from bus.protocol.envelope import DATA_ROOM, Metadata, Routing, Verification
from bus.protocol.sealing import DATA_AT, Message, is_canonical_object
from bus.protocol.timestamps import parse_ms

__all__ = ["Cast", "Kind", "Mould", "Moulds"]

T = TypeVar("T")
Shared: TypeAlias = str
"""The text of the constant members of metadata, and of routing, with a zero between them, which JSON text cannot
hold."""
_Slots: TypeAlias = tuple[int, str, str, str, str, str | None, str | None, str, str, str, int, int]
"""The end of the data; conversation, message, timestamp, expiry, idempotency key, key; two hashes and the seal; sealed
and expires, in ms."""
_Parts: TypeAlias = tuple[int, str, str, str, Shared, str, str, str | None, str | None, str]


class Kind(Protocol):
    """A payload type."""

    def prove(self, data: bytes) -> msgspec.Struct | None:
        """The payload, if *data* are proven canonical."""

    def read(self, data: bytes) -> msgspec.Struct | None:
        """The payload, if canonical *data* can be one."""


_FRONT: Final = b'{"data":'
_HEAD: Final = b',"metadata":{"conversation_id":"'
_TO_ID: Final = '","hops":0,"message_id":"'
_TO_TIME: Final = ',"timestamp":"'
_TO_EXPIRY: Final = '"},"routing":{"expires_at":"'
_TO_IDEMPOTENCY: Final = '","idempotency_key":"'
_TO_KEY: Final = '","key":"'
_TO_CONTENT: Final = '},"verification":{"content_hash":"'
_TO_SEAL: Final = '","seal":"'
_END: Final = '"}}'

_HEAD_LENGTH: Final = len(_HEAD)
_TO_ID_LENGTH: Final = len(_TO_ID)
_TO_TIME_LENGTH: Final = len(_TO_TIME)
_TO_EXPIRY_LENGTH: Final = len(_TO_EXPIRY)
_TIME_LENGTH: Final = len("2026-01-31T12:00:00.000Z")
_HASH_LENGTH: Final = len("sha256:") + 64
_CLOSING_LENGTH: Final = len(_TO_CONTENT) + _HASH_LENGTH + len(_TO_SEAL) + _HASH_LENGTH + len(_END)

_LONGEST_TAIL: Final = 4_096
"""Where the layers behind data take more, the record is not looked at here: searching a hostile megabyte would cost too
much."""
_MOST_MOULDS: Final = 512
_MAX_ID: Final = 128
_MAX_TEXT: Final = 256

_encode = msgspec.json.Encoder().encode
# Only texts of that one length come here, so remembering them needs no look at how long they are.
_parse_ms = lru_cache(maxsize=1024)(parse_ms)


class Cast(msgspec.Struct, Generic[T], frozen=True, gc=False):
    """A message proven by its mould: parsed, canonical, of right shape, its hashes checked."""

    message: Message
    known: T
    """What was given with the mould when it was learnt."""
    key: bytes
    """The record key that the message has to have."""
    sealed_ms: int
    expires_ms: int


class Mould(msgspec.Struct, Generic[T], frozen=True):
    """The constant parts of messages that differ in nothing but ids, key, times, data and hashes."""

    shared: Shared
    metadata: Metadata
    routing: Routing
    stated: str
    """Of the statement, what stands between the message's id and its timestamp."""
    stated_end: str
    stated_bytes: tuple[bytes, bytes]
    """Both in UTF-8."""
    kind: Kind
    known: T


class Moulds(Generic[T]):
    """The moulds one reader of the log has learnt. Bounded: messages that share nothing are not remembered."""

    def __init__(self) -> None:
        self._moulds: dict[Shared, Mould[T]] = {}
        self._glimpsed: set[Shared] = set()
        self._wanted: Shared | None = None
        self._caster = (
            None
            if native.core is None
            else native.core.Caster(Cast, Message, Verification, replace, is_canonical_object)
        )

    def learn(self, message: Message, kind: Kind, known: T) -> None:
        """Remember the mould of *message*, which the exact way has just accepted, if the last cast had no mould the
        second time."""
        if self._wanted is None:
            return
        mould = _make_mould(message, kind, known)
        if mould is not None and mould.shared == self._wanted:
            if len(self._moulds) >= _MOST_MOULDS:
                self._moulds.clear()
            self._moulds[mould.shared] = mould
        self._wanted = None

    def cast(self, value: bytes) -> Cast[T] | None:
        """The message in *value*, if it is plain, its mould is known and everything is right."""
        self._wanted = None
        if self._caster is not None and native.core is not None:
            found: str | Cast[T] | None = self._caster.cast(value, self._moulds, DATA_ROOM)
            if isinstance(found, str):
                self._miss(found)
                return None
            return found
        return self._cast(value)

    def _cast(self, value: bytes) -> Cast[T] | None:
        parts = _take_apart(value)
        if parts is None:
            return None
        mould = self._moulds.get(parts[4])
        if mould is None:
            self._miss(parts[4])
            return None
        slots = _fill(value, parts, mould)
        if slots is None:
            return None
        (
            data_end,
            talk,
            message_id,
            timestamp,
            expires_at,
            once_key,
            key,
            content,
            envelope,
            seal,
            sealed_ms,
            ends_ms,
        ) = slots
        data = value[DATA_AT:data_end]
        payload = mould.kind.prove(data)
        if payload is None and not is_canonical_object(data):
            return None
        message = Message(
            value,
            replace(mould.metadata, conversation_id=talk, message_id=message_id, timestamp=timestamp),
            replace(mould.routing, expires_at=expires_at, idempotency_key=once_key, key=key),
            Verification(content_hash=content, seal=seal),
            envelope,
            data_end,
            payload,
        )
        return Cast(message, mould.known, (key or talk).encode(), sealed_ms, ends_ms)

    def _miss(self, shared: Shared) -> None:
        """A mould is made at the second sight of its text: fields that differ from message to message would fill the
        memory with one each."""
        if shared in self._glimpsed:
            self._wanted = shared
            return
        if len(self._glimpsed) >= _MOST_MOULDS:
            self._glimpsed.clear()
        self._glimpsed.add(shared)


def _fill(value: bytes, parts: _Parts, mould: Mould[T]) -> _Slots | None:
    """The slots of a plain message, if its hashes are those of its bytes."""
    data_end, envelope, conversation_id, message_id, _, timestamp, expires_at, idempotency_key, key, hashes = parts
    if not (
        # What stood between its quotes is, with these, exactly what would be written for it.
        0 < len(message_id) <= _MAX_ID
        and message_id.isascii()
        and message_id.isprintable()
        and not (" " in message_id or "\\" in message_id)
        and (conversation_id == message_id or _is_plain_text(conversation_id))
        and (idempotency_key is None or _is_plain_text(idempotency_key))
        and (key is None or (key != conversation_id and _is_plain_text(key)))
    ):
        return None
    sealed_ms, expires_ms = _parse_ms(timestamp), _parse_ms(expires_at)
    if sealed_ms is None or expires_ms is None or expires_ms <= sealed_ms:
        return None
    content_hash = "sha256:" + sha256(value[DATA_AT:data_end]).hexdigest()
    envelope_hash = "sha256:" + sha256(envelope.encode()).hexdigest()
    statement = (
        f'{{"content_hash":"{content_hash}","envelope_hash":"{envelope_hash}","hops":0,'
        f'"message_id":"{message_id}"{mould.stated}"timestamp":"{timestamp}"{mould.stated_end}'
    )
    seal = "sha256:" + sha256(statement.encode()).hexdigest()
    if hashes != f"{_TO_CONTENT}{content_hash}{_TO_SEAL}{seal}{_END}":
        return None
    texts = (
        conversation_id,
        message_id,
        timestamp,
        expires_at,
        idempotency_key,
        key,
        content_hash,
        envelope_hash,
        seal,
    )
    return (data_end, *texts, sealed_ms, expires_ms)


def _take_apart(value: bytes) -> _Parts | None:
    """The slots of a plain message and what stands between them; nothing of it is proven yet but its order."""
    # Everything inline: it runs for each message, and a function call costs as much as four of its lines.
    data_end = value.rfind(_HEAD, -_LONGEST_TAIL)
    if data_end < 0 or not value.startswith(_FRONT):
        return None
    try:
        tail = value[data_end:].decode()
    except UnicodeDecodeError:
        return None
    at = tail.find('"', _HEAD_LENGTH)
    conversation_id = tail[_HEAD_LENGTH:at]
    if not tail.startswith(_TO_ID, at):
        return None
    start = at + _TO_ID_LENGTH
    at = tail.find('"', start)
    message_id = tail[start:at]
    stamp = tail.find(_TO_TIME, at)
    middle = tail[at + 1 : stamp]
    start = stamp + _TO_TIME_LENGTH
    at = start + _TIME_LENGTH
    if stamp < 0 or not tail.startswith(_TO_EXPIRY, at):
        return None
    timestamp = tail[start:at]
    start = at + _TO_EXPIRY_LENGTH
    at = start + _TIME_LENGTH
    expires_at = tail[start:at]
    idempotency_key = key = None
    if tail.startswith(_TO_IDEMPOTENCY, at):
        start = at + len(_TO_IDEMPOTENCY)
        at = tail.find('"', start)
        idempotency_key = tail[start:at]
    if tail.startswith(_TO_KEY, at):
        start = at + len(_TO_KEY)
        at = tail.find('"', start)
        key = tail[start:at]
    closing = len(tail) - _CLOSING_LENGTH
    if not at < closing or not tail.startswith(_TO_CONTENT, closing):
        return None
    envelope = f"{{{tail[1:closing]}}}}}"
    return (
        data_end,
        envelope,
        conversation_id,
        message_id,
        f"{middle}\0{tail[at:closing]}",
        timestamp,
        expires_at,
        idempotency_key,
        key,
        tail[closing:],
    )


def _make_mould(message: Message, kind: Kind, known: T) -> Mould[T] | None:
    """The mould of an accepted *message*; None when it is not plain."""
    metadata, routing, statement, verification = (
        message.metadata,
        message.routing,
        message.statement,
        message.verification,
    )
    if verification.parents is not None or verification.proof_chain is not None or verification.signature is not None:
        return None
    stamp = f'{_TO_TIME}{metadata.timestamp}"'
    talk = f'{{"conversation_id":"{metadata.conversation_id}{_TO_ID}{metadata.message_id}"'
    middle = _between(_encode(metadata).decode(), talk, f"{stamp}}}")
    keys = "" if routing.idempotency_key is None else f"{_TO_IDEMPOTENCY}{routing.idempotency_key}"
    keys += "" if routing.key is None else f"{_TO_KEY}{routing.key}"
    rest = _between(_encode(routing).decode(), f'{{"expires_at":"{routing.expires_at}{keys}', "}")
    hashes = f'{{"content_hash":"{statement.content_hash}","envelope_hash":"{statement.envelope_hash}"'
    stated = _between(_encode(statement).decode(), f'{hashes},"hops":0,"message_id":"{metadata.message_id}"', "")
    if middle is None or rest is None or stated is None:
        return None
    # The statement is closed and has one timestamp; no string can hold the unescaped quotes of its name.
    before, _, after = stated.partition(stamp)
    stated_bytes = f"{before},".encode(), after.encode()
    return Mould(f"{middle}\0{rest}", metadata, routing, f"{before},", after, stated_bytes, kind, known)


def _between(text: str, before: str, after: str) -> str | None:
    """What *text* holds between two ends, if it has them."""
    inner = len(text) - len(after)
    return (
        text[len(before) : inner] if text.startswith(before) and text.endswith(after) and len(before) <= inner else None
    )


def _is_plain_text(text: str) -> bool:
    """Whether *text*, found between two quotes, is a text id that is written as it stands."""
    return 0 < len(text) <= _MAX_TEXT and text.isascii() and text.isprintable() and "\\" not in text
