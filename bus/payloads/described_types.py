"""A walk through msgspec's description of a type: yields every type that occurs in it, each once.

Owns the steps from a type to the types below it. `bus.payloads.costly_types`, `bus.payloads.decoded_size` and
`bus.payloads.reading` use the walk. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
from msgspec import inspect

__all__ = ["NAMED", "default_of", "fields_of", "is_tagged_union", "walk"]

NAMED = (inspect.StructType, inspect.DataclassType, inspect.TypedDictType)
"""Objects whose members are fields."""


def walk(root: Any) -> Iterator[tuple[str, Any]]:
    """*root* and every type below it, each with the path of fields that leads there; types may contain themselves."""
    seen: set[int] = set()
    waiting: list[tuple[str, Any]] = [("", root)]
    while waiting:
        location, kind = waiting.pop()
        if id(kind) in seen:
            continue
        seen.add(id(kind))
        yield location, kind
        waiting += ((f"{location}.{field.name}" if location else field.name, field.type) for field in fields_of(kind))
        waiting += ((location, below) for below in _below(kind))


def fields_of(described: Any) -> tuple[Any, ...]:
    """Return the fields of msgspec's description *described*; none if it is not an object with fields."""
    return tuple(getattr(described, "fields", ()))


def default_of(field: Any) -> Any:
    """Return the value of *field* if it is left out; UNSET if it has no default."""
    if field.default_factory is not msgspec.NODEFAULT:
        return field.default_factory()
    return msgspec.UNSET if field.default is msgspec.NODEFAULT else field.default


def is_tagged_union(kind: Any) -> bool:
    """Return whether a member of an object decides which class the object becomes."""
    return (
        isinstance(kind, inspect.UnionType) and sum(isinstance(member, inspect.StructType) for member in kind.types) > 1
    )


def _below(kind: Any) -> list[Any]:
    found = [
        getattr(kind, name)
        for name in ("type", "item_type", "key_type", "value_type")
        if isinstance(getattr(kind, name, None), inspect.Type)
    ]
    return [*found, *getattr(kind, "types", ()), *getattr(kind, "item_types", ())]
