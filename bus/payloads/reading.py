"""Decoding data into a payload class, by the faster of two equivalent ways.

Owns the choice. msgspec is nearly always fastest, but takes 8 us for each number near the ends of a double's range, and
searches an object once for each tagged union around it. In those cases orjson or json builds dicts and lists first.
Pure. `bus.payloads.decoded_size` refuses oversized data before.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any, Final

import msgspec
import orjson
from msgspec import inspect

from bus import native
from bus.errors import ContractError
from bus.payloads.described_types import is_tagged_union, walk
from bus.payloads.scalar_spellings import finite_only

__all__ = ["Reader", "read_untyped"]

MOST_EXTREME: Final = 1_000
"""Numbers that msgspec may read though they are slow."""
_LONG: Final = 65_536
_MAX_MIXED: Final = 262_144
# 1e-292 and smaller, 1e+289 and larger; upcasters' data are written without a plus. What is counted in strings, too
# (`native.count_extremes`), or is not that extreme only makes it go the other way.
_MIN_EXTREME: Final = len("1e289,")
_EXTREME: Final = re.compile(rb"[0-9]e(?:-(?:29|3[0-9])|\+?(?:28|29|30))[0-9]")
_ALL_ZEROS: Final = bytes(ord("0") if chr(code) in "0123456789" else code for code in range(256))
# The shortest integer that does not fit in 64 bits has as many digits.
_LONG_RUN: Final = b"0" * 19


class Reader:
    """Reads JSON text as one class; raises the errors of msgspec, and ContractError."""

    __slots__ = ("_cls", "_convert", "_nests_tags", "read")

    def __init__(self, cls: type[Any]) -> None:
        self._cls = cls
        kinds = [kind for _, kind in walk(inspect.type_info(cls))]
        self.read: Callable[[bytes], Any] = finite_only(msgspec.json.Decoder(cls).decode, kinds)
        """Msgspec's own way, for short text."""
        self._convert = finite_only(self._load_long, kinds)
        self._nests_tags = nests_tags(cls)

    def read_long(self, data: bytes) -> Any:
        """Return the same as `read`, for text of any length in a bounded time."""
        if (self._nests_tags and len(data) > _LONG) or has_many_extremes(data):
            return self._convert(data)
        return self.read(data)

    def _load_long(self, data: bytes) -> Any:
        return msgspec.convert(_load(data), self._cls, str_keys=True)


def read_untyped(data: bytes) -> Any:
    """Return the same as `msgspec.json.decode` without a type for canonical *data*, in a bounded time.

    Raises ContractError for data that would take longer: only json reads them correctly, at 0.4 us for each number.
    """
    if not has_many_extremes(data):
        return msgspec.json.decode(data)
    if (
        len(data) > _MAX_MIXED
        and _LONG_RUN in (outside := _outside(data)).translate(_ALL_ZEROS)
        and (count := len(_EXTREME.findall(outside))) > MOST_EXTREME
    ):
        text = (
            f"has {count} numbers beyond 1e289 or below 1e-291 beside ones of 19 digits and more, at most "
            f"{MOST_EXTREME} are upcast from an older version"
        )
        raise ContractError(text, "/data", "schema_violation")
    return _load(data)


def has_many_extremes(data: bytes) -> bool:
    """Whether *data* may have more than a few numbers that are slow to read."""
    return len(data) > _MIN_EXTREME * MOST_EXTREME and native.count_extremes(data) > MOST_EXTREME


def nests_tags(cls: type[Any]) -> bool:
    """Return whether a tagged union is inside a tagged union, or inside itself."""
    unions = (kind for _, kind in walk(inspect.type_info(cls)) if is_tagged_union(kind))
    return any(is_tagged_union(kind) for union in unions for kind in _inside(union))


def _inside(union: Any) -> list[Any]:
    return [kind for member in union.types for field in getattr(member, "fields", ()) for _, kind in walk(field.type)]


def _load(data: bytes) -> Any:
    # orjson makes doubles of integers that do not fit in 64 bits; json does not, in ten times the time.
    return json.loads(data) if _LONG_RUN in data.translate(_ALL_ZEROS) else orjson.loads(data)


def _outside(data: bytes) -> bytes:
    """*data* without the contents of its strings."""
    return b'"'.join(data.replace(b"\\\\", b"").replace(b'\\"', b"").split(b'"')[::2])
