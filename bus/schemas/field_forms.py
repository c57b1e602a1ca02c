"""The fields of a type as rows of a table for people: name, form, default, meaning. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import msgspec
from msgspec import inspect

from bus.payloads.described_types import default_of, fields_of
from bus.payloads.field_docs import field_docs
from bus.payloads.payload_types import PayloadType
from bus.protocol.canonical_numbers import SAFE_INTEGER

__all__ = ["field_rows", "part_rows"]

_UNITS: Final[tuple[tuple[type, str], ...]] = (
    (inspect.StrType, "characters"),
    (inspect.BytesType, "bytes"),
    (inspect.CollectionType, "items"),
    (inspect.DictType, "members"),
)


def field_rows(kind: PayloadType) -> list[tuple[str, str, str, str]]:
    """Return a row for each field of *kind*: its name, type, limits and meaning."""
    return _rows(kind.cls, kind.fields)


def part_rows(part: Any) -> list[tuple[str, str, str, str]]:
    """Return one row for each field of *part*, a class that occurs in types."""
    return _rows(part, fields_of(inspect.type_info(part)))


def _rows(cls: Any, fields: Iterable[Any]) -> list[tuple[str, str, str, str]]:
    docs = field_docs(cls)
    return [(field.encode_name, _form(field.type), _default(field), docs.get(field.name, "")) for field in fields]


def _form(kind: Any) -> str:
    """Return a short name of the form of *kind* with its limits, for a table."""
    if isinstance(kind, inspect.Metadata):
        return _form(kind.type)
    limits = _limits(kind)
    return f"{_name(kind)} ({limits})" if limits else _name(kind)


def _name(kind: Any) -> str:
    if isinstance(kind, inspect.UnionType):
        return " or ".join(_form(member) for member in kind.types if not isinstance(member, inspect.NoneType))
    if isinstance(kind, inspect.LiteralType):
        return "/".join(str(value) for value in kind.values)
    if isinstance(kind, inspect.StructType | inspect.DataclassType | inspect.TypedDictType):
        return kind.cls.__name__
    if isinstance(kind, inspect.VarTupleType | inspect.ListType | inspect.SetType | inspect.FrozenSetType):
        return f"[{_form(kind.item_type)}]"
    return type(kind).__name__.removesuffix("Type").lower()


def _limits(kind: Any) -> str:
    """Return the least and the most that *kind* takes; empty where it takes any."""
    if isinstance(kind, inspect.IntType | inspect.FloatType):
        words = {"ge": "at least", "gt": "more than", "le": "at most", "lt": "less than"}
        bounds = {name: value for name in words if (value := getattr(kind, name)) is not None}
        # Of every integer and number in JSON: no limit of this field.
        bounds = {name: value for name, value in bounds.items() if abs(value) != SAFE_INTEGER}
        if bounds.keys() == {"ge", "le"}:
            return f"{_figure(bounds['ge'])} to {_figure(bounds['le'])}"
        return ", ".join(f"{words[name]} {_figure(value)}" for name, value in bounds.items())
    unit = next((unit for form, unit in _UNITS if isinstance(kind, form)), None)
    return "" if unit is None else _length(kind.min_length or 0, kind.max_length, unit)


def _figure(value: float) -> str:
    return str(int(value)) if value == int(value) else repr(value)


def _length(minimum: int, maximum: int | None, unit: str) -> str:
    if maximum is None:
        return f"at least {_counted(minimum, unit)}" if minimum else ""
    # A pattern may want more than nothing.
    return f"{minimum} to {_counted(maximum, unit)}" if minimum else f"at most {_counted(maximum, unit)}"


def _counted(count: int, unit: str) -> str:
    return f"{count} {unit.removesuffix('s') if count == 1 else unit}"


def _default(field: Any) -> str:
    if field.required:
        return "required"
    default = default_of(field)
    if default is None or default is msgspec.UNSET:
        return "-"
    return msgspec.json.encode(default).decode()
