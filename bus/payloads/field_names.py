"""How a field is called in Python, where data call it otherwise: a renamed Struct, a Pydantic model with aliases.

Owns the translation, which rules and terms need: they name fields as data do. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import msgspec

__all__ = ["attribute_of"]


def attribute_of(cls: Any, field: str) -> str:
    """Return the attribute of *cls* for *field* of the data; *field* itself if no other name is declared."""
    return _renamed(cls).get(field, field)


@lru_cache(maxsize=512)
def _renamed(cls: Any) -> Mapping[str, str]:
    if issubclass(cls, msgspec.Struct):
        names = zip(cls.__struct_encode_fields__, cls.__struct_fields__, strict=True)
        return {written: name for written, name in names if written != name}
    fields = getattr(cls, "__pydantic_fields__", None) or {}
    aliases = ((info.serialization_alias or info.alias, name) for name, info in fields.items())
    return {alias: name for alias, name in aliases if alias is not None}
