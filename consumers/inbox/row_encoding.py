"""The bytes in which stores keep what a handler sent, and what they know a message by.

Owns both encodings; what is stored under version 1 stays readable. Does not own where they are stored.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256

import msgspec

from bus.transports.base import NewRecord
from consumers.inbox.base import Key

__all__ = ["decode_outputs", "encode_outputs", "key_digest", "key_text"]

_VERSION = 1
_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(
    tuple[int, tuple[tuple[str, bytes | None, bytes | None, tuple[tuple[str, bytes], ...], int | None], ...]]
)
_json = msgspec.json.Encoder()


def encode_outputs(outputs: Sequence[NewRecord]) -> bytes:
    """*outputs* as msgpack; nothing at all for none."""
    if not outputs:
        return b""
    return _encoder.encode(
        (_VERSION, [(each.topic, each.key, each.value, each.headers, each.partition) for each in outputs])
    )


def decode_outputs(data: bytes) -> tuple[NewRecord, ...]:
    """The very records that `encode_outputs` was given."""
    return tuple(NewRecord(*fields) for fields in _decoder.decode(data)[1]) if data else ()


def key_text(key: Key) -> str:
    """*key* as a JSON array: one text, readable, and never equal for two keys."""
    return _json.encode((key.namespace, key.sender, key.message_type, key.group, key.idempotency_key)).decode()


def key_digest(text: str) -> bytes:
    """What stands for a `key_text` where the text may be too long: SHA-256."""
    return sha256(text.encode()).digest()
