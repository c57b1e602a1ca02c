"""Dialects as a program opens them: with the types that are known there, and the names of its settings.

Owns giving every codec the same types; `bus.vocabulary.known` says which ones a program knows.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bus.dialects import DIALECT_ALIASES, Dialect, dialect
from bus.dialects.foreign import NO_ALIASES, NONE, Defaults, Foreign
from bus.dialects.type_names import NO_TYPE_NAMES, TypeNames
from bus.payloads.payload_types import Registry
from bus.protocol.sealing import Message
from bus.vocabulary import BUILT_IN

__all__ = ["open_dialect"]


def open_dialect(name: str, *, types: Registry = BUILT_IN, names: TypeNames = NO_TYPE_NAMES) -> Dialect:
    """Return the dialect called *name* for messages of *types*, which *names* may call otherwise.

    Raises KeyError for a name that is neither in `DIALECTS` nor an alias.
    """
    return _OpenDialect(DIALECT_ALIASES.get(name, name), types, names)


class _OpenDialect:
    def __init__(self, name: str, types: Registry, names: TypeNames) -> None:
        self._codec: Any = dialect(name)
        self._options: dict[str, Any] = {"types": types}
        if name == "cloudevents":
            self._options["names"] = names

    def decode(self, value: bytes | Mapping[str, Any], *, defaults: Defaults = NONE) -> Foreign:
        foreign: Foreign = self._codec.decode(value, defaults=defaults, **self._options)
        return foreign

    def encode(
        self, message: Message, *, aliases: Mapping[str, str] = NO_ALIASES, carry: bool = False
    ) -> dict[str, Any]:
        written: dict[str, Any] = self._codec.encode(message, aliases=aliases, carry=carry, **self._options)
        return written
