"""A sealed message, opened to be said in a dialect. Pure.

Owns what every dialect asks of a message: its data without the mark, what the mark kept, its times in milliseconds.
"""

from __future__ import annotations

from typing import Any

import msgspec

from bus.dialects.keeping import split_mark
from bus.dialects.strict_json import read_content
from bus.dialects.typed_content import DIRECTIVES
from bus.errors import DialectError
from bus.payloads.payload_types import Registry
from bus.protocol.envelope import Metadata, Routing
from bus.protocol.sealing import Message
from bus.protocol.timestamps import parse_ms

__all__ = ["OpenedMessage", "open_message"]


class OpenedMessage(msgspec.Struct, frozen=True):
    """What a dialect says of a message."""

    metadata: Metadata
    routing: Routing
    data: dict[str, Any]
    kept: dict[str, Any]
    derived: frozenset[str]
    sent_ms: int
    lifetime_ms: int

    def is_derived(self, pointer: str, value: object) -> bool:
        """Tell whether the field at *pointer* was made up, and still has the *value* that the rule gives."""
        return pointer in self.derived and bool(self.data.get(pointer[1:]) == value)

    def is_directive(self, types: Registry) -> bool:
        """Tell whether the message directs its receiver."""
        return self.performative(types) in DIRECTIVES

    def performative(self, types: Registry) -> str | None:
        """Return the performative: the sealed one, else that of the type."""
        if self.metadata.performative is not None:
            return self.metadata.performative
        kind = types.get(self.metadata.message_type)
        return None if kind is None else kind.terms.spoken(self.data)


def open_message(message: Message, dialect: str) -> OpenedMessage:
    """Return what *dialect* says of *message*."""
    data = read_content(message.data)
    kept, derived = split_mark(data, dialect)
    sent_ms, expires_ms = parse_ms(message.metadata.timestamp), parse_ms(message.routing.expires_at)
    if sent_ms is None or expires_ms is None:
        raise DialectError("/metadata/timestamp", "no time", "a sealed message")
    return OpenedMessage(message.metadata, message.routing, data, kept, derived, sent_ms, expires_ms - sent_ms)
