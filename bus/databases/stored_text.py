"""Text that every database can hold, and back: NUL and lone surrogates are written as escapes. Pure.

PostgreSQL refuses NUL in a string, and both it and SQLite's driver refuse strings that UTF-8 cannot encode. Code that
writes foreign text passes it through `storable`, and through `restored` when it reads it back. Text without such
characters is stored unchanged, and two different texts never become equal.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final

__all__ = ["restored", "restored_row", "storable", "storable_row"]

_MARK: Final = "\x10"
"""Data link escape: control character that no name may hold, so that names are never longer than they were."""
_UNHELD: Final = re.compile("[\x00\x10\ud800-\udfff]")
_ESCAPED: Final = re.compile("\x10([01]|d[89a-f][0-9a-f]{2})")


def storable(text: str) -> str:
    """Return *text* without NUL and lone surrogates; `restored` gives it back."""
    return _UNHELD.sub(_escape, text)


def restored(text: str) -> str:
    """Return the text that became *text*."""
    return _ESCAPED.sub(_unescape, text) if _MARK in text else text


def storable_row(arguments: Sequence[Any]) -> list[Any]:
    """Return the arguments of a statement, texts as `storable`."""
    return [storable(each) if each.__class__ is str else each for each in arguments]


def restored_row(row: Sequence[Any]) -> tuple[Any, ...]:
    """Return a row that was read, texts as `restored`."""
    return tuple([restored(each) if each.__class__ is str else each for each in row])


def _escape(found: re.Match[str]) -> str:
    match found[0]:
        case "\x00":
            return f"{_MARK}0"
        case "\x10":
            return f"{_MARK}1"
        case surrogate:
            return f"{_MARK}{ord(surrogate):x}"


def _unescape(found: re.Match[str]) -> str:
    match found[1]:
        case "0":
            return "\x00"
        case "1":
            return _MARK
        case digits:
            return chr(int(digits, 16))
