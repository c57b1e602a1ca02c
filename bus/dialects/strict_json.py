"""Read foreign JSON as strictly as the protocol reads its own: no duplicate keys, no NaN, no inexact integers. Pure.

Owns what foreign JSON may be: one object in UTF-8, at most 1 MiB, at most 64 levels deep. Spellings that the canonical
form does not have, such as white space and `1.0`, are allowed. `bus.protocol.canonical` parses.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

import orjson

from bus.dialects.faults import MISSING, shown
from bus.errors import ContractError, DialectError
from bus.protocol import canonical, canonical_numbers
from bus.protocol.canonical import MAX_DEPTH, escape_pointer_token
from bus.protocol.canonical_numbers import SAFE_INTEGER
from bus.protocol.sealing import MAX_MESSAGE_BYTES

__all__ = ["read_content", "read_object", "read_value"]

# Integers of 16 digits and more may be inexact as doubles, and orjson makes doubles of those beyond 64 bits.
_LONG_RUN: Final = b"0" * 16
_ALL_ZEROS: Final = bytes(ord("0") if chr(code) in "0123456789" else code for code in range(256))
_MAX_DIGITS: Final = 300


def read_object(value: bytes | Mapping[str, Any]) -> dict[str, Any]:
    """Return the JSON object in *value*, which shares nothing with it.

    Raises DialectError, with the pointer where there is one. A Mapping is copied under the same rules.
    """
    found = read_value(_written(value) if isinstance(value, Mapping) else value)
    if not isinstance(found, dict):
        raise DialectError("", shown(found), "a JSON object")
    return found


def read_value(value: bytes) -> Any:
    """Return the JSON value in *value*; raise DialectError."""
    if not isinstance(value, bytes):
        raise DialectError("", f"a {type(value).__name__}", "bytes or a mapping")
    if len(value) > MAX_MESSAGE_BYTES:
        raise DialectError("", f"{len(value)} bytes", f"at most {MAX_MESSAGE_BYTES} bytes", "oversized")
    try:
        tree = canonical.parse_canonical(value)
    except ContractError as error:
        raise DialectError("", error.text, f"strict JSON of at most {MAX_DEPTH} levels") from None
    if _LONG_RUN in value.translate(_ALL_ZEROS):
        return _read_exactly(value)
    if _count_members(tree) != _count_colons(value):
        return _read_exactly(value)
    return tree


def read_content(data: bytes) -> dict[str, Any]:
    """Return the object in canonical *data* of a message, with every integer that no int may be as a float."""
    content: dict[str, Any] = _read_exactly(data) if _LONG_RUN in data.translate(_ALL_ZEROS) else orjson.loads(data)
    return content


def _written(value: Mapping[str, Any]) -> bytes:
    try:
        return canonical.encode(value if value.__class__ is dict else dict(value))
    except ContractError as error:
        raise DialectError(error.pointer, error.text, "a JSON value") from None
    except RecursionError:
        raise DialectError("", "an endless value", f"at most {MAX_DEPTH} levels") from None


def _count_members(tree: Any) -> int:
    """Return how many members the objects in *tree* have."""
    members = 0
    stack = [tree]
    while stack:
        value = stack.pop()
        kind = value.__class__
        if kind is dict:
            members += len(value)
            stack += value.values()
        elif kind is list:
            stack += value
    return members


def _count_colons(text: bytes) -> int:
    """Return how many members valid JSON *text* writes, those under a repeated key included."""
    if b"\\" in text:
        text = text.replace(b"\\\\", b"").replace(b'\\"', b"")
    return b"".join(text.split(b'"')[::2]).count(b":")


class _Fault:
    """Stands in a tree for a value that JSON of the protocol does not have."""

    def __init__(self, found: str, expected: str) -> None:
        self.found = found
        self.expected = expected


class _ExactReading:
    """The hooks of one exact reading; a fault is noted, and put into the tree at its location."""

    def __init__(self) -> None:
        self.is_faulty = False

    def object(self, pairs: list[tuple[str, Any]]) -> Any:
        """Make an object; a repeated member is a fault."""
        members = dict(pairs)
        if len(members) == len(pairs):
            return members
        left = dict(members)
        twice = next(name for name, _ in pairs if left.pop(name, MISSING) is MISSING)
        return self._fault(f"the member {twice[:40]!r} twice", "every member once")

    def integer(self, text: str) -> Any:
        """Make a number; an integer that no double is exactly is a fault."""
        if len(text) < len(_LONG_RUN):
            return int(text)
        if len(text) <= _MAX_DIGITS:
            exact = int(text)
            if -SAFE_INTEGER <= exact <= SAFE_INTEGER:
                return exact
            double = float(exact)
            if double == exact or canonical_numbers.number_text(double) == text:
                return double
        return self._fault(f"the integer {text[:40]}", "an integer that is exact as a double")

    def _fault(self, found: str, expected: str) -> _Fault:
        self.is_faulty = True
        return _Fault(found, expected)


def _read_exactly(data: bytes) -> Any:
    """Return the value in strict JSON *data*; raise DialectError for repeated members and inexact integers."""
    reading = _ExactReading()
    tree = json.loads(data, object_pairs_hook=reading.object, parse_int=reading.integer)
    if reading.is_faulty:
        for pointer, value in _walk(tree):
            if isinstance(value, _Fault):
                raise DialectError(pointer, value.found, value.expected)
    return tree


def _walk(tree: Any) -> Iterator[tuple[str, Any]]:
    stack = [("", tree)]
    while stack:
        pointer, value = stack.pop()
        yield pointer, value
        if value.__class__ is dict:
            stack += ((f"{pointer}/{escape_pointer_token(name)}", inner) for name, inner in value.items())
        elif value.__class__ is list:
            stack += ((f"{pointer}/{index}", inner) for index, inner in enumerate(value))
