"""Counts as lines with bars, for a terminal."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Final, TypeVar

from bus.telemetry.terminal import printable

__all__ = ["bars"]

_WIDTH: Final = 30


KeyT = TypeVar("KeyT", bound=tuple[str, ...])


def bars(headings: Sequence[str], counts: Mapping[KeyT, int]) -> list[str]:
    """Return the headings and one line per count, the largest first, each with a bar of matching length."""
    if not counts:
        return []
    rows = [
        (*(printable(part) or "-" for part in key), str(count))
        for key, count in sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    ]
    titles = (*headings, "DEAD LETTERS")
    widths = [max(len(title), *(len(row[at]) for row in rows)) for at, title in enumerate(titles)]
    largest = max(counts.values())
    lines = ["  ".join(title.ljust(width) for title, width in zip(titles, widths, strict=True)).rstrip()]
    for row in rows:
        cells = [cell.ljust(width) for cell, width in zip(row[:-1], widths, strict=False)]
        bar = _block() * max(1, round(int(row[-1]) / largest * _WIDTH))
        lines.append("  ".join([*cells, row[-1].rjust(widths[-1]), bar]))
    return lines


def _block() -> str:
    """Return the character for bars, if the output can show it."""
    try:
        "█".encode(sys.stdout.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return "#"
    return "█"
