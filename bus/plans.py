"""Plans: per payload type, what the compiled hot path has to know to write its Structs as canonical JSON.

Owns describing a type as nested tuples that `bus/native/src/encoding.rs` reads, or leaving it to the general way (`bus.payloads`). Types are
told by their annotations; whether a value is what its annotation says is looked at for every value, there.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import msgspec
from msgspec import inspect

from bus.guards import make_full_guard

__all__ = ["Plan", "encoding_plan"]

Plan: TypeAlias = tuple[Any, ...]
"""`("text",)`, `("choice", texts)`, `("flag",)`, `("null",)`, `("integer",)`, `("number",)`, `("optional", plan)`, `("items", plan)` or
`("struct", class, ((name in JSON, field, plan), ...))` with the fields in the order in which they are written."""

_SIMPLE: dict[type, Plan] = {
    inspect.StrType: ("text",),
    inspect.BoolType: ("flag",),
    inspect.NoneType: ("null",),
    inspect.IntType: ("integer",),
    inspect.FloatType: ("number",),
}
_MAX_LEVELS = 30


class _UnsupportedError(Exception):
    """A type whose values are left to the general way."""


def encoding_plan(cls: type[msgspec.Struct]) -> Plan | None:
    """The plan of *cls*; None where the general way does more than to write each field as its annotation says."""
    # Where there is no such guard, the class of a value does not tell that it decodes as its type.
    if make_full_guard(cls) is None:
        return None
    try:
        return _of(inspect.type_info(cls), 0)
    except _UnsupportedError:
        return None


def _of(kind: Any, level: int) -> Plan:
    if level > _MAX_LEVELS:
        raise _UnsupportedError
    if (simple := _SIMPLE.get(type(kind))) is not None:
        return simple
    match kind:
        case inspect.Metadata():
            return _of(kind.type, level)
        case inspect.LiteralType():
            return ("choice", tuple(kind.values))
        case inspect.ListType() | inspect.VarTupleType():
            return ("items", _of(kind.item_type, level + 1))
        case inspect.UnionType(types=types) if kind.includes_none:
            (other,) = (member for member in types if not isinstance(member, inspect.NoneType))
            return ("optional", _of(other, level))
        case inspect.StructType() if not kind.array_like and not kind.cls.__struct_config__.omit_defaults:
            fields = sorted(kind.fields, key=lambda field: field.encode_name)
            return (
                "struct",
                kind.cls,
                tuple((msgspec.json.encode(field.encode_name), field.name, _of(field.type, level + 1)) for field in fields),
            )
    raise _UnsupportedError
