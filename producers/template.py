"""Templates: the envelope of a first message without options of its own, written once per type and filled in per message.

Owns nothing of the contract: what a template makes is byte for byte what `compose` and `bus.sealing.seal` make (a test holds it), without
building and encoding three Structs for each message of a stream.
"""

from __future__ import annotations

import msgspec

from bus import canonical, shape
from bus.envelope import PROTOCOL
from bus.payloads import PayloadType
from bus.times import format_ms
from producers.draft import Draft, Origin, compose

__all__ = ["Template"]


class Template:
    """The envelope of *kind* as *origin* publishes it; only id, times and hashes differ from message to message."""

    __slots__ = ("_identity", "_stated", "_ttl_ms")

    def __init__(self, kind: PayloadType, origin: Origin) -> None:
        """Raises ContractError where no message of *kind* could be sealed in the name of *origin*."""
        layers = compose(Draft(payload=_Nothing()), kind, origin, now_ms=0, message_id="template")
        shape.check_metadata(layers.metadata)
        shape.check_routing(layers.routing, layers.metadata)
        name, space, version, sender = map(_text, (kind.name, origin.namespace, kind.version, origin.sender.id))
        self._ttl_ms = max(1, round(origin.ttl_s * 1000))
        what = b',"message_type":%b,"namespace":%b,"protocol":%b' % (name, space, _text(PROTOCOL))
        self._identity = b'%b,"schema_version":%b,"sender":%b,"timestamp":"' % (what, version, msgspec.json.encode(origin.sender))
        self._stated = b'%b,"sender":%b,"timestamp":"' % (what, sender)

    def seal(self, data: bytes, message_id: bytes, now_ms: int) -> bytes:
        """The record value of canonical *data*, sealed at *now_ms* under the UUID *message_id*."""
        timestamp = format_ms(now_ms).encode()
        expires = format_ms(now_ms + self._ttl_ms).encode()
        envelope = b'"metadata":{"conversation_id":"%b","hops":0,"message_id":"%b"%b%b"},"routing":{"expires_at":"%b"}' % (
            message_id,
            message_id,
            self._identity,
            timestamp,
            expires,
        )
        content_hash = canonical.digest(data).encode()
        envelope_hash = canonical.digest(b"{%b}" % envelope).encode()
        statement = b'{"content_hash":"%b","envelope_hash":"%b","hops":0,"message_id":"%b"%b%b"}' % (
            content_hash,
            envelope_hash,
            message_id,
            self._stated,
            timestamp,
        )
        seal = canonical.digest(statement).encode()
        return b'{"data":%b,%b,"verification":{"content_hash":"%b","seal":"%b"}}' % (data, envelope, content_hash, seal)


class _Nothing(msgspec.Struct):
    """Stands where the payload will be."""


def _text(value: str | None) -> bytes:
    return msgspec.json.encode(value)
