"""Templates: the parts that the envelopes of one type, route and publisher share, for compiled code to fill in.

Owns describing templates and caching them. A template decides nothing of the contract: the compiled result is byte for
byte that of `compose` and `bus.protocol.sealing.seal` (a property test compares them). Lifetime and keys are filled in
per message; options for route and subject belong to the template. A message with any other option goes the exact way.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from operator import attrgetter, is_
from typing import Any

import msgspec

from bus import native
from bus.errors import ContractError
from bus.payloads.class_forms import Payload
from bus.payloads.payload_types import PayloadType, payload_type, raised_risk
from bus.protocol import envelope_rules, sealing
from bus.protocol.envelope import PROTOCOL, Agent
from bus.topics.names import message_topic
from bus.transports.base import Headers, NewRecord
from producers.sealing.inherited_fields import InheritedFields
from producers.sealing.options import Outgoing, PublisherIdentity, compose, default_ttl_s
from producers.sealing.sealed_record import RECORD_CONTENT_TYPE, SealedRecord

__all__ = ["EnvelopeTemplate", "TemplateCache", "shared_options"]

_MAX_TEXT = 256
_ID = "id"
_EPOCH = b"1970-01-01T00:00:00.000Z"
_ROUTED_AT = len(b'{"expires_at":"') + len(_EPOCH)

_FILLED = ("payload", "conversation_id", "idempotency_key", "key", "ttl_s")
_SHARED = ("to", "priority", "reply_to", "max_hops", "intent", "performative")
_SCALARS = frozenset({type(None), str, int})


class EnvelopeTemplate:
    """The envelope of *kind* as *origin* publishes it with the options of *draft*.

    Id, keys, times and hashes differ from message to message. Raises ContractError if no message of *kind* can be
    sealed by *origin*, or with these options.
    """

    __slots__ = (
        "_chained",
        "_max_hops",
        "_max_ttl_s",
        "_ttl_ms",
        "caused",
        "compiled",
        "encode",
        "frame",
        "further_headers",
        "headers",
        "message_type",
        "topic",
    )

    def __init__(
        self,
        kind: PayloadType,
        origin: PublisherIdentity,
        draft: Outgoing | None = None,
        *,
        max_message_bytes: int = sys.maxsize,
        sign: Callable[[bytes], str] | None = None,
    ) -> None:
        options = {} if draft is None else {name: getattr(draft, name) for name in _SHARED}
        layers = compose(Outgoing(_Nothing(), **options), kind, origin, now_ms=0, message_id=_ID)
        envelope_rules.check_metadata(layers.metadata)
        envelope_rules.check_routing(layers.routing, layers.metadata)
        kind.terms.check(layers.metadata, layers.routing, None)
        metadata = layers.metadata
        about = b'%b"message_id":"' % (b"" if metadata.intent is None else b'"intent":%b,' % _text(metadata.intent))
        kind_of = b'","message_type":%b,"namespace":%b' % (_text(kind.name), _text(origin.namespace))
        role = b"" if metadata.performative is None else b',"performative":%b' % _text(metadata.performative)
        to = b"" if metadata.recipient is None else b',"recipient":%b' % msgspec.json.encode(metadata.recipient)
        route = b'%b,"protocol":%b%b' % (role, _text(PROTOCOL), to)
        by = b',"schema_version":%b,"sender":%b' % (_text(kind.version), msgspec.json.encode(origin.sender))
        routed = msgspec.json.encode(layers.routing)[_ROUTED_AT:]
        addressee = sealing.addressee_of(metadata.recipient)
        stated_to = b"" if addressee is None else b',"recipient":%b' % msgspec.json.encode(addressee)
        stated_by = b',"protocol":%b%b,"sender":%b,"timestamp":"' % (
            _text(PROTOCOL),
            stated_to,
            _text(origin.sender.id),
        )
        self.frame = (
            b'","hops":0,' + about,
            b'%b%b%b,"timestamp":"' % (kind_of, route, by),
            routed,
            kind_of + stated_by,
        )
        """The constant texts between conversation and id, between id and time, and behind the keys; and, in the
        statement, between id and time.
        """
        self.caused = (about, kind_of, route, by, routed, stated_by)
        """The same in smaller parts, between which a caused message has its inherited fields."""
        self._chained = raised_risk(kind, origin.high_risk) != "low"
        self._max_hops = layers.routing.max_hops
        self._ttl_ms = _in_ms(default_ttl_s(kind, origin))
        self._max_ttl_s = origin.max_ttl_s
        kind.resolve_by_now()
        self.encode = kind.encode
        self.message_type = kind.name
        self.topic = message_topic(origin.namespace, kind.name)
        self.headers: Headers = (("content-type", RECORD_CONTENT_TYPE), ("sb-type", kind.name.encode()))
        self.further_headers: Headers = () if draft is None or draft.to is None else (("sb-to", _addressee(draft.to)),)
        self.compiled = self._compile(kind, draft, max_message_bytes, sign)
        """Encodes and seals payloads of this template in one step; None if the type cannot be encoded that way."""

    def _compile(
        self,
        kind: PayloadType,
        draft: Outgoing | None,
        max_message_bytes: int,
        sign: Callable[[bytes], str] | None,
    ) -> Any:
        encoder = kind.encoder.compiled
        if encoder is None:
            return None
        names = (self.message_type, self.topic, self.headers, self.further_headers)
        drafts = Outgoing, _shared_by_all(draft), draft is None
        # The exact way decides whether a longer payload is too heavy.
        max_bytes = min(max_message_bytes, kind.weight.light_bytes)
        lifetimes = self._ttl_ms, self._max_ttl_s
        return native.Sealer(encoder, self.frame, lifetimes, max_bytes, names, (SealedRecord, NewRecord), drafts, sign)

    def seal(
        self,
        data: bytes,
        now_ms: int,
        entropy: bytes,
        *,
        conversation_id: str | None = None,
        idempotency_key: str | None = None,
        key: str | None = None,
        ttl_s: float | None = None,
    ) -> tuple[str, bytes, bytes] | None:
        """Seal canonical *data* at *now_ms*; return the message id, record key and value.

        The id is made from *entropy*, ten random bytes. Returns None if the exact way must decide, such as for texts
        that need escaping.
        """
        ttl_ms = self._lifetime_ms(ttl_s)
        if ttl_ms is None or not _are_texts(conversation_id, idempotency_key, key):
            return None
        return native.seal_plain(self.frame, data, now_ms, ttl_ms, entropy, conversation_id, idempotency_key, key)

    def seal_caused(
        self,
        data: bytes,
        now_ms: int,
        entropy: bytes,
        heritage: InheritedFields,
        *,
        idempotency_key: str | None = None,
        key: str | None = None,
        ttl_s: float | None = None,
    ) -> tuple[str, bytes, bytes] | None:
        """Seal a message with this *heritage*, in the conversation of its cause."""
        ttl_ms = self._lifetime_ms(ttl_s)
        if ttl_ms is None or not _are_texts(idempotency_key, key):
            return None
        if not heritage.allows_hops(self._max_hops):
            return None
        max_hops = heritage.max_hops if self._max_hops is None else None
        return native.seal_caused(
            self.caused, heritage.pieces, self._chained, max_hops, data, now_ms, ttl_ms, entropy, idempotency_key, key
        )

    def _lifetime_ms(self, ttl_s: float | None) -> int | None:
        """Return the lifetime; None for one that must be refused."""
        if ttl_s is None:
            return self._ttl_ms
        return _in_ms(ttl_s) if ttl_s.__class__ in {int, float} and 0 < ttl_s <= self._max_ttl_s else None


def _are_texts(*provided: str | None) -> bool:
    """Return whether each of *provided* is None or an ASCII str, not an instance of a subclass."""
    return all(text is None or (text.__class__ is str and text.isascii()) for text in provided)


def _in_ms(ttl_s: float) -> int:
    return max(1, round(ttl_s * 1000))


class _Nothing(msgspec.Struct):
    """A placeholder for the payload."""


def _text(value: str | None) -> bytes:
    return msgspec.json.encode(value)


_NO_OPTIONS = Outgoing(_Nothing())
_RARE = tuple(name for name in Outgoing.__struct_fields__ if name not in {*_FILLED, *_SHARED})
_rare, _shared = attrgetter(*_RARE), attrgetter(*_SHARED)
_NOTHING_RARE, _NOTHING_SHARED = _rare(_NO_OPTIONS), _shared(_NO_OPTIONS)


def shared_options(draft: Outgoing) -> tuple[object, ...] | None:
    """Return the options of *draft* that belong to its template; empty if it has none.

    They are equal for drafts with the same template. Returns None for a draft that no template can seal.
    """
    # Compare by identity: a foreign class can define equality as it likes.
    if not all(map(is_, _rare(draft), _NOTHING_RARE)):
        return None
    options = _shared(draft)
    if all(map(is_, options, _NOTHING_SHARED)):
        return ()
    to, *rest = options
    shared = (*msgspec.structs.astuple(to), *rest) if to.__class__ is Agent else options
    # A bool equals an integer, but is not valid where one is.
    kinds = tuple(map(type, shared))
    if not _SCALARS.issuperset(kinds) or any(isinstance(option, str) and len(option) > _MAX_TEXT for option in shared):
        return None
    return (*shared, *kinds)


def _shared_by_all(draft: Outgoing | None) -> dict[str, object]:
    """Return the options that every message of the template of *draft* shares."""
    return {name: getattr(draft or _NO_OPTIONS, name) for name in (*_SHARED, *_RARE)}


_MAX_TEMPLATES = 512


class TemplateCache:
    """The templates of one publisher, by payload class and `shared_options`."""

    def __init__(
        self,
        origin: PublisherIdentity,
        max_message_bytes: int,
        sign_as: Callable[[str], Callable[[bytes], str]] | None = None,
    ) -> None:
        self._sign_as = sign_as
        self.plain: dict[type, EnvelopeTemplate] = {}
        """The templates without options, which are used most."""
        self._origin = origin
        self._max_message_bytes = max_message_bytes
        self._templates: dict[tuple[type, tuple[object, ...]], EnvelopeTemplate] = {}
        self._seen_once: set[tuple[type, tuple[object, ...]]] = set()

    def __len__(self) -> int:
        return len(self.plain) + len(self._templates) + len(self._seen_once)

    def known(self, cls: type, options: tuple[object, ...]) -> EnvelopeTemplate | None:
        """Return the cached template for payloads of *cls* with these *options*, or None."""
        return self._templates.get((cls, options)) if options else self.plain.get(cls)

    def of(
        self, payload: Payload, options: tuple[object, ...] = (), draft: Outgoing | None = None
    ) -> EnvelopeTemplate | None:
        """Return the template, creating it at once without options, or at the second use of the options of *draft*.

        Options that differ in every message would otherwise fill the memory with one template each. Returns None also
        if no template is possible.
        """
        if (template := self.known(payload.__class__, options)) is not None:
            return template
        # A class instead of a payload: the class of every class is the same.
        if isinstance(payload, type):
            return None
        like = payload.__class__, options
        if options and like not in self._seen_once:
            if len(self._seen_once) >= _MAX_TEMPLATES:
                self._seen_once.clear()
            self._seen_once.add(like)
            return None
        try:
            kind = payload_type(payload)
            risk = raised_risk(kind, self._origin.high_risk)
            is_signed = kind.sign or risk != "low"
            sign = self._sign_as(kind.name) if is_signed and self._sign_as is not None else None
            template = (
                None
                if kind.is_judged_each or (risk == "high" and sign is None)
                else EnvelopeTemplate(
                    kind,
                    self._origin,
                    draft if options else None,
                    max_message_bytes=self._max_message_bytes,
                    sign=sign,
                )
            )
        except (ContractError, UnicodeEncodeError):
            # The exact way reports the fault.
            return None
        if template is not None:
            if len(self.plain) + len(self._templates) >= _MAX_TEMPLATES:
                self.plain.clear()
                self._templates.clear()
            if options:
                self._templates[like] = template
            else:
                self.plain[payload.__class__] = template
        return template


def _addressee(to: str | Agent) -> bytes:
    return (to if isinstance(to, str) else to.id or to.role or "").encode()
