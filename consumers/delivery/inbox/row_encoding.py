"""Row encoding: the bytes in which stores keep a handler's outputs, and the text and digest of a key.

Owns both encodings; version 1 stays readable. A row whose outputs begin with a dead letter belongs to a dead message.
Older code that does not know dead rows still sends the same bytes again.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256

import msgspec

from bus.topics.names import read_topic
from bus.transports.base import NewRecord
from consumers.delivery.inbox.base import InboxKey

__all__ = ["decode_outputs", "encode_outputs", "is_death", "key_digest", "key_text"]

_VERSION = 1
_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(
    tuple[int, tuple[tuple[str, bytes | None, bytes | None, tuple[tuple[str, bytes], ...], int | None], ...]]
)
_json = msgspec.json.Encoder()


def encode_outputs(outputs: Sequence[NewRecord]) -> bytes:
    """Encode *outputs* as msgpack; no bytes for no outputs."""
    if not outputs:
        return b""
    return _encoder.encode(
        (_VERSION, [(each.topic, each.key, each.value, each.headers, each.partition) for each in outputs])
    )


def decode_outputs(data: bytes) -> tuple[NewRecord, ...]:
    """Return the records that were passed to `encode_outputs`."""
    return tuple(NewRecord(*fields) for fields in _decoder.decode(data)[1]) if data else ()


def is_death(outputs: Sequence[NewRecord]) -> bool:
    """Tell whether *outputs* are the end of a message that has died: its dead letter first."""
    name = read_topic(outputs[0].topic) if outputs else None
    return name is not None and name.kind == "dlq"


def key_text(key: InboxKey) -> str:
    """Return *key* as a JSON array: readable text, different for different keys."""
    return _json.encode((key.namespace, key.sender, key.message_type, key.group, key.idempotency_key)).decode()


def key_digest(text: str) -> bytes:
    """Return the SHA-256 of a `key_text`, for stores where the text may be too long."""
    return sha256(text.encode()).digest()
