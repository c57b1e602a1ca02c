"""Whether a JSON pointer names a field of a type, as `critical_fields` requires.

Owns walking a payload type and the layers of the envelope by name. A pointer to a known field counts, even if the field
is absent from the data.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import msgspec
from msgspec import inspect

from bus.protocol.envelope import Metadata, Routing, Verification

__all__ = ["knows_field"]

_INDEX = re.compile(r"(?:0|[1-9][0-9]*)\Z")
_LAYERS: dict[str, type[msgspec.Struct]] = {"metadata": Metadata, "routing": Routing, "verification": Verification}

# A record can hold tens of thousands of pointers, and describing a type takes milliseconds.
_described: Callable[[Any], inspect.Type] = lru_cache(maxsize=256)(inspect.type_info)


def knows_field(payload: type[Any], pointer: str) -> bool:
    """Whether *pointer* (RFC 6901, into the envelope) names a field of *payload* or of the envelope.

    Takes time linear in the pointer's length for every type: pointers come from untrusted senders, and types may
    contain themselves.
    """
    if pointer == "":
        return True
    layer, *tokens = [token.replace("~1", "/").replace("~0", "~") for token in pointer[1:].split("/")]
    root = payload if layer == "data" else _LAYERS.get(layer)
    kinds = [] if root is None else _alternatives([_described(root)])
    for token in tokens:
        if any(isinstance(kind, inspect.AnyType) for kind in kinds):
            return True
        kinds = _alternatives([below for kind in kinds for below in _below(kind, token)])
    return bool(kinds)


def _alternatives(kinds: list[inspect.Type]) -> list[inspect.Type]:
    """Return the types that *kinds* stand for, each once: a union is replaced by its members."""
    found: dict[int, inspect.Type] = {}
    while kinds:
        kind = kinds.pop()
        if isinstance(kind, inspect.Metadata):
            kinds.append(kind.type)
        elif isinstance(kind, inspect.UnionType):
            kinds.extend(kind.types)
        else:
            # Within one description a type that occurs in several places is the same object.
            found[id(kind)] = kind
    return [*found.values()]


def _below(kind: inspect.Type, token: str) -> list[inspect.Type]:
    """The types of what *kind* may have at *token*."""
    if isinstance(kind, inspect.StructType | inspect.DataclassType | inspect.TypedDictType):
        return [field.type for field in kind.fields if field.encode_name == token]
    if isinstance(kind, inspect.DictType):
        return [kind.value_type]
    if isinstance(kind, inspect.ListType | inspect.VarTupleType | inspect.SetType | inspect.FrozenSetType):
        return [kind.item_type] if _INDEX.match(token) else []
    if isinstance(kind, inspect.TupleType):
        return [item for location, item in enumerate(kind.item_types) if token == str(location)]
    return []
