"""Charts: lines over time as SVG, for reports. Pure; the texts are our own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final
from xml.sax.saxutils import escape

__all__ = ["line_chart"]

_WIDTH: Final = 760
_HEIGHT: Final = 260
_LEFT: Final = 70
_TOP: Final = 34
_RIGHT: Final = 20
_BOTTOM: Final = 36
_COLOURS: Final = ("#0b6e5f", "#b4541a", "#3b5bb5")
_LINES: Final = 4
_MINIMUM: Final = 1e-9


def line_chart(title: str, lines: Mapping[str, Sequence[tuple[float, float]]], *, unit: str = "") -> str:
    """Return a picture of *lines*, each a sequence of (seconds, value)."""
    points = [point for line in lines.values() for point in line]
    last = max((x for x, _ in points), default=1.0) or 1.0
    limit = _round_up(max((y for _, y in points), default=1.0))
    wide, high = _WIDTH - _LEFT - _RIGHT, _HEIGHT - _TOP - _BOTTOM
    size = f'width="{_WIDTH}" height="{_HEIGHT}"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" font-family="sans-serif" font-size="12">',
        f'<rect {size} fill="#ffffff"/>',
        f'<text x="{_LEFT}" y="18" font-size="14" fill="#1c2321">{escape(title)}</text>',
    ]
    for number in range(_LINES + 1):
        y = _TOP + high - high * number / _LINES
        parts.append(f'<path d="M{_LEFT} {y:.1f}h{wide}" stroke="#d8ddd9"/>')
        parts.append(
            f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end" fill="#5b6662">'
            f"{limit * number / _LINES:,.4g}{escape(unit)}</text>"
        )
        x = _LEFT + wide * number / _LINES
        at = f"{last * number / _LINES:,.0f} s"
        parts.append(f'<text x="{x:.1f}" y="{_HEIGHT - 14}" text-anchor="middle" fill="#5b6662">{at}</text>')
    for number, (name, line) in enumerate(lines.items()):
        colour = _COLOURS[number % len(_COLOURS)]
        path = " ".join(f"{_LEFT + wide * x / last:.1f},{_TOP + high - high * y / limit:.1f}" for x, y in line)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.8"/>')
        x = _WIDTH - _RIGHT - 110 * (len(lines) - number)
        parts.append(f'<text x="{x}" y="18" fill="{colour}">{escape(name)}</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"


def _round_up(value: float) -> float:
    """Return the next of 1, 2, 5, 10, ... that is not below *value*."""
    if value <= 0:
        return 1.0
    value, power = max(value, _MINIMUM), 1.0
    while power * 10 <= value:
        power *= 10
    while power > value:
        power /= 10
    return next((power * step for step in (1, 2, 5) if power * step >= value), power * 10)
