"""Templates: the envelope of a message, written once per type and route and filled in per message.

Owns nothing of the contract: what a template makes is byte for byte what `compose` and `bus.protocol.sealing.seal` make
(a test holds it), without building and encoding three Structs for each message of a stream. Of a message's options, a
lifetime and keys are filled in, and those that say where it goes and what it is about are the template's; with any
other it has to go the general way.
"""

from __future__ import annotations

from operator import attrgetter, is_

import msgspec

from bus import native
from bus.errors import ContractError
from bus.payloads.payload_types import PayloadType, payload_type
from bus.protocol import canonical, envelope_rules, sealing
from bus.protocol.envelope import PROTOCOL, Agent
from bus.protocol.identifiers import uuid7
from bus.protocol.timestamps import format_ms
from bus.topics.names import message_topic
from bus.transports.base import Headers, NewRecord
from producers.sealing.inherited_fields import Heritage
from producers.sealing.options import LAST_MS, Draft, Origin, compose
from producers.sealing.sealed_record import CONTENT_TYPE, Sealed

__all__ = ["Prepared", "PreparedTemplates", "Template", "shared_options", "template_options"]

_MAX_TEXT = 256
_ID = "id"
_EPOCH = b"1970-01-01T00:00:00.000Z"
_ROUTED_AT = len(b'{"expires_at":"') + len(_EPOCH)

_FILLED = ("payload", "conversation_id", "idempotency_key", "key", "ttl_s")
_SHARED = ("to", "priority", "reply_to", "max_hops", "intent", "performative")
_SCALARS = frozenset({type(None), str, int})


class Template:
    """The envelope of *kind* as *origin* publishes it with the options of *draft*; id, keys, times and hashes differ
    from message to message."""

    __slots__ = ("_caused", "_chained", "_max_hops", "frame", "max_ttl_s", "ttl_ms")

    def __init__(self, kind: PayloadType, origin: Origin, draft: Draft | None = None) -> None:
        """Raises ContractError where no message of *kind* could be sealed in the name of *origin*, or with these
        options."""
        options = {} if draft is None else {name: getattr(draft, name) for name in _SHARED}
        layers = compose(Draft(payload=_Nothing(), **options), kind, origin, now_ms=0, message_id=_ID)
        envelope_rules.check_metadata(layers.metadata)
        envelope_rules.check_routing(layers.routing, layers.metadata)
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
        """What stands between conversation and id, id and time, behind the keys; and, in the statement, between id and
        time."""
        self._caused = (about, kind_of, route, by, routed, stated_by)
        self._chained = kind.risk != "low"
        self._max_hops = layers.routing.max_hops
        self.ttl_ms = _in_ms(origin.ttl_s)
        self.max_ttl_s = origin.max_ttl_s

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
        """Canonical *data* sealed at *now_ms*: the message's id, made of ten bytes of *entropy*, the record's key, and
        its value.

        None for what the general way has to decide, such as texts that are not written as they stand.
        """
        ttl_ms = self._lifetime_ms(ttl_s)
        if ttl_ms is None or not (
            _is_plain_text(conversation_id) and _is_plain_text(idempotency_key) and _is_plain_text(key)
        ):
            return None
        if native.core is not None:
            sealed: tuple[str, bytes, bytes] | None = native.core.seal_plain(
                self.frame, data, now_ms, ttl_ms, entropy, conversation_id, idempotency_key, key
            )
            return sealed
        if now_ms + ttl_ms > LAST_MS:
            return None
        identity = uuid7(now_ms, entropy)
        talk = identity if conversation_id is None else conversation_id
        times = format_ms(now_ms).encode(), format_ms(now_ms + ttl_ms).encode()
        value = self._fill(data, identity.encode(), times, talk.encode(), _keys(idempotency_key, key, talk))
        return identity, (talk if key is None else key).encode(), value

    def seal_caused(
        self,
        data: bytes,
        now_ms: int,
        entropy: bytes,
        heritage: Heritage,
        *,
        idempotency_key: str | None = None,
        key: str | None = None,
        ttl_s: float | None = None,
    ) -> tuple[str, bytes, bytes] | None:
        """`seal` for a message with that *heritage*, in the conversation of its cause."""
        ttl_ms = self._lifetime_ms(ttl_s)
        if ttl_ms is None or now_ms + ttl_ms > LAST_MS or not (_is_plain_text(idempotency_key) and _is_plain_text(key)):
            return None
        if not heritage.bears(self._max_hops):
            return None
        about, kind_of, route, by, routed, stated_by = self._caused
        identity = uuid7(now_ms, entropy)
        message_id, timestamp, expires = (
            identity.encode(),
            format_ms(now_ms).encode(),
            format_ms(now_ms + ttl_ms).encode(),
        )
        times = b',"timestamp":"%b"%b}' % (timestamp, heritage.trace)
        tasks = (kind_of, heritage.parent_task, route, heritage.run, by, heritage.task, times)
        metadata = b"%b%d,%b%b%b" % (heritage.front, heritage.hops, about, message_id, b"".join(tasks))
        if self._max_hops is None and heritage.max_hops is not None:
            routed = b'","max_hops":%d%b' % (heritage.max_hops, routed[1:])
        keys = _keys(idempotency_key, key, heritage.conversation_id)
        envelope = b'"metadata":%b,"routing":{"expires_at":"%b%b%b' % (metadata, expires, keys, routed)
        links, chain = (
            (b',"links":%d' % heritage.links, b',"proof_chain":' + heritage.chain) if self._chained else (b"", b"")
        )
        parents = b',"parents":["%b"]' % heritage.seal.encode()
        content_hash = canonical.digest(data).encode()
        hashes = b'"content_hash":"%b","envelope_hash":"%b"' % (
            content_hash,
            canonical.digest(b"{%b}" % envelope).encode(),
        )
        said = (links, b',"message_id":"', message_id, kind_of, parents, stated_by, timestamp)
        seal = canonical.digest(b'{%b,"hops":%d%b"}' % (hashes, heritage.hops, b"".join(said))).encode()
        verification = b'{"content_hash":"%b"%b%b,"seal":"%b"}' % (content_hash, parents, chain, seal)
        value = b'{"data":%b,%b,"verification":%b}' % (data, envelope, verification)
        return identity, (heritage.conversation_id if key is None else key).encode(), value

    def _lifetime_ms(self, ttl_s: float | None) -> int | None:
        """None for a lifetime that has to be refused."""
        if ttl_s is None:
            return self.ttl_ms
        return _in_ms(ttl_s) if ttl_s.__class__ in {int, float} and 0 < ttl_s <= self.max_ttl_s else None

    def _fill(self, data: bytes, message_id: bytes, times: tuple[bytes, bytes], talk: bytes, keys: bytes) -> bytes:
        timestamp, expires = times
        to_id, identity, routed, stated = self.frame
        metadata = b'{"conversation_id":"%b%b%b%b%b"}' % (talk, to_id, message_id, identity, timestamp)
        envelope = b'"metadata":%b,"routing":{"expires_at":"%b%b%b' % (metadata, expires, keys, routed)
        content_hash = canonical.digest(data).encode()
        envelope_hash = canonical.digest(b"{%b}" % envelope).encode()
        hashes = b'{"content_hash":"%b","envelope_hash":"%b"' % (content_hash, envelope_hash)
        seal = canonical.digest(
            b'%b,"hops":0,"message_id":"%b%b%b"}' % (hashes, message_id, stated, timestamp)
        ).encode()
        return b'{"data":%b,%b,"verification":{"content_hash":"%b","seal":"%b"}}' % (data, envelope, content_hash, seal)


def _keys(idempotency_key: str | None, key: str | None, conversation_id: str) -> bytes:
    """What stands between the expiry and the rest of the routing; a key that is the conversation's own is left out."""
    idempotent = "" if idempotency_key is None else f'","idempotency_key":"{idempotency_key}'
    keyed = "" if key is None or key == conversation_id else f'","key":"{key}'
    return f"{idempotent}{keyed}".encode()


def _is_plain_text(text: str | None) -> bool:
    """Whether *text*, where there is one, is a text id that is written between quotes as it stands."""
    return text is None or (
        text.__class__ is str
        and 0 < len(text) <= _MAX_TEXT
        and text.isascii()
        and text.isprintable()
        and not ('"' in text or "\\" in text)
    )


def _in_ms(ttl_s: float) -> int:
    return max(1, round(ttl_s * 1000))


class _Nothing(msgspec.Struct):
    """Stands where the payload will be."""


def _text(value: str | None) -> bytes:
    return msgspec.json.encode(value)


_NO_OPTIONS = Draft(payload=_Nothing())
_RARE = tuple(name for name in Draft.__struct_fields__ if name not in {*_FILLED, *_SHARED})
_rare, _shared = attrgetter(*_RARE), attrgetter(*_SHARED)
_NOTHING_RARE, _NOTHING_SHARED = _rare(_NO_OPTIONS), _shared(_NO_OPTIONS)


def shared_options(draft: Draft) -> tuple[object, ...] | None:
    """What of *draft* is its template's: equal for drafts that have the same template, empty where it has no such
    options.

    None for drafts that no template seals.
    """
    # Not by what is equal: that somebody's own class may say of anything.
    if not all(map(is_, _rare(draft), _NOTHING_RARE)):
        return None
    options = _shared(draft)
    if all(map(is_, options, _NOTHING_SHARED)):
        return ()
    to, *rest = options
    shared = (*msgspec.structs.astuple(to), *rest) if to.__class__ is Agent else options
    # A bool is equal to an integer, and not as good.
    kinds = tuple(map(type, shared))
    if not _SCALARS.issuperset(kinds) or any(isinstance(option, str) and len(option) > _MAX_TEXT for option in shared):
        return None
    return (*shared, *kinds)


def template_options(draft: Draft | None) -> dict[str, object]:
    """All options that are not filled in, as they are in every message that the template of *draft* seals."""
    return {name: getattr(draft or _NO_OPTIONS, name) for name in (*_SHARED, *_RARE)}


_MOST_TEMPLATES = 512


class Prepared(Template):
    """A template with what its records have in common."""

    __slots__ = ("encode", "further_headers", "headers", "message_type", "sealer", "topic")

    def __init__(self, kind: PayloadType, origin: Origin, max_message_bytes: int, draft: Draft | None) -> None:
        super().__init__(kind, origin, draft)
        kind.resolve_by_now()
        self.encode = kind.encode
        self.message_type = kind.name
        self.topic = message_topic(origin.namespace, kind.name)
        self.headers: Headers = (("content-type", CONTENT_TYPE), ("sb-type", kind.name.encode()))
        self.further_headers: Headers = () if draft is None or draft.to is None else (("sb-to", _addressee(draft.to)),)
        self.sealer = None
        if native.core is not None and (compiled := kind.encoder.compiled) is not None:
            lifetimes, names = (
                (self.ttl_ms, self.max_ttl_s),
                (self.message_type, self.topic, self.headers, self.further_headers),
            )
            drafts = Draft, template_options(draft), draft is None
            # Beyond that the general way looks whether it is too heavy.
            most = min(max_message_bytes, kind.weight.light_bytes)
            self.sealer = native.core.Sealer(compiled, self.frame, lifetimes, most, names, (Sealed, NewRecord), drafts)


class PreparedTemplates:
    """The templates of one publisher, by class of payload and `shared_options`."""

    def __init__(self, origin: Origin, max_message_bytes: int) -> None:
        self.plain: dict[type, Prepared] = {}
        """Those without options, which are asked for most."""
        self._origin = origin
        self._max_message_bytes = max_message_bytes
        self._templates: dict[tuple[type, tuple[object, ...]], Prepared] = {}
        self._glimpsed: set[tuple[type, tuple[object, ...]]] = set()

    def __len__(self) -> int:
        return len(self.plain) + len(self._templates) + len(self._glimpsed)

    def known(self, cls: type, options: tuple[object, ...]) -> Prepared | None:
        """The template of payloads of *cls* with these *options*, if it is there."""
        return self._templates.get((cls, options)) if options else self.plain.get(cls)

    def of(
        self, payload: msgspec.Struct, options: tuple[object, ...] = (), draft: Draft | None = None
    ) -> Prepared | None:
        """The same, made where it is worth it: without options at once, with those of *draft* at second sight.

        Options that differ from message to message would fill the memory with a template each. None also where there
        can't be one.
        """
        if (template := self.known(payload.__class__, options)) is not None:
            return template
        # All classes are of one class.
        if isinstance(payload, type):
            return None
        like = payload.__class__, options
        if options and like not in self._glimpsed:
            if len(self._glimpsed) >= _MOST_TEMPLATES:
                self._glimpsed.clear()
            self._glimpsed.add(like)
            return None
        try:
            kind = payload_type(payload)
            template = (
                None
                if kind.risk == "high"
                else Prepared(kind, self._origin, self._max_message_bytes, draft if options else None)
            )
        except (ContractError, UnicodeEncodeError):
            # The general way says what is wrong.
            return None
        if template is not None:
            if len(self.plain) + len(self._templates) >= _MOST_TEMPLATES:
                self.plain.clear()
                self._templates.clear()
            if options:
                self._templates[like] = template
            else:
                self.plain[payload.__class__] = template
        return template


def _addressee(to: str | Agent) -> bytes:
    return (to if isinstance(to, str) else to.id or to.role or "").encode()
