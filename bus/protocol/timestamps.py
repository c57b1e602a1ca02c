"""The text form of times in an envelope: RFC 3339, UTC, exactly milliseconds, `Z`.

Owns formatting and strict parsing. `bus.clock` reads the time.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from functools import lru_cache

__all__ = ["format_ms", "parse_ms"]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_LENGTH = len("2026-01-31T12:00:00.000Z")
_MILLISECOND = timedelta(milliseconds=1)
_FORM = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9]\.[0-9]{3}Z\Z")


@lru_cache(maxsize=64)
def _format_second(second: int) -> str:
    moment = _EPOCH + timedelta(seconds=second)
    return f"{moment.year:04d}-{moment.month:02d}-{moment.day:02d}T{moment:%H:%M:%S}."


# A stream seals many messages in one millisecond.
@lru_cache(maxsize=64)
def format_ms(ms: int) -> str:
    """Format Unix milliseconds as `2026-01-31T12:00:00.000Z`; raise OverflowError outside the years 0001 to 9999."""
    return f"{_format_second(ms // 1000)}{ms % 1000:03d}Z"


def parse_ms(text: str) -> int | None:
    """Parse to Unix milliseconds; return None for anything but this form of a real calendar date."""
    return _parse_ms(text) if len(text) == _LENGTH else None


@lru_cache(maxsize=1024)
def _parse_ms(text: str) -> int | None:
    if not _FORM.match(text):
        return None
    try:
        return (datetime.fromisoformat(text) - _EPOCH) // _MILLISECOND
    except ValueError:
        return None
