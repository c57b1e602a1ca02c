"""Whether a JSON pointer names a field that a type knows: what `critical_fields` asks.

Owns walking a payload type, and the envelope's own layers, by name; a pointer to an absent but known field is understood.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any

import msgspec
from msgspec import inspect

from bus.envelope import Metadata, Routing, Verification

__all__ = ["knows_field"]

_REMEMBERED = 256
_INDEX = re.compile(r"(?:0|[1-9][0-9]*)\Z")
_LAYERS: dict[str, type[msgspec.Struct]] = {"metadata": Metadata, "routing": Routing, "verification": Verification}


def knows_field(payload: type[msgspec.Struct], pointer: str) -> bool:
    """Whether *pointer* (RFC 6901, into the envelope) names a field of *payload* or of the envelope."""
    # Longer pointers are judged without being remembered: a cache must not keep a megabyte of every hostile record.
    return _knows_field(payload, pointer) if len(pointer) <= _REMEMBERED else _knows_field.__wrapped__(payload, pointer)


@lru_cache(maxsize=4096)
def _knows_field(payload: type[msgspec.Struct], pointer: str) -> bool:
    if pointer == "":
        return True
    layer, *tokens = [token.replace("~1", "/").replace("~0", "~") for token in pointer[1:].split("/")]
    root = payload if layer == "data" else _LAYERS.get(layer)
    return root is not None and _knows(inspect.type_info(root), tokens)


def _knows(kind: Any, tokens: list[str]) -> bool:
    if not tokens or isinstance(kind, inspect.AnyType):
        return True
    head, rest = tokens[0], tokens[1:]
    if isinstance(kind, inspect.Metadata):
        return _knows(kind.type, tokens)
    if isinstance(kind, inspect.UnionType):
        return any(_knows(member, tokens) for member in kind.types)
    if isinstance(kind, inspect.StructType | inspect.DataclassType | inspect.TypedDictType):
        return any(field.encode_name == head and _knows(field.type, rest) for field in kind.fields)
    if isinstance(kind, inspect.DictType):
        return _knows(kind.value_type, rest)
    if isinstance(kind, inspect.ListType | inspect.VarTupleType | inspect.SetType | inspect.FrozenSetType):
        return _INDEX.match(head) is not None and _knows(kind.item_type, rest)
    if isinstance(kind, inspect.TupleType):
        return head in map(str, range(len(kind.item_types))) and _knows(kind.item_types[int(head)], rest)
    return False
