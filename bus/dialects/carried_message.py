"""Carry a sealed message whole inside a foreign one: `x_sealbus`, base64url of the record's value. Pure.

Owns that member, and that the foreign message around it says the same: two readers never read two messages.
"""

from __future__ import annotations

import base64
import binascii
from typing import Final

from bus.dialects.faults import shown
from bus.dialects.foreign import Claims, Foreign, ForeignOptions, ForeignRetry
from bus.dialects.strict_json import read_content
from bus.errors import ContractError, DialectError
from bus.protocol import canonical
from bus.protocol.sealing import Message, check_integrity, parse
from bus.protocol.timestamps import parse_ms

__all__ = ["CARRIED", "carried_text", "check_same", "foreign_of", "open_carried", "read_carried"]

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
    """Return the message in the record's *value*, which stands at *pointer*."""
    try:
        message = parse(value)
        check_integrity(message)
    except ContractError as error:
        raise DialectError(
            pointer, f"at {error.pointer or '/'}: {error.text}", "a record of sealbus", error.reason
        ) from None
    return message


def check_same(said: object, rest: object, pointer: str) -> None:
    """Raise DialectError (`x_sealbus_mismatch`) unless *rest* is what the dialect says of the carried message.

    The reason is none of `bus.protocol.reasons`, which are those of dead letters: nothing of this message is stored.
    """
    if canonical.encode_parsed(said) != canonical.encode_parsed(rest):
        raise DialectError(
            pointer, "another message than the one around it", "the message that is said", "x_sealbus_mismatch"
        )


def foreign_of(message: Message) -> Foreign:
    """Return *message* as what a dialect decodes to."""
    metadata, routing = message.metadata, message.routing
    retry = (
        None
        if routing.retry is None
        else ForeignRetry(max_attempts=routing.retry.max_attempts, backoff=routing.retry.backoff)
    )
    return Foreign(
        type=metadata.message_type,
        version=metadata.schema_version,
        data=read_content(message.data),
        options=ForeignOptions(
            message_id=metadata.message_id,
            to=metadata.recipient,
            key=routing.key,
            expires_at_ms=parse_ms(routing.expires_at),
            idempotency_key=routing.idempotency_key,
            priority=routing.priority,
            retry=retry,
            max_hops=routing.max_hops,
            conversation_id=metadata.conversation_id,
            correlation_id=metadata.correlation_id,
            task_id=metadata.task_id,
            parent_task_id=metadata.parent_task_id,
            run_id=metadata.run_id,
            sequence=metadata.sequence,
            intent=metadata.intent,
            performative=metadata.performative,
            authority=metadata.authority,
            security=metadata.security,
            critical_fields=metadata.critical_fields,
            traceparent=metadata.traceparent,
            tracestate=metadata.tracestate,
        ),
        claims=Claims(
            sender=metadata.sender,
            namespace=metadata.namespace,
            sent_at_ms=parse_ms(metadata.timestamp),
            cause_id=metadata.causation_id,
            trust_level=metadata.security.trust_level if metadata.security else None,
        ),
        carried=message,
    )
