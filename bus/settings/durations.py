"""Durations in text form.

Owns parsing them into seconds and formatting seconds in the shortest form. `bus.settings.schema` owns the allowed
ranges.
"""

from __future__ import annotations

import math
import re
from typing import Final

__all__ = ["seconds", "duration_words"]

_UNITS: Final = {"d": 86_400_000, "h": 3_600_000, "m": 60_000, "s": 1000, "ms": 1}
_NUMBER = r"[0-9]+(?:\.[0-9]+)?"
_PLAIN: Final = re.compile(rf"({_NUMBER})(ms|[smhd])?", re.ASCII)
_ISO: Final = re.compile(
    rf"P(?=[0-9T])(?:({_NUMBER})D)?(?:T(?=[0-9])(?:({_NUMBER})H)?(?:({_NUMBER})M)?(?:({_NUMBER})S)?)?",
    re.ASCII | re.IGNORECASE,
)


def seconds(written: object) -> float:
    """Return the seconds that a setting's text or number means.

    Accepts a number (of seconds), `250ms`, `10s`, `5m`, `1h`, `7d`, or ISO 8601 `PT10S`, `P1DT12H` (no years, months,
    weeks). Raises `ValueError` for anything else, and for negative and non-finite numbers.
    """
    if isinstance(written, str):
        return _from_text(written.strip())
    if isinstance(written, bool) or not isinstance(written, int | float):
        raise ValueError("a number of seconds or text like 10s")  # noqa: TRY004 - one error for every wrong value
    return _checked(written)


def duration_words(duration_s: float) -> str:
    """Format whole milliseconds in the largest unit that needs no fraction: `5m`, `90s`, `250ms`, `0s`.

    Raises `ValueError` if that is not exact.
    """
    milliseconds = round(duration_s * 1000)
    if milliseconds / 1000 != duration_s:
        raise ValueError("must be a whole number of milliseconds")
    unit, size = next(
        ((unit, size) for unit, size in _UNITS.items() if milliseconds and milliseconds % size == 0), ("s", 1000)
    )
    return f"{milliseconds // size}{unit}"


def _from_text(written: str) -> float:
    if plain := _PLAIN.fullmatch(written):
        return _checked(float(plain[1]) * _UNITS[plain[2] or "s"] / 1000)
    if iso := _ISO.fullmatch(written):
        return _checked(
            sum(float(count or 0) * size for count, size in zip(iso.groups(), (86_400, 3600, 60, 1), strict=True))
        )
    raise ValueError("a number of seconds or text like 10s, 5m, 1h, 7d, 250ms or PT10S")


def _checked(duration_s: float) -> float:
    try:
        value = float(duration_s)
    except OverflowError:
        value = math.inf
    if not math.isfinite(value) or value < 0:
        raise ValueError("a finite number of seconds, 0 or more")
    return value
