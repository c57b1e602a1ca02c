"""Counts as rows with bars: small enough for a terminal, and readable in a file.

Owns the layout. Does not own what is counted.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Final, TypeVar

from bus.terminal import printable

__all__ = ["bars"]

_WIDTH: Final = 30
Key = TypeVar("Key", bound=tuple[str, ...])


def bars(headings: Sequence[str], counts: Mapping[Key, int]) -> list[str]:
    """A line for the headings and one for each count, the largest first, its bar as long as it is large."""
    if not counts:
        return []
    rows = [
        (*(printable(part) or "-" for part in key), str(count)) for key, count in sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    ]
    titles = (*headings, "LETTERS")
    widths = [max(len(title), *(len(row[at]) for row in rows)) for at, title in enumerate(titles)]
    largest = max(counts.values())
    lines = ["  ".join(title.ljust(width) for title, width in zip(titles, widths, strict=True)).rstrip()]
    for row in rows:
        cells = [cell.ljust(width) for cell, width in zip(row[:-1], widths, strict=False)]
        bar = _block() * max(1, round(int(row[-1]) / largest * _WIDTH))
        lines.append("  ".join([*cells, row[-1].rjust(widths[-1]), bar]))
    return lines


def _block() -> str:
    """What bars are made of, where the output can show it."""
    try:
        "█".encode(sys.stdout.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return "#"
    return "█"
