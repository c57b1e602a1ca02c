"""The part of a foreign value that a DialectError shows: its kind and its beginning, never all of it.

Owns the text for `found`, and finding the value at a pointer.
"""

from __future__ import annotations

from typing import Any, Final

from bus.protocol import canonical

__all__ = ["MISSING", "Missing", "kind_shown", "shown", "value_at_pointer"]

_SHOWN_CHARACTERS: Final = 60


class Missing:
    """The type of `MISSING`."""

    def __repr__(self) -> str:
        return "nothing"


MISSING: Final = Missing()
"""Stands for a member that is not there, which null does not."""


def shown(value: object) -> str:
    """Return the text that an error has for *value* as `found`."""
    if value is MISSING:
        return "nothing"
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        cut_off = "..." if len(value) > _SHOWN_CHARACTERS else ""
        return f"{value[:_SHOWN_CHARACTERS]!r}{cut_off}"
    if isinstance(value, dict):
        return f"an object of {len(value)} members"
    if isinstance(value, list):
        return f"a list of {len(value)}"
    return str(value) if isinstance(value, int | float) else f"a {type(value).__name__}"


def kind_shown(value: object) -> str:
    """Return the text for what may be a secret: its kind alone."""
    if isinstance(value, str):
        return "a text"
    if isinstance(value, int | float) and not isinstance(value, bool):
        return "a number"
    return shown(value)


def value_at_pointer(tree: Any, pointer: str) -> Any:
    """Return the value at *pointer* (RFC 6901) in *tree*; MISSING if there is none."""
    for name in canonical.pointer_tokens(pointer):
        if isinstance(tree, dict):
            tree = tree.get(name, MISSING)
        elif isinstance(tree, list) and name.isdecimal() and len(name) < _SHOWN_CHARACTERS and int(name) < len(tree):
            tree = tree[int(name)]
        else:
            return MISSING
    return tree
