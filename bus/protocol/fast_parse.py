"""KnownLayouts: what the plain messages of one sender, type and route share, so that the next one is proven by its text
alone.

Owns the layout of a plain message, and casting: a record is written as its mould says, with the record's own ids, times
and data, and is accepted when those are its very bytes and its hashes are right. A message is plain when nothing caused
it, nothing signed it, and it has no optional field before its `message_type` or after its `timestamp`. Accepts and
never refuses: None says nothing, and the exact way (`bus.protocol.sealing`) finds out. Whatever a cast accepts, the
exact way accepts as the same message; that holds because encoding is compositional: a mould comes from layers of right
shape, and only texts that are written as they stand take the place of others.
"""

from __future__ import annotations

from typing import Final, Generic, Protocol, TypeAlias, TypeVar

import msgspec
from msgspec.structs import replace

from bus import native
from bus.protocol.envelope import DATA_ROOM, Metadata, Routing, Verification
from bus.protocol.sealing import Message, is_canonical_object

__all__ = ["FastParsed", "PayloadCodec", "EnvelopeLayout", "KnownLayouts"]

T = TypeVar("T")
Shared: TypeAlias = str
"""The text of the constant members of metadata, and of routing, with a zero between them, which JSON text cannot
hold."""


class PayloadCodec(Protocol):
    """A payload type."""

    def read(self, data: bytes) -> msgspec.Struct | None:
        """The payload, if canonical *data* can be one."""


_TO_ID: Final = '","hops":0,"message_id":"'
_TO_TIME: Final = ',"timestamp":"'
_TO_IDEMPOTENCY: Final = '","idempotency_key":"'
_TO_KEY: Final = '","key":"'

_MOST_MOULDS: Final = 512

_encode = msgspec.json.Encoder().encode


class FastParsed(msgspec.Struct, Generic[T], frozen=True, gc=False):
    """A message proven by its mould: parsed, canonical, of right shape, its hashes checked."""

    message: Message
    known: T
    """What was given with the mould when it was learnt."""
    key: bytes
    """The record key that the message has to have."""
    sealed_ms: int
    expires_ms: int


class EnvelopeLayout(msgspec.Struct, Generic[T], frozen=True):
    """The constant parts of messages that differ in nothing but ids, key, times, data and hashes."""

    shared: Shared
    metadata: Metadata
    routing: Routing
    stated: str
    """Of the statement, what stands between the message's id and its timestamp."""
    stated_end: str
    stated_bytes: tuple[bytes, bytes]
    """Both in UTF-8."""
    kind: PayloadCodec
    known: T


class KnownLayouts(Generic[T]):
    """The moulds one reader of the log has learnt. Bounded: messages that share nothing are not remembered."""

    def __init__(self) -> None:
        self._moulds: dict[Shared, EnvelopeLayout[T]] = {}
        self._glimpsed: set[Shared] = set()
        self._wanted: Shared | None = None
        self._caster = (
            None
            if native.core is None
            else native.core.Caster(FastParsed, Message, Verification, replace, is_canonical_object)
        )

    def learn(self, message: Message, kind: PayloadCodec, known: T) -> None:
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

    def cast(self, value: bytes) -> FastParsed[T] | None:
        """The message in *value*, if it is plain, its mould is known and everything is right."""
        self._wanted = None
        if self._caster is None:
            return None
        found: str | FastParsed[T] | None = self._caster.cast(value, self._moulds, DATA_ROOM)
        if isinstance(found, str):
            self._miss(found)
            return None
        return found

    def _miss(self, shared: Shared) -> None:
        """A mould is made at the second sight of its text: fields that differ from message to message would fill the
        memory with one each."""
        if shared in self._glimpsed:
            self._wanted = shared
            return
        if len(self._glimpsed) >= _MOST_MOULDS:
            self._glimpsed.clear()
        self._glimpsed.add(shared)


def _make_mould(message: Message, kind: PayloadCodec, known: T) -> EnvelopeLayout[T] | None:
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
    return EnvelopeLayout(f"{middle}\0{rest}", metadata, routing, f"{before},", after, stated_bytes, kind, known)


def _between(text: str, before: str, after: str) -> str | None:
    """What *text* holds between two ends, if it has them."""
    inner = len(text) - len(after)
    return (
        text[len(before) : inner] if text.startswith(before) and text.endswith(after) and len(before) <= inner else None
    )
