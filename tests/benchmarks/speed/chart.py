"""Results as a drawing: a bar per variant, with the range of its rounds. Pure.

Owns the SVG, written by hand: it needs no library and looks the same everywhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from speed.catalog import FAMILIES, Family, of_family
from speed.ratios import Spread, spread
from speed.results import Measured
from speed.tables import number

__all__ = ["drawn"]

_WIDTH, _LABELS, _ROOM = 980, 300, 110
_BAR, _GAP, _HEAD, _PAUSE = 16, 8, 26, 18
_OURS, _THEIRS, _RANGE = "#c2410c", "#94a3b8", "#0f172a"


def drawn(measured: Sequence[Measured]) -> str:
    """The whole of results.svg."""
    parts: list[str] = []
    top = 34.0
    for family in FAMILIES:
        rows = _rows(family, measured)
        if rows:
            parts += _family(family, rows, top)
            top += _HEAD + len(rows) * (_BAR + _GAP) + _PAUSE
    style = 'font-family="sans-serif" font-size="12"'
    return "\n".join(
        [
            (
                f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{top:.0f}" '
                f'viewBox="0 0 {_WIDTH} {top:.0f}" {style}>'
            ),
            f'<rect width="{_WIDTH}" height="{top:.0f}" fill="#ffffff"/>',
            (
                '<text x="12" y="20" fill="#475569">'
                "Medians; the thin line goes from the least to the most of all rounds.</text>"
            ),
            *parts,
            "</svg>\n",
        ]
    )


def _rows(family: Family, measured: Sequence[Measured]) -> list[tuple[str, bool, Spread]]:
    rows = []
    for variant in of_family(family.name):
        answers = [each.answer for each in measured if each.variant == variant.id]
        values = (
            [answer.p50_ms for answer in answers if answer.p50_ms]
            if family.unit == "ms"
            else [answer.rate for answer in answers]
        )
        if (found := spread(values)) is not None:
            rows.append((variant.label, variant.ours, found))
    return rows


def _family(family: Family, rows: Sequence[tuple[str, bool, Spread]], top: float) -> list[str]:
    most = max(found.most for _, _, found in rows) or 1.0
    unit = "ms, p50; less is better" if family.unit == "ms" else family.unit
    parts = [f'<text x="12" y="{top + 12:.0f}" font-weight="bold">{escape(family.title)} ({escape(unit)})</text>']

    def x(value: float) -> float:
        return _LABELS + (_WIDTH - _LABELS - _ROOM) * value / most

    for index, (label, ours, found) in enumerate(rows):
        y = top + _HEAD + index * (_BAR + _GAP)
        middle = y + _BAR / 2
        parts += [
            f'<text x="{_LABELS - 8}" y="{y + 12:.0f}" text-anchor="end">{escape(label)}</text>',
            (
                f'<rect x="{_LABELS}" y="{y:.0f}" width="{x(found.median) - _LABELS:.1f}" height="{_BAR}" '
                f'fill="{_OURS if ours else _THEIRS}"/>'
            ),
            (
                f'<line x1="{x(found.least):.1f}" x2="{x(found.most):.1f}" y1="{middle:.1f}" y2="{middle:.1f}" '
                f'stroke="{_RANGE}"/>'
            ),
            f'<text x="{x(found.most) + 8:.1f}" y="{y + 12:.0f}">{number(found.median)}</text>',
        ]
    return parts
