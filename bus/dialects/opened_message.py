"""A sealed message, opened to be said in a dialect. Pure.

Owns what every dialect asks of a message: its data without the mark, what the mark kept, its times in milliseconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from bus.dialects.data_check import kind_of
from bus.dialects.keeping import split_mark
from bus.dialects.strict_json import read_content
from bus.dialects.typed_content import DIRECTIVES, typed_name
from bus.errors import ContractError, DialectError
from bus.payloads.payload_types import PayloadType, Registry
from bus.protocol.envelope import Agent, Metadata, Performative, Routing
from bus.protocol.sealing import Message
from bus.protocol.timestamps import parse_ms

__all__ = ["OpenedMessage", "addressed_id", "open_message"]


class OpenedMessage(msgspec.Struct, frozen=True):
    """What a dialect says of a message."""

    metadata: Metadata
    routing: Routing
    kind: PayloadType | None
    """None: not known here; the data are as they are."""
    data: dict[str, Any]
    kept: dict[str, Any]
    derived: frozenset[str]
    sent_ms: int
    lifetime_ms: int

    def is_derived(self, pointer: str, value: object) -> bool:
        """Tell whether the field at *pointer* was made up, and still has the *value* that the rule gives."""
        return pointer in self.derived and bool(self.data.get(pointer[1:]) == value)

    def was_typed(self, pointer: str) -> bool:
        """Tell whether typed content was kept, with its type at *pointer*, though the dialect has such a type."""
        return self.kept.get(pointer) == typed_name(self.metadata.message_type, self.metadata.schema_version)

    @property
    def is_directive(self) -> bool:
        """Whether the message directs its receiver."""
        spoken = self.metadata.performative if self.kind is None else self.kind.terms.spoken(self.data)
        return spoken in DIRECTIVES

    @property
    def performative(self) -> Performative | None:
        """The performative: the sealed one, else that of the type."""
        if self.metadata.performative is not None or self.kind is None:
            return self.metadata.performative
        return self.kind.terms.spoken(self.data)


def addressed_id(recipient: Agent | None, aliases: Mapping[str, str]) -> str:
    """Return the id of the one agent that a dialect names as the recipient.

    *aliases*: agent ids of ours -> ids there; `role:<role>` and `*` name a role and everybody.
    """
    if recipient is not None and recipient.id is not None:
        return aliases.get(recipient.id, recipient.id)
    group = f"role:{recipient.role}" if recipient is not None else "*"
    if group not in aliases:
        raise DialectError("/metadata/recipient", "no agent's id", f"an agent, or an alias for {group}")
    return aliases[group]


def open_message(message: Message, dialect: str, types: Registry) -> OpenedMessage:
    """Return what *dialect* says of *message*; raise DialectError if its data are not of its type."""
    metadata = message.metadata
    kind = kind_of(types, metadata.message_type, metadata.schema_version)
    if kind is not None:
        try:
            kind.decode(message.data)
        except ContractError as error:
            raise DialectError(error.pointer, error.text, f"data of {kind.name}", error.reason) from None
    data = read_content(message.data)
    kept, derived = split_mark(data, dialect)
    sent_ms, expires_ms = parse_ms(metadata.timestamp), parse_ms(message.routing.expires_at)
    if sent_ms is None or expires_ms is None:
        raise DialectError("/metadata/timestamp", "no time", "a sealed message")
    return OpenedMessage(metadata, message.routing, kind, data, kept, derived, sent_ms, expires_ms - sent_ms)
