"""Check decoded data against the type it is said to have, and blame the foreign member. Pure.

Owns the way back from a pointer into data to the foreign pointer. `bus.payloads.payload_types` judges.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bus.dialects.faults import shown, value_at_pointer
from bus.errors import ContractError, DialectError
from bus.payloads.payload_types import PayloadType, Registry
from bus.payloads.rules import check_rules
from bus.protocol import canonical
from bus.protocol.envelope import DATA_DEPTH
from bus.protocol.identifiers import is_schema_version
from bus.vocabulary import older

__all__ = ["Locations", "check_data", "default_lifetime_ms", "kind_of", "known_kind"]

Locations = Mapping[str, str]
"""Pointers into data -> foreign pointers. `*` stands for an index; a pointer also maps everything below it."""
_KEPT = "/x_dialect/kept/"
_LIFETIME_MS = 3_600_000


def known_kind(types: Registry, name: str) -> PayloadType:
    """Return the type *name*, which a dialect cannot do without."""
    kind = types.get(name)
    if kind is None:
        raise DialectError("", f"a message of type {name}", "a type that is known here", "unknown_type")
    return kind


def kind_of(types: Registry, name: str, version: str) -> PayloadType | None:
    """Return the type *name* as *version* has it: the same major number, or an older one that can still be read."""
    kind = types.get(name)
    if kind is None or not is_schema_version(version):
        return None
    if version.partition(".")[0] == str(kind.major):
        return kind
    return older(name, version)


def default_lifetime_ms(kind: PayloadType) -> int:
    """Return the default lifetime of a message of *kind* in milliseconds."""
    return _LIFETIME_MS if kind.terms.ttl_s is None else round(kind.terms.ttl_s * 1000)


def check_data(kind: PayloadType, data: dict[str, Any], locations: Locations, tree: Mapping[str, Any]) -> object:
    """Return the payload of *kind* in *data*, decoded from the foreign message *tree*.

    Raises DialectError with the foreign pointer, found by *locations*, and the type's reason.
    """
    try:
        encoded = canonical.encode(data, depth=DATA_DEPTH)
        payload = kind.decode(encoded)
        check_rules(kind.rules, payload, encoded)
    except ContractError as error:
        pointer = _foreign_pointer(error.pointer.removeprefix("/data"), locations)
        if isinstance(value_at_pointer(tree, pointer.rpartition("/")[0]), str):
            pointer = pointer.rpartition("/")[0]  # a text that stands for an object
        text = f"what {kind.name} takes: {error.text}"
        raise DialectError(pointer, shown(value_at_pointer(tree, pointer)), text, error.reason) from None
    return payload


def _foreign_pointer(pointer: str, locations: Locations) -> str:
    if pointer.startswith(_KEPT):
        token, slash, rest = pointer.removeprefix(_KEPT).partition("/")
        return token.replace("~1", "/").replace("~0", "~") + slash + rest
    tokens = pointer.split("/")
    for count in range(len(tokens), 0, -1):
        indexes = [token for token in tokens[:count] if token.isdecimal()]
        pattern = "/".join("*" if token.isdecimal() else token for token in tokens[:count])
        if pattern in locations:
            parts = locations[pattern].split("*")
            filled = "".join(part + index for part, index in zip(parts, [*indexes, ""], strict=False))
            return "/".join([filled, *tokens[count:]])
    return pointer
