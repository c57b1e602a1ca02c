"""The content hashes of dialect `layered`: of the canonical form, and of Python's. Pure.

Owns both forms. The output of Python's json module differs in escapes outside ASCII, the order of keys and the spelling
of floats (`1.0`, `1e+16`). These differences are noted, so the original hash can be recomputed from canonical data. No
other form is accepted; in particular none that leaves out nested values.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

from bus.protocol import canonical
from bus.protocol.canonical import escape_pointer_token

__all__ = ["FLOATS", "canonical_hash", "floats_in", "is_python_hash", "python_form"]

FLOATS: Final = "floats"
"""The name under which whole floats are kept: pointer -> Python's text."""


def canonical_hash(data: Any) -> str:
    """Return the hash of the canonical form (RFC 8785) of *data*."""
    return canonical.digest(canonical.encode_parsed(data))


def python_form(data: Any) -> bytes:
    """Return *data* as `json.dumps(data, sort_keys=True, separators=(",", ":"))` writes them."""
    return json.dumps(data, sort_keys=True, separators=(",", ":")).encode()


def is_python_hash(text: str, data: Any, floats: Any = None) -> bool:
    """Tell whether *text* is the hash of Python's form of *data*, in which *floats* were noted."""
    if isinstance(floats, dict) and floats:
        data = _with_floats(data, floats, "")
    return text == canonical.digest(python_form(data))


def floats_in(data: Any) -> dict[str, str]:
    """Return the floats in *data* that the canonical form writes as integers: pointer -> Python's text."""
    return {pointer: repr(value) for pointer, value in _floats(data, "")}


def _floats(value: Any, pointer: str) -> Iterator[tuple[str, float]]:
    if value.__class__ is dict:
        for name, member in value.items():
            yield from _floats(member, f"{pointer}/{escape_pointer_token(name)}")
    elif value.__class__ is list:
        for index, item in enumerate(value):
            yield from _floats(item, f"{pointer}/{index}")
    elif value.__class__ is float and value.is_integer():
        yield pointer, value


def _with_floats(value: Any, floats: Mapping[str, Any], pointer: str) -> Any:
    if value.__class__ is dict:
        return {
            name: _with_floats(member, floats, f"{pointer}/{escape_pointer_token(name)}")
            for name, member in value.items()
        }
    if value.__class__ is list:
        return [_with_floats(item, floats, f"{pointer}/{index}") for index, item in enumerate(value)]
    text = floats.get(pointer)
    if value.__class__ not in (int, float) or not isinstance(text, str):
        return value
    return -0.0 if text == "-0.0" and value == 0 else float(value)
