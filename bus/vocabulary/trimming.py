"""Foreign output made fit to be passed on: masked where it holds secrets, and cut to a size. Pure.

Owns what is kept of a value that is too large: the beginning of texts and lists, and every member's fair share.
"""

from __future__ import annotations

import re
from typing import Any, Final

import msgspec

from bus.redaction import redacted

__all__ = ["MAX_OUTPUT_BYTES", "masked_data", "trimmed"]

MAX_OUTPUT_BYTES: Final = 65_536
_SECRET_NAMES: Final = re.compile(
    r"(?i)(?:password|passwd|passphrase|secret|token|api[_-]?key|access[_-]?key|private[_-]?key|authorization|cookie"
    r"|credential)s?\Z"
)
_MASK: Final = "***"
_ELLIPSIS: Final = "…"
_BRACKETS: Final = 2


def masked_data(value: Any) -> Any:
    """Return *value* with what looks like a secret replaced by `***`: in texts, and whole texts under a telling name.

    A text of more than 64 Ki characters is cut there: what is not looked at is not passed on.
    """
    if isinstance(value, str):
        return redacted(value)
    if isinstance(value, dict):
        return {
            key: _MASK if isinstance(item, str) and _SECRET_NAMES.search(str(key)) else masked_data(item)
            for key, item in value.items()
        }
    return [masked_data(item) for item in value] if isinstance(value, list | tuple) else value


def trimmed(value: Any, max_bytes: int) -> tuple[Any, bool]:
    """Return *value* in at most *max_bytes* bytes of JSON, and whether something was cut.

    *max_bytes* is at least 8.
    """
    if _size(value) <= max_bytes:
        return value, False
    return _cut(value, max_bytes), True


def _size(value: Any) -> int:
    return len(msgspec.json.encode(value))


def _cut(value: Any, room: int) -> Any:
    if _size(value) <= room:
        return value
    if isinstance(value, str):
        return _cut_text(value, room)
    if isinstance(value, list | tuple):
        return _cut_list(value, room)
    if isinstance(value, dict):
        return _cut_object(value, room)
    # A number that is longer than its room.
    return None


def _cut_text(text: str, room: int) -> str:
    low, high = 0, min(len(text), room)
    while low < high:
        middle = (low + high + 1) // 2
        if _size(text[:middle] + _ELLIPSIS) <= room:
            low = middle
        else:
            high = middle - 1
    short = text[:low] + _ELLIPSIS
    return short if _size(short) <= room else ""


def _cut_list(items: list[Any] | tuple[Any, ...], room: int) -> list[Any]:
    retained: list[Any] = []
    left = room - _BRACKETS
    for item in items:
        size = _size(item) + (1 if retained else 0)
        if size > left:
            break
        retained.append(item)
        left -= size
    if not retained and items and left >= _BRACKETS:
        retained.append(_cut(items[0], left))
    return retained if _size(retained) <= room else []


def _cut_object(members: dict[str, Any], room: int) -> dict[str, Any]:
    heads = {key: _size(key) + 2 for key in members}
    names: list[str] = []
    left = room - _BRACKETS
    for key in members:
        # A member needs its name and the room for an empty value.
        if heads[key] + _BRACKETS + 2 > left:
            break
        names.append(key)
        left -= heads[key] + _BRACKETS
    left += _BRACKETS * len(names)
    shares: dict[str, int] = {}
    for location, key in enumerate(sorted(names, key=lambda name: _size(members[name]))):
        share = left // (len(names) - location)
        shares[key] = min(_size(members[key]), share)
        left -= shares[key]
    retained = {
        key: _cut(members[key], shares[key]) if shares[key] < _size(members[key]) else members[key] for key in names
    }
    return retained if _size(retained) <= room else {}
