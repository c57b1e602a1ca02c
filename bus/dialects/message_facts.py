"""The facts of a message: its values by the names of the envelope, while a dialect reads or writes it. Pure.

Owns the parts of a sealed message that every dialect needs (its data without the mark, the kept values, its times in
milliseconds), and building a `Foreign` from a foreign message.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from bus.dialects.data_check import kind_of
from bus.dialects.foreign import Claims, Defaults, Foreign, ForeignOptions
from bus.dialects.forms import LAST_WRITABLE_MS
from bus.dialects.keeping import Notes, Source, split_mark
from bus.dialects.member_table import MessageFacts
from bus.dialects.strict_json import read_content
from bus.dialects.typed_content import DIRECTIVES, typed_name
from bus.errors import ContractError, DialectError
from bus.payloads.payload_types import PayloadType, Registry
from bus.protocol.envelope import Agent, Metadata, Performative, Routing
from bus.protocol.sealing import Message
from bus.protocol.timestamps import parse_ms

_OPTIONS: Final = frozenset(ForeignOptions.__struct_fields__)
_CLAIMS: Final = frozenset(Claims.__struct_fields__)


class OpenedMessage(msgspec.Struct, frozen=True):
    """The parts of a sealed message that a dialect writes."""

    metadata: Metadata
    routing: Routing
    kind: PayloadType | None
    """None: the type is unknown here, and the data are unchanged."""
    data: dict[str, Any]
    kept: dict[str, Any]
    derived: frozenset[str]
    sent_ms: int
    lifetime_ms: int

    def is_derived(self, pointer: str, value: object) -> bool:
        """Tell whether the field at *pointer* was made up, and still has the *value* that the rule gives."""
        return pointer in self.derived and bool(self.data.get(pointer[1:]) == value)

    def was_typed(self, pointer: str) -> bool:
        """Return whether typed content was kept, with its type at *pointer*, although the dialect has such a type."""
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


def open_message(message: Message, dialect: str, types: Registry) -> OpenedMessage:
    """Return the parts of *message* that *dialect* writes; raise DialectError if its data do not fit its type."""
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


def opened_facts(opened: OpenedMessage, aliases: Mapping[str, str]) -> MessageFacts:
    """Return the facts of *opened*; *aliases* maps our agent ids to foreign ids."""
    sender = opened.metadata.sender.id
    return {
        **msgspec.structs.asdict(opened.metadata),
        **msgspec.structs.asdict(opened.routing),
        "opened": opened,
        "kept": dict(opened.kept),
        "sender_id": aliases.get(sender or "", sender),
        "sent_at_ms": opened.sent_ms,
        "lifetime_ms": opened.lifetime_ms,
    }


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


def begin_reading(
    tree: dict[str, Any], defaults: Defaults, types: Registry, *, nulls: bool
) -> tuple[Source, MessageFacts]:
    """Return the message in *tree* as a source to read from, and the facts known before reading."""
    notes = Notes()
    return Source(tree, "", notes, nulls=nulls), {"defaults": defaults, "notes": notes, "tree": tree, "types": types}


def foreign_that_says(facts: MessageFacts, name: str, version: str, data: dict[str, Any]) -> Foreign:
    """Return the decoded message of type *name* with *data*, whose envelope has the values in *facts*."""
    return Foreign(
        type=name,
        version=version,
        data=data,
        options=ForeignOptions(
            **{option: facts[option] for option in facts.keys() & _OPTIONS if facts[option] is not None}
        ),
        claims=Claims(**{claim: facts[claim] for claim in facts.keys() & _CLAIMS if facts[claim] is not None}),
        carried=facts.get("carried"),
    )


def set_end(facts: MessageFacts, lifetime_ms: int, pointer: str) -> None:
    """Set the end of the message to *lifetime_ms* after its time; *pointer* locates the lifetime."""
    facts["expires_at_ms"] = facts["sent_at_ms"] + lifetime_ms
    if facts["expires_at_ms"] > LAST_WRITABLE_MS:
        raise DialectError(pointer, f"{lifetime_ms} ms", "a time before the year 10000")
