"""Parse plain messages by comparison with a known layout: that of one sender, type and route.

Owns the layout of a plain message, and casting. A cast writes the record again from its layout and the record's own
ids, times and data. It accepts the record if the bytes are the same and the hashes are right. A message is plain if it
has no cause, no signature, and no optional field before `message_type` or after `timestamp`. A cast accepts or returns
None, and never refuses: on None, the exact way (`bus.protocol.sealing`) decides. The exact way accepts every cast
message as the same message, because encoding is compositional: a layout comes from well-formed layers, and only texts
that need no escaping are replaced.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Generic, NamedTuple, Protocol, TypeAlias, TypeVar

import msgspec
from msgspec.structs import replace

from bus import native
from bus.protocol.envelope import DATA_ROOM, Metadata, Routing, Verification
from bus.protocol.sealing import Message, is_canonical_data
from bus.protocol.signatures import MAX_SIGNATURE_CHARS

__all__ = [
    "UNREAD",
    "Carrier",
    "CastLimits",
    "EnvelopeLayout",
    "FastParsed",
    "KnownLayouts",
    "PayloadCodec",
    "ShortReader",
    "without_signature",
]

_T = TypeVar("_T")
Shared: TypeAlias = str
"""The constant text of metadata and of routing, joined by a NUL, which JSON text cannot contain."""


ShortReader: TypeAlias = tuple[Callable[[bytes], object], int, bool]
"""A reader, the bytes of data up to which it reads, and whether it reads no data with a number of sixteen digits."""


class PayloadCodec(Protocol):
    """Reads the payloads of one type."""

    short: ShortReader | None
    """Reads short payloads in place of `read`, whose errors it need not raise; None: there is no such way."""

    def read(self, data: bytes) -> object | None:
        """Return the payload in canonical *data*, or None if it is not of this type."""


class _Unread:
    """Reads no payload: no typed object is built before the signature is verified."""

    short: ShortReader | None = None

    def read(self, data: bytes) -> object | None:  # noqa: ARG002 - the Protocol's form
        return None


UNREAD: Final = _Unread()

_SIGNATURE: Final = b'","signature":"'
_END: Final = b'"}}'


def without_signature(value: bytes) -> tuple[bytes, str] | None:
    """Return a signed *value* without its signature, and the signature; None if *value* does not end with a signature.

    *value* must be a sealed message; for any other bytes the result is meaningless.
    """
    at = value.rfind(_SIGNATURE, max(0, len(value) - MAX_SIGNATURE_CHARS - len(_SIGNATURE) - len(_END)))
    if at < 0 or not value.endswith(_END):
        return None
    signature = value[at + len(_SIGNATURE) : -len(_END)]
    return (value[:at] + _END, signature.decode("ascii")) if signature.isascii() else None


_TO_ID: Final = '","hops":0,"message_id":"'
_TO_TIME: Final = ',"timestamp":"'
_TO_IDEMPOTENCY: Final = '","idempotency_key":"'
_TO_KEY: Final = '","key":"'

_MAX_LAYOUTS: Final = 512

_encode = msgspec.json.Encoder().encode


class FastParsed(msgspec.Struct, Generic[_T], frozen=True, gc=False):
    """A message verified by its layout: parsed, canonical, well-formed, its hashes checked."""

    message: Message
    known: _T
    """The value given to `learn` with the layout."""
    sealed_ms: int
    expires_ms: int
    header_bytes: int = 0
    """The lengths of the record's headers; 0 where only its value was cast."""


class Carrier(Protocol):
    """The record that a message came in (`bus.transports.base.Record`)."""

    @property
    def key(self) -> bytes | None:
        """Its key."""

    @property
    def headers(self) -> tuple[tuple[str, bytes], ...]:
        """Its headers."""

    @property
    def timestamp_ms(self) -> int:
        """Its append time."""


class CastLimits(NamedTuple):
    """What the gates `size` and `lifetime` allow a record that is judged by its cast."""

    max_headers: int
    max_header_bytes: int
    expiry_tolerance_ms: int
    skew_tolerance_ms: int
    max_ttl_ms: int


NO_LIMITS: Final = CastLimits(0, 0, 0, 0, 0)


class EnvelopeLayout(msgspec.Struct, Generic[_T], frozen=True):
    """The constant parts of messages that differ only in ids, key, times, data and hashes."""

    shared: Shared
    metadata: Metadata
    routing: Routing
    stated: str
    """The part of the statement between the message's id and its timestamp."""
    stated_end: str
    stated_bytes: tuple[bytes, bytes]
    """*stated* and *stated_end* in UTF-8."""
    kind: PayloadCodec
    known: _T


class KnownLayouts(Generic[_T]):
    """The layouts that one reader of the log has learnt. Bounded: messages that share nothing are not remembered."""

    def __init__(self, limits: CastLimits = NO_LIMITS) -> None:
        self._layouts: dict[Shared, EnvelopeLayout[_T]] = {}
        self._seen_once: set[Shared] = set()
        self._wanted: Shared | None = None
        self._caster = native.Caster(FastParsed, Message, Verification, replace, is_canonical_data, limits)

    @property
    def are_of_use(self) -> bool:
        """Return whether messages can be cast at all: casting needs the compiled code."""
        return native.core is not None

    @property
    def is_missing_one(self) -> bool:
        """Return whether the last cast missed a layout for the second time: `learn` would remember it."""
        return self._wanted is not None

    def learn(self, message: Message, kind: PayloadCodec, known: _T) -> None:
        """Remember the layout of *message*, if the last cast missed it for the second time.

        The exact way has just accepted *message*.
        """
        if self._wanted is None:
            return
        layout = _layout_of(message, kind, known)
        if layout is not None and layout.shared == self._wanted:
            if len(self._layouts) >= _MAX_LAYOUTS:
                self._layouts.clear()
            self._layouts[layout.shared] = layout
        self._wanted = None

    def cast(self, value: bytes) -> FastParsed[_T] | None:
        """Return the message in *value* if it is plain, its layout is known and everything is right."""
        self._wanted = None
        return self._known(self._caster.cast(value, self._layouts, DATA_ROOM))

    def judge(self, value: bytes, record: Carrier, expected_type: object, now_ms: int) -> FastParsed[_T] | None:
        """Return the same of *value*, which *record* carries, if the record passes the gates that its cast judges.

        These are `size`, `audience` and `lifetime`, for a topic of *expected_type* at *now_ms*.
        """
        self._wanted = None
        found: str | FastParsed[_T] | None = self._caster.judge(
            value,
            self._layouts,
            DATA_ROOM,
            record.key,
            record.headers,
            expected_type,
            now_ms,
            record.timestamp_ms,
        )
        return found if found is None else self._known(found)

    def _known(self, found: str | FastParsed[_T] | None) -> FastParsed[_T] | None:
        if isinstance(found, str):
            self._note_miss(found)
            return None
        return found

    def _note_miss(self, shared: Shared) -> None:
        """Note that no layout matched; a layout is learnt when its text is seen a second time.

        Fields that differ in every message would otherwise fill the memory with one layout each.
        """
        if shared in self._seen_once:
            self._wanted = shared
            return
        if len(self._seen_once) >= _MAX_LAYOUTS:
            self._seen_once.clear()
        self._seen_once.add(shared)


def _layout_of(message: Message, kind: PayloadCodec, known: _T) -> EnvelopeLayout[_T] | None:
    """Return the layout of an accepted *message*; None if the message is not plain."""
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
    # The statement has no unknown members and one timestamp; no string can contain its name's unescaped quotes.
    before, _, after = stated.partition(stamp)
    stated_bytes = f"{before},".encode(), after.encode()
    return EnvelopeLayout(f"{middle}\0{rest}", metadata, routing, f"{before},", after, stated_bytes, kind, known)


def _between(text: str, before: str, after: str) -> str | None:
    """Return the part of *text* between *before* and *after*, if it has both ends."""
    inner = len(text) - len(after)
    return (
        text[len(before) : inner] if text.startswith(before) and text.endswith(after) and len(before) <= inner else None
    )
