"""Dialects as a program opens them: with the types that are known there, and the names of its settings.

Owns giving every codec the same types; `bus.vocabulary.known` says which ones a program knows.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bus.dialects import cloudevents
from bus.dialects.foreign import NO_ALIASES, NONE, Defaults, Foreign
from bus.dialects.type_names import NO_TYPE_NAMES, TypeNames
from bus.payloads.payload_types import Registry
from bus.protocol.sealing import Message
from bus.vocabulary import BUILT_IN

__all__ = ["OpenDialect"]


class OpenDialect:
    """The dialect with this *codec*, for messages of *types*, which *names* may call otherwise."""

    def __init__(self, codec: Any, types: Registry | None, names: TypeNames | None) -> None:
        self._codec = codec
        self._options: dict[str, Any] = {"types": BUILT_IN if types is None else types}
        if codec is cloudevents:
            self._options["names"] = NO_TYPE_NAMES if names is None else names

    def decode(self, value: bytes | Mapping[str, Any], *, defaults: Defaults = NONE) -> Foreign:
        """Decode as `Dialect.decode` does."""
        foreign: Foreign = self._codec.decode(value, defaults=defaults, **self._options)
        return foreign

    def encode(
        self, message: Message, *, aliases: Mapping[str, str] = NO_ALIASES, carry: bool = False
    ) -> dict[str, Any]:
        """Encode as `Dialect.encode` does."""
        written: dict[str, Any] = self._codec.encode(message, aliases=aliases, carry=carry, **self._options)
        return written
