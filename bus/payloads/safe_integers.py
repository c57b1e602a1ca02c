"""The range of a payload's integers: from -(2^53-1) to 2^53-1, as in the exports, because every language has these.

Owns finding an integer beyond that in a decoded payload. Types whose integers all have limits are skipped; for other
types only text with a number of sixteen digits is checked. Values of type `Any` are doubles of the protocol and are not
checked. Pure.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any, Final

from msgspec import inspect

from bus import native
from bus.errors import ContractError
from bus.payloads.described_types import NAMED, fields_of, walk
from bus.payloads.value_parts import unwrapped
from bus.protocol.canonical import escape_pointer_token
from bus.protocol.canonical_numbers import SAFE_INTEGER

__all__ = ["may_be", "parts_of", "has_open_integers", "integers_checked"]

_LISTS: Final = (inspect.ListType, inspect.VarTupleType, inspect.SetType, inspect.FrozenSetType)
_PLAIN: Final = (int, float, str, bytes, list, tuple, set, frozenset, dict, type(None))


def has_open_integers(described: Any) -> bool:
    """Tell whether an integer of the *described* type may be larger than 2^53-1, or less than its negative."""
    return any(_is_open(kind) for _, kind in walk(inspect.type_info(described)))


def integers_checked(read: Callable[[bytes], Any], described: Any) -> Callable[[bytes], Any]:
    """Return *read*, a reader of the *described* type, which raises ContractError for an integer beyond 2^53-1."""
    kind = inspect.type_info(described)

    def read_safely(data: bytes) -> Any:
        found = read(data)
        # Looking at every value costs as much as reading them.
        if native.has_long_integer(data) and (pointer := _unsafe(found, kind)) is not None:
            raise ContractError("is beyond 2^53-1", f"/data{pointer}", "schema_violation")
        return found

    return read_safely


def _is_open(kind: Any) -> bool:
    if not isinstance(kind, inspect.IntType):
        return False
    upper_bounds = [bound for bound in (kind.le, kind.lt) if bound is not None]
    lower_bounds = [bound for bound in (kind.ge, kind.gt) if bound is not None]
    return not upper_bounds or not lower_bounds or min(upper_bounds) > SAFE_INTEGER or max(lower_bounds) < -SAFE_INTEGER


def _unsafe(value: Any, kind: Any) -> str | None:
    """Return the pointer, below *value* of type *kind*, to the first integer that is too large; None if there is
    none."""
    if isinstance(kind, inspect.Metadata):
        return _unsafe(value, kind.type)
    value = unwrapped(value)
    if isinstance(kind, inspect.IntType):
        is_unsafe = value.__class__ is int and not -SAFE_INTEGER <= value <= SAFE_INTEGER
        return "" if is_unsafe else None
    if isinstance(kind, inspect.UnionType):
        found = [_unsafe(value, member) for member in kind.types if may_be(value, member)]
        return None if not found or None in found else found[0]
    return next(
        (
            f"/{escape_pointer_token(str(name))}{pointer}"
            for name, inner, below in parts_of(value, kind)
            if (pointer := _unsafe(inner, below)) is not None
        ),
        None,
    )


def parts_of(value: Any, kind: Any) -> Iterator[tuple[object, Any, Any]]:
    """Yield name or index, value and type of the parts of *value*."""
    if isinstance(kind, NAMED):
        yield from _members(value, kind)
    elif isinstance(kind, _LISTS):
        yield from ((index, item, kind.item_type) for index, item in enumerate(value))
    elif isinstance(kind, inspect.TupleType):
        yield from zip(count(), value, kind.item_types)
    elif isinstance(kind, inspect.DictType):
        yield from ((name, item, kind.value_type) for name, item in value.items())


def _members(value: Any, kind: Any) -> Iterator[tuple[object, Any, Any]]:
    for field in fields_of(kind):
        if not isinstance(value, dict):
            yield field.encode_name, getattr(value, field.name, None), field.type
        elif field.encode_name in value:
            yield field.encode_name, value[field.encode_name], field.type


def may_be(value: Any, kind: Any) -> bool:
    """Tell whether *value* may have been read as this member of a union."""
    if isinstance(kind, inspect.Metadata):
        return may_be(value, kind.type)
    value = unwrapped(value)
    if isinstance(kind, inspect.AnyType | inspect.CustomType | inspect.RawType):
        return True
    if isinstance(kind, inspect.IntType | inspect.FloatType):
        return isinstance(value, int | float)
    if isinstance(kind, (*_LISTS, inspect.TupleType)):
        return isinstance(value, list | tuple | set | frozenset)
    if isinstance(kind, inspect.DictType):
        return isinstance(value, dict)
    if isinstance(kind, NAMED):
        return _may_be_object(value, kind)
    # No other holds an integer.
    return False


def _may_be_object(value: Any, kind: Any) -> bool:
    tag_field = getattr(kind, "tag_field", None)
    value = unwrapped(value)
    if isinstance(value, dict):
        return tag_field is None or value.get(tag_field) == kind.tag
    if isinstance(value, _PLAIN):
        return False
    # What is described of a Pydantic model is a Struct, and the value none of it.
    stated_tag = getattr(value, tag_field or "", kind.cls)
    stated_tag = stated_tag.value if isinstance(stated_tag, enum.Enum) else stated_tag
    return (
        stated_tag == kind.tag if stated_tag is not kind.cls else isinstance(value, kind.cls) or not _is_native(value)
    )


def _is_native(value: Any) -> bool:
    return hasattr(value, "__struct_fields__") or hasattr(value, "__dataclass_fields__")
