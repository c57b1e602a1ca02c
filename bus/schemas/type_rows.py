"""Message types as rows, and what each asks of a publisher, in words. Pure."""

from __future__ import annotations

from typing import Any

import msgspec

from bus.payloads.envelope_terms import NEEDED, ByField
from bus.payloads.payload_types import PayloadType

__all__ = ["ExportedType", "TypeDetails", "TypeRow", "performative_of", "terms_of"]


class TypeRow(msgspec.Struct, frozen=True, kw_only=True):
    """One message type."""

    type: str
    version: str
    risk: str
    performative: str | None
    required_options: tuple[str, ...]
    """What a publisher must give besides the payload."""
    ttl_s: float | None
    side_effect: str | None
    family: str | None
    fields: tuple[str, ...]
    required: tuple[str, ...]


class TypeDetails(msgspec.Struct, frozen=True, kw_only=True):
    """One message type with its JSON Schema and an example of its data."""

    type: str
    version: str
    risk: str
    schema: dict[str, Any]
    example: Any


class ExportedType(msgspec.Struct, frozen=True, kw_only=True):
    """A type whose schema was written, or was there already."""

    type: str
    version: str
    written: bool


def performative_of(kind: PayloadType) -> str | None:
    stated = kind.terms.performative
    return "/".join(stated.words) if isinstance(stated, ByField) else stated


def terms_of(kind: PayloadType) -> list[str]:
    terms = kind.terms
    lines = []
    if (stated := performative_of(kind)) is not None:
        lines.append(f"performative {stated}")
    if terms.required_options:
        lines.append("requires " + ", ".join(NEEDED[name] for name in terms.required_options))
    if terms.ttl_s is not None:
        lines.append(f"expires after {terms.ttl_s:g} s, unless its publisher sets a lifetime")
    lines += [
        f"{option} comes from {field}, unless its publisher sets it" for option, field in terms.options_from.items()
    ]
    if kind.side_effect is not None:
        lines.append(f"side effect {kind.side_effect}")
    if kind.resource:
        lines.append(f"the resource it is about is at /data{kind.resource}")
    if terms.critical:
        lines.append("receivers must know, where they are set: " + ", ".join(terms.critical))
    lines += [f"{pointer} must equal {location} where both are set" for pointer, location in terms.must_match.items()]
    return lines
