"""The fields of a type as rows of a table for people: name, form, default, meaning. Pure."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import inspect

from bus.payloads.described_types import default_of
from bus.payloads.field_docs import field_docs
from bus.payloads.payload_types import PayloadType

__all__ = ["field_rows"]


def field_rows(kind: PayloadType) -> list[tuple[str, str, str, str]]:
    """Return one row for each field of *kind*."""
    docs = field_docs(kind.cls)
    return [(field.encode_name, _form(field.type), _default(field), docs.get(field.name, "")) for field in kind.fields]


def _form(kind: Any) -> str:
    """Return a short name of the form of *kind*, for a table."""
    if isinstance(kind, inspect.Metadata):
        return _form(kind.type)
    if isinstance(kind, inspect.UnionType):
        return " or ".join(_form(member) for member in kind.types if not isinstance(member, inspect.NoneType))
    if isinstance(kind, inspect.LiteralType):
        return "/".join(str(value) for value in kind.values)
    if isinstance(kind, inspect.StructType | inspect.DataclassType | inspect.TypedDictType):
        return kind.cls.__name__
    if isinstance(kind, inspect.VarTupleType | inspect.ListType | inspect.SetType | inspect.FrozenSetType):
        return f"[{_form(kind.item_type)}]"
    return type(kind).__name__.removesuffix("Type").lower()


def _default(field: Any) -> str:
    if field.required:
        return "required"
    default = default_of(field)
    if default is None or default is msgspec.UNSET:
        return "-"
    return msgspec.json.encode(default).decode()
