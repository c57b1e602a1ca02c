"""Text that every database can hold, and back: NUL and lone surrogates are written as escapes. Pure.

PostgreSQL refuses NUL in a text, and both it and SQLite's driver refuse what has no UTF-8. Whoever writes text of
others passes it through `storable`, and what it reads through `restored`; text without such characters stays as it is,
and two texts never become one.
"""

from __future__ import annotations

import re
from typing import Final

__all__ = ["restored", "storable"]

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
