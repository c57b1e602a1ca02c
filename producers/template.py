"""Templates: the envelope of a first message with no options but its keys, written once per type and filled in per message.

Owns nothing of the contract: what a template makes is byte for byte what `compose` and `bus.sealing.seal` make (a test holds it), without
building and encoding three Structs for each message of a stream.
"""

from __future__ import annotations

from operator import attrgetter

import msgspec

from bus import canonical, native, shape
from bus.envelope import PROTOCOL
from bus.names import uuid7
from bus.payloads import PayloadType
from bus.times import format_ms
from producers.draft import Draft, Origin, compose

__all__ = ["OTHER_OPTIONS", "Template", "has_only_keys"]

_MAX_TEXT = 256


class Template:
    """The envelope of *kind* as *origin* publishes it; only id, times and hashes differ from message to message."""

    __slots__ = ("identity", "stated", "ttl_ms")

    def __init__(self, kind: PayloadType, origin: Origin) -> None:
        """Raises ContractError where no message of *kind* could be sealed in the name of *origin*."""
        layers = compose(Draft(payload=_Nothing()), kind, origin, now_ms=0, message_id="template")
        shape.check_metadata(layers.metadata)
        shape.check_routing(layers.routing, layers.metadata)
        name, space, version, sender = map(_text, (kind.name, origin.namespace, kind.version, origin.sender.id))
        self.ttl_ms = max(1, round(origin.ttl_s * 1000))
        what = b',"message_type":%b,"namespace":%b,"protocol":%b' % (name, space, _text(PROTOCOL))
        self.identity = b'%b,"schema_version":%b,"sender":%b,"timestamp":"' % (what, version, msgspec.json.encode(origin.sender))
        self.stated = b'%b,"sender":%b,"timestamp":"' % (what, sender)

    def seal(
        self,
        data: bytes,
        now_ms: int,
        entropy: bytes,
        *,
        conversation_id: str | None = None,
        idempotency_key: str | None = None,
        key: str | None = None,
    ) -> tuple[str, bytes, bytes] | None:
        """Canonical *data* sealed at *now_ms*: the message's id, made of ten bytes of *entropy*, the record's key, and its value.

        None for what the general way has to decide, such as texts that are not written as they stand.
        """
        if not all(text is None or _is_plain_text(text) for text in (conversation_id, idempotency_key, key)):
            return None
        if native.core is not None:
            sealed: tuple[str, bytes, bytes] | None = native.core.seal_plain(
                self.identity, self.stated, data, now_ms, self.ttl_ms, entropy, conversation_id, idempotency_key, key
            )
            return sealed
        identity = uuid7(now_ms, entropy)
        talk = identity if conversation_id is None else conversation_id
        keys = "" if idempotency_key is None else f'","idempotency_key":"{idempotency_key}'
        keys += "" if key is None or key == talk else f'","key":"{key}'
        value = self._fill(data, identity.encode(), now_ms, talk.encode(), keys.encode())
        return identity, (talk if key is None else key).encode(), value

    def _fill(self, data: bytes, message_id: bytes, now_ms: int, talk: bytes, keys: bytes) -> bytes:
        timestamp = format_ms(now_ms).encode()
        expires = format_ms(now_ms + self.ttl_ms).encode()
        envelope = b'"metadata":{"conversation_id":"%b","hops":0,"message_id":"%b"%b%b"},"routing":{"expires_at":"%b%b"}' % (
            talk,
            message_id,
            self.identity,
            timestamp,
            expires,
            keys,
        )
        content_hash = canonical.digest(data).encode()
        envelope_hash = canonical.digest(b"{%b}" % envelope).encode()
        statement = b'{"content_hash":"%b","envelope_hash":"%b","hops":0,"message_id":"%b"%b%b"}' % (
            content_hash,
            envelope_hash,
            message_id,
            self.stated,
            timestamp,
        )
        seal = canonical.digest(statement).encode()
        return b'{"data":%b,%b,"verification":{"content_hash":"%b","seal":"%b"}}' % (data, envelope, content_hash, seal)


def _is_plain_text(text: object) -> bool:
    """Whether *text* is a text id that is written between quotes as it stands."""
    return text.__class__ is str and 0 < len(text) <= _MAX_TEXT and text.isascii() and text.isprintable() and not ('"' in text or "\\" in text)


class _Nothing(msgspec.Struct):
    """Stands where the payload will be."""


def _text(value: str | None) -> bytes:
    return msgspec.json.encode(value)


_KEYS = ("payload", "conversation_id", "idempotency_key", "key")
OTHER_OPTIONS = {name: getattr(Draft(payload=_Nothing()), name) for name in Draft.__struct_fields__ if name not in _KEYS}
"""The options of a Draft that no template fills in, with what each is when it is not given."""
_other_options = attrgetter(*OTHER_OPTIONS)
_NO_OTHERS = tuple(OTHER_OPTIONS.values())


def has_only_keys(draft: Draft) -> bool:
    """Whether *draft* has no options but its conversation and its keys."""
    others: tuple[object, ...] = _other_options(draft)
    return others == _NO_OTHERS
