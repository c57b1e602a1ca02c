"""Plans: one per payload type, from which the compiled code writes its Structs as canonical JSON.

Owns describing a type as nested tuples that `bus/native/src/encoding.rs` reads, or leaving it to the general encoder
(`bus.payloads.encoding`). Also owns whether the output has to be decoded again to be sure that receivers can read it. A
plan follows the annotations; the compiled code checks every value against them.
"""

from __future__ import annotations

import datetime
import decimal
import enum
import uuid
from collections.abc import Callable, Iterator
from inspect import getattr_static
from types import MemberDescriptorType
from typing import Any, Final, TypeAlias, get_origin

import msgspec
from msgspec import inspect

from bus import native
from bus.protocol import canonical_numbers

__all__ = ["Plan", "compile_encoder", "encoding_plan"]

Plan: TypeAlias = tuple[Any, ...]
"""The plan of an encoder: a tuple that begins with its kind.

`("text",)`, `("choice", texts)`, `("flag",)`, `("null",)`, `("integer",)`, `("number",)`, `("any",)`, `("optional",
plan)`, `("either", plans)`, `("items", plan)`, `("row", plans)`, `("map", plan)`, `("members", ((member, JSON), ...))`,
`("leaf", class, encode, class of time zones)` or `("struct", class, ((name in JSON, field, plan, left out), ...))` with
the fields in the order in which they are written; a tag has no field and the plan `("constant", JSON)`, and what is
left out is `("is", value)`, `("list",)` or `("dict",)`.
"""

_MAX_LEVELS: Final = 30
_CONSTRAINTS: Final = ("gt", "ge", "lt", "le", "multiple_of", "min_length", "max_length", "pattern", "tz")
_encode = msgspec.json.Encoder().encode

_CERTAIN: Final[dict[type, Plan]] = {
    inspect.StrType: ("text",),
    inspect.BoolType: ("flag",),
    inspect.NoneType: ("null",),
    inspect.IntType: ("integer",),
    inspect.FloatType: ("number",),
    inspect.AnyType: ("any",),
}
_UNCERTAIN: Final[dict[type, Plan]] = {
    inspect.DateType: ("leaf", datetime.date, _encode, None),
    inspect.DateTimeType: ("leaf", datetime.datetime, _encode, datetime.timezone),
    inspect.TimeType: ("leaf", datetime.time, _encode, datetime.timezone),
    inspect.TimeDeltaType: ("leaf", datetime.timedelta, _encode, None),
    inspect.UUIDType: ("leaf", uuid.UUID, _encode, None),
    inspect.BytesType: ("leaf", bytes, _encode, None),
    inspect.DecimalType: ("leaf", decimal.Decimal, _encode, None),
    inspect.TypedDictType: ("any",),
}
# What their values look like in JSON tells them apart, so that what is written as one of them reads back as that one.
_APART: Final = (
    inspect.StrType,
    inspect.BoolType,
    inspect.NoneType,
    inspect.IntType,
    inspect.FloatType,
    inspect.ListType,
    inspect.VarTupleType,
    inspect.DictType,
    inspect.StructType,
)


class _UnsupportedError(Exception):
    """A type whose values are left to the general way."""


def encoding_plan(cls: type[msgspec.Struct]) -> tuple[Plan, bool] | None:
    """Return the plan of *cls*, and whether its output is certain to decode as *cls*.

    None where the general encoder does more than write each field by its annotation.
    """
    planner = _Planner()
    try:
        return planner.plan(inspect.type_info(cls), ()), planner.certain
    except _UnsupportedError:
        return None


def compile_encoder(cls: type[Any], decode: Callable[[bytes], Any] | None, room: int) -> Any:
    """The compiled encoder of payloads of *cls*, at most *room* levels deep; None if there is none.

    *decode* raises for other data.
    """
    if not issubclass(cls, msgspec.Struct) or (found := encoding_plan(cls)) is None:
        return None
    plan, certain = found
    return native.Encoder(plan, None if certain else decode, room)


class _Planner:
    def __init__(self) -> None:
        self.certain = True

    def plan(self, kind: Any, inside: tuple[type, ...]) -> Plan:
        if len(inside) > _MAX_LEVELS:
            raise _UnsupportedError
        if any(getattr(kind, name, None) is not None for name in _CONSTRAINTS):
            self.certain = False
        if (plan := _CERTAIN.get(type(kind))) is not None:
            return plan
        if (plan := _UNCERTAIN.get(type(kind))) is not None:
            self.certain = False
            return plan
        if isinstance(kind, inspect.Metadata):
            return self.plan(kind.type, inside)
        if (planned := _PLANNED.get(type(kind))) is not None:
            return planned(self, kind, inside)
        raise _UnsupportedError

    def items(self, kind: Any, inside: tuple[type, ...]) -> Plan:
        return ("items", self.plan(kind.item_type, (*inside, list)))

    def row(self, kind: Any, inside: tuple[type, ...]) -> Plan:
        return ("row", tuple(self.plan(item, (*inside, tuple)) for item in kind.item_types))

    def members(self, kind: Any, _: tuple[type, ...]) -> Plan:
        return ("members", tuple(_texts_of(kind.cls)))

    def literal(self, kind: Any, _: tuple[type, ...]) -> Plan:
        texts = tuple(value for value in kind.values if isinstance(value, str))
        if len(texts) == len(kind.values):
            return ("choice", texts)
        self.certain = False
        return ("either", (("choice", texts), ("integer",), ("null",)))

    def map(self, kind: Any, inside: tuple[type, ...]) -> Plan:
        match kind.key_type:
            case inspect.AnyType():
                pass
            case inspect.StrType(min_length=None, max_length=None, pattern=None):
                pass
            case inspect.StrType() | inspect.LiteralType():
                self.certain = False
            case _:
                raise _UnsupportedError
        return ("map", self.plan(kind.value_type, (*inside, dict)))

    def union(self, kind: Any, inside: tuple[type, ...]) -> Plan:
        others = [member for member in kind.types if not isinstance(member, inspect.NoneType)]
        if len(others) == 1:
            return ("optional", self.plan(others[0], inside))
        if not all(isinstance(member, _APART) for member in kind.types):
            self.certain = False
        return ("either", tuple(self.plan(member, inside) for member in kind.types))

    def struct(self, kind: Any, inside: tuple[type, ...]) -> Plan:
        # Of a generic Struct with its arguments, the class.
        cls = get_origin(kind.cls) or kind.cls
        if kind.array_like or cls in inside:
            raise _UnsupportedError
        # A property of that name, say, hides where the field is.
        if any(getattr(cls, field.name, None).__class__ is not MemberDescriptorType for field in kind.fields):
            raise _UnsupportedError
        if hasattr(cls, "__post_init__"):
            self.certain = False
        omits = cls.__struct_config__.omit_defaults
        fields = [
            (field.encode_name, field.name, self.plan(field.type, (*inside, cls)), _left_out(field, omits))
            for field in kind.fields
        ]
        if kind.tag is not None:
            fields.append((kind.tag_field, None, ("constant", _encode(kind.tag)), None))
        # Below U+0080 the order of Python's texts is that of RFC 8785.
        if not all(name.isascii() for name, *_ in fields):
            raise _UnsupportedError
        return (
            "struct",
            cls,
            tuple((_encode(name), *rest) for name, *rest in sorted(fields, key=lambda field: field[0])),
        )


_PLANNED: Final[dict[type, Callable[[_Planner, Any, tuple[type, ...]], Plan]]] = {
    inspect.LiteralType: _Planner.literal,
    inspect.EnumType: _Planner.members,
    inspect.ListType: _Planner.items,
    inspect.VarTupleType: _Planner.items,
    inspect.TupleType: _Planner.row,
    inspect.DictType: _Planner.map,
    inspect.UnionType: _Planner.union,
    inspect.StructType: _Planner.struct,
}


def _left_out(field: Any, omits: bool) -> Plan | None:
    """The value with which *field* is not written.

    UNSET where that may stand there, and its default in a Struct that *omits* those.
    """
    if not field.required and field.default is field.default_factory is msgspec.NODEFAULT:
        return ("is", msgspec.UNSET)
    if not omits or field.required:
        return None
    if field.default is not msgspec.NODEFAULT:
        return ("is", field.default)
    # A default factory makes a new value each time: only an empty list or dict is known to be the default.
    return (field.default_factory.__name__,) if field.default_factory in (list, dict) else None


def _texts_of(cls: type[enum.Enum]) -> Iterator[tuple[enum.Enum, bytes]]:
    if getattr_static(cls, "value") is not enum.Enum.__dict__["value"]:
        raise _UnsupportedError
    for member in cls:
        if not isinstance(member.value, str) and not (
            isinstance(member.value, int) and abs(member.value) <= canonical_numbers.SAFE_INTEGER
        ):
            raise _UnsupportedError
        yield member, _encode(member.value)
