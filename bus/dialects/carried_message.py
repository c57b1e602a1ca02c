"""Carry a sealed message whole inside a foreign one: `x_sealbus`, base64url of the record's value. Pure.

Owns that member, and that the foreign message around it says the same: two readers never read two messages.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from bus.dialects.faults import shown
from bus.dialects.foreign import Foreign, ForeignRetry
from bus.dialects.message_facts import foreign_that_says
from bus.dialects.strict_json import read_content
from bus.errors import ContractError, DialectError
from bus.protocol import canonical
from bus.protocol.sealing import Message, check_integrity, parse
from bus.protocol.timestamps import parse_ms

CARRIED: Final = "x_sealbus"
_ALPHABET: Final = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_")


def carried_text(message: Message) -> str:
    """Return the text that carries *message*."""
    return base64.urlsafe_b64encode(message.value).rstrip(b"=").decode()


def read_carried(text: object, pointer: str) -> Message:
    """Return the message in *text*: well-formed, with the right hashes; whether it is authentic is for the gates."""
    if not isinstance(text, str) or not _ALPHABET.issuperset(text):
        raise DialectError(pointer, shown(text), "base64url without padding")
    try:
        value = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
    except (binascii.Error, ValueError):
        raise DialectError(pointer, shown(text), "base64url without padding") from None
    return open_carried(value, pointer)


def open_carried(value: bytes, pointer: str) -> Message:
    """Return the carried message in the record's *value*, found at *pointer*."""
    try:
        message = parse(value)
        check_integrity(message)
    except ContractError as error:
        raise DialectError(
            pointer, f"at {error.pointer or '/'}: {error.text}", "a record of sealbus", error.reason
        ) from None
    return message


def check_same(stated: object, rest: object, pointer: str) -> None:
    """Raise DialectError (`x_sealbus_mismatch`) unless *rest* equals the dialect's form of the carried message.

    The reason is not in `bus.protocol.reasons`, because those are reasons of dead letters and this message is not
    stored.
    """
    if canonical.encode_parsed(stated) != canonical.encode_parsed(rest):
        raise DialectError(
            pointer, "another message than the one around it", "the message that is said", "x_sealbus_mismatch"
        )


def foreign_of(message: Message) -> Foreign:
    """Return *message* in the form that a dialect decodes to."""
    metadata, routing = message.metadata, message.routing
    stated = msgspec.structs.asdict(metadata) | msgspec.structs.asdict(routing)
    if (retry := routing.retry) is not None:
        stated["retry"] = ForeignRetry(max_attempts=retry.max_attempts, backoff=retry.backoff)
    stated |= {
        "to": metadata.recipient,
        "expires_at_ms": parse_ms(routing.expires_at),
        "sent_at_ms": parse_ms(metadata.timestamp),
        "cause_id": metadata.causation_id,
        "trust_level": metadata.security.trust_level if metadata.security else None,
        "carried": message,
    }
    return foreign_that_says(stated, metadata.message_type, metadata.schema_version, read_content(message.data))


def carried_in_metadata(tree: Mapping[str, Any], encode: Callable[[Message], dict[str, Any]]) -> Foreign | None:
    """Return the message in the metadata of *tree* if it equals what *encode* writes there."""
    metadata = tree.get("metadata")
    if not isinstance(metadata, dict) or CARRIED not in metadata:
        return None
    pointer = f"/metadata/{CARRIED}"
    message = read_carried(metadata[CARRIED], pointer)
    stated = encode(message)
    stated["metadata"] = stated.get("metadata") or {}
    check_same(stated, {**tree, "metadata": {name: metadata[name] for name in metadata if name != CARRIED}}, pointer)
    return foreign_of(message)
