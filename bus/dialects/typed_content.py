"""Typed content: any message type in any dialect, as `{"type": "<type>@<version>", "data": {...}}`. Pure.

Owns that object: when it is recognised in foreign content, and which messages need it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Final

import msgspec

from bus.dialects.data_check import kind_of
from bus.dialects.faults import shown
from bus.dialects.keeping import MARK
from bus.errors import DialectError
from bus.payloads.payload_types import PayloadType, Registry
from bus.protocol.identifiers import is_message_type, is_schema_version

DIRECTIVES: Final = frozenset({"request", "query", "propose", "call_for_proposal", "subscribe", "cancel"})
"""The performatives that direct their receiver."""
_MEMBERS: Final = {"type", "data"}


class TypedContent(msgspec.Struct, frozen=True):
    """A type with its data, in a dialect that has no such type."""

    kind: PayloadType
    version: str
    data: dict[str, Any]

    @property
    def name(self) -> str:
        """The text that names its type and version."""
        return typed_name(self.kind.name, self.version)

    @property
    def is_directive(self) -> bool:
        return self.kind.terms.spoken(self.data) in DIRECTIVES


def typed_name(name: str, version: str) -> str:
    """Return the text that names a type in a version."""
    return f"{name}@{version}"


def split_type(text: object) -> tuple[str, str] | None:
    """Return type and version of such a text; None for anything else."""
    if not isinstance(text, str):
        return None
    name, at, version = text.partition("@")
    return (name, version) if at and is_message_type(name) and is_schema_version(version) else None


def is_typed(value: Any, types: Registry) -> bool:
    """Tell whether a reader takes *value* for typed content: exactly the two members, and a known type."""
    return (
        value.__class__ is dict
        and value.keys() == _MEMBERS
        and value["data"].__class__ is dict
        and (stated := split_type(value["type"])) is not None
        and stated[0] in types
    )


def read_typed(value: Any, pointer: str, types: Registry) -> TypedContent | None:
    """Return the typed content in *value* at *pointer*; None if it is not typed content of a known type."""
    if not is_typed(value, types):
        return None
    stated = split_type(value["type"]) or ("", "")
    return make_typed(stated, value["data"], types, f"{pointer}/type", f"{pointer}/data")


def make_typed(
    stated: tuple[str, str], data: dict[str, Any], types: Registry, type_pointer: str, data_pointer: str
) -> TypedContent:
    """Return the content of the known type *stated*; raise DialectError for an unsupported version or member."""
    kind = kind_of(types, *stated)
    if kind is None:
        raise DialectError(
            type_pointer,
            shown(typed_name(*stated)),
            f"a version of {stated[0]} that is known here",
            "unsupported_version",
        )
    if MARK in data:
        raise DialectError(f"{data_pointer}/{MARK}", shown(data[MARK]), "no such member: it is the dialects' own")
    return TypedContent(kind, stated[1], dict(data))


def write_typed(name: str, version: str, data: Mapping[str, Any]) -> dict[str, Any]:
    """Return the object for *data* of type *name*."""
    return {"type": typed_name(name, version), "data": dict(data)}


def states_all(data: Mapping[str, Any], members: Collection[str]) -> bool:
    """Return whether *data* has no other members than *members*, so that a table with these expresses all of it."""
    return data.keys() <= set(members)
