"""A walk through a payload, of whatever form: the parts of each value, by the names that data have. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from bus.protocol.canonical import MAX_DEPTH, escape_pointer_token

__all__ = ["find_part", "parts_in", "unwrapped"]


def unwrapped(value: Any) -> Any:
    """Return what data have of *value*: the root of a root model of pydantic, else itself."""
    while getattr(type(value), "__pydantic_root_model__", False):
        value = value.root
    return value


def parts_in(value: Any) -> Iterator[tuple[object, Any]]:
    """Yield the name or index, as data have it, and the value of each part of *value*."""
    value = unwrapped(value)
    if isinstance(value, dict):
        yield from value.items()
    elif isinstance(value, list | tuple | set | frozenset):
        yield from enumerate(value)
    elif isinstance(value, msgspec.Struct):
        for name, written in zip(value.__struct_fields__, value.__struct_encode_fields__, strict=True):
            yield written, getattr(value, name, None)
    elif hasattr(type(value), "__pydantic_fields__"):
        fields = type(value).__pydantic_fields__
        for name, part in value.__dict__.items():
            info = fields.get(name)
            yield (info and (info.serialization_alias or info.alias)) or name, part
    elif hasattr(type(value), "__dataclass_fields__"):
        yield from ((name, getattr(value, name, None)) for name in type(value).__dataclass_fields__)


def find_part(value: Any, is_meant: Callable[[Any], object], level: int = 0) -> str | None:
    """Return the pointer, below *value*, to the first part that *is_meant*; None if there is none."""
    if is_meant(value):
        return ""
    if level > MAX_DEPTH:
        return None
    for name, part in parts_in(value):
        if (found := find_part(part, is_meant, level + 1)) is not None:
            return f"/{escape_pointer_token(str(name))}{found}"
    return None
