"""Words of the pages: ages, durations, counts, short ids and initials. Pure."""

from __future__ import annotations

import math
from typing import Final

from bus.protocol.timestamps import format_ms

__all__ = ["age", "clock_time", "count", "duration", "exact", "initials", "money", "short", "short_count"]

_UNITS: Final = ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s"))
_SHORT_ID: Final = 8
_JUST_S: Final = 1.0
_LARGE: Final = 10_000
_INITIALS: Final = 2


def duration(seconds: float) -> str:
    """Return a duration in two units at most: "8 min 20 s", "0.6 s", "12 ms", "12 d"."""
    if math.isinf(seconds):
        return "very long"
    if seconds <= 0:
        return "0 s"
    if seconds < 0.001:  # noqa: PLR2004 - a millisecond
        return "<1 ms"
    if seconds < 0.0995:  # noqa: PLR2004 - from here on it is written as 0.1 s
        return f"{round(1000 * seconds)} ms"
    if seconds < _JUST_S:
        return f"{seconds:.1f} s"
    if seconds < 10:  # noqa: PLR2004 - one digit before the point
        return f"{seconds:.1f} s".replace(".0 s", " s")
    whole = int(seconds)
    at = next(number for number, (size, _) in enumerate(_UNITS) if whole >= size)
    size, unit = _UNITS[at]
    text, rest = f"{whole // size} {unit}", whole % size
    if at + 1 < len(_UNITS) and rest >= _UNITS[at + 1][0]:
        text += f" {rest // _UNITS[at + 1][0]} {_UNITS[at + 1][1]}"
    return text


def age(then_ms: float, now_ms: float) -> str:
    """Return how long ago a moment was, or in how long it is: "3 min ago", "in 20 s", "now"."""
    seconds = (now_ms - then_ms) / 1000
    if abs(seconds) < _JUST_S:
        return "now"
    for size, unit in _UNITS:
        if abs(seconds) >= size:
            text = f"{int(abs(seconds) // size)} {unit}"
            return f"{text} ago" if seconds > 0 else f"in {text}"
    return "now"


def exact(ms: float) -> str:
    """Return a moment to the millisecond: "2026-11-26 03:12:28.411 UTC"."""
    return format_ms(int(ms)).replace("T", " ").replace("Z", " UTC")


def clock_time(ms: float) -> str:
    """Return the hour and minute of a moment, in UTC."""
    return format_ms(int(ms))[11:16]


def count(number: float) -> str:
    """Return a whole number with separators."""
    return f"{int(number):,}"


def short_count(number: float) -> str:
    """Return a number in three or four digits: "24.6", "1,204", "48.2k", "4.1M"."""
    if number >= 10 * _LARGE * 10:
        return f"{number / 1e6:.1f}M"
    if number >= _LARGE:
        return f"{number / 1e3:.1f}k"
    return f"{number:,.1f}".removesuffix(".0") if number < 100 else f"{number:,.0f}"  # noqa: PLR2004


def money(amount: float) -> str:
    """Return an amount: two digits after the point, three where it is small."""
    return f"{amount:,.2f}" if amount >= 0.1 or amount == 0 else f"{amount:.3f}"  # noqa: PLR2004


def short(identity: str) -> str:
    """Return the last digits of an id: it begins with its time, so neighbours share the head."""
    return identity if len(identity) <= _SHORT_ID + 1 else f"…{identity[-_SHORT_ID:]}"


def initials(name: str) -> str:
    """Return two letters that mostly tell the agents of a namespace apart; the name stands beside them."""
    bare = "".join(char for char in name.partition("@")[0] if char.isalnum())
    if not bare:
        return "?"
    return bare[0] + (bare[-1] if bare[-1].isdigit() or len(bare) <= _INITIALS else bare[_INITIALS])
