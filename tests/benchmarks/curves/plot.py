"""Curves and courses as drawings: lines with points, x in logarithmic steps or in time. Pure.

Owns the SVG, written by hand as `speed.chart` writes its bars.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape

from speed.tables import number

__all__ = ["Lines", "drawn"]

Lines = Mapping[str, Sequence[tuple[float, float]]]
_WIDTH, _HEIGHT, _LEFT, _RIGHT, _TOP, _BOTTOM = 760, 380, 72, 20, 34, 48
_COLOURS = ("#c2410c", "#1d4ed8", "#15803d", "#7e22ce", "#0f172a", "#b45309")
_STEPS = 5
_STYLE = 'font-family="sans-serif" font-size="12"'


def drawn(title: str, x_label: str, y_label: str, lines: Lines, *, log_x: bool = True, log_y: bool = False) -> str:
    """The whole of one SVG; one line each of *lines*."""
    xs = sorted({x for points in lines.values() for x, _ in points})
    ys = [y for points in lines.values() for _, y in points]
    if not xs:
        return '<svg xmlns="http://www.w3.org/2000/svg" width="10" height="10"/>\n'
    low = 10 ** math.floor(math.log10(max(1e-9, min(ys)))) if log_y else 0.0
    high = max(ys) * 1.08 or 1.0
    room_x, room_y = _WIDTH - _LEFT - _RIGHT, _HEIGHT - _TOP - _BOTTOM

    def along(value: float, least: float, most: float, *, log: bool) -> float:
        if most <= least:
            return 0.5
        return math.log(max(value, least) / least) / math.log(most / least) if log else (value - least) / (most - least)

    def x_of(value: float) -> float:
        return _LEFT + room_x * along(value, xs[0], xs[-1], log=log_x)

    def y_of(value: float) -> float:
        return _HEIGHT - _BOTTOM - room_y * along(value, low, high, log=log_y)

    height = _HEIGHT + 18 * len(lines)
    parts = [
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{height}" '
            f'viewBox="0 0 {_WIDTH} {height}" {_STYLE}>'
        ),
        f'<rect width="{_WIDTH}" height="{height}" fill="#ffffff"/>',
        f'<text x="12" y="20" font-weight="bold">{escape(title)} ({escape(y_label)})</text>',
    ]
    for value in _ticks(low, high, log=log_y):
        y = y_of(value)
        parts += [
            f'<line x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}" stroke="#e2e8f0"/>',
            f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{number(value)}</text>',
        ]
    for value in xs if log_x else [xs[0] + (xs[-1] - xs[0]) * step / _STEPS for step in range(_STEPS + 1)]:
        text = f"{value:,.0f}" if log_x else f"{value:.3g}"
        parts.append(f'<text x="{x_of(value):.1f}" y="{_HEIGHT - _BOTTOM + 16}" text-anchor="middle">{text}</text>')
    parts.append(
        f'<text x="{_LEFT + room_x / 2:.0f}" y="{_HEIGHT - 8}" text-anchor="middle" '
        f'fill="#475569">{escape(x_label)}</text>'
    )
    for index, (name, points) in enumerate(lines.items()):
        colour, places = _COLOURS[index % len(_COLOURS)], [(x_of(x), y_of(y)) for x, y in sorted(points)]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        parts.append(f'<polyline fill="none" stroke="{colour}" stroke-width="2" points="{path}"/>')
        if log_x:
            parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" fill="{colour}"/>' for x, y in places]
        bottom = _HEIGHT + 18 * index + 8
        parts += [
            f'<rect x="{_LEFT}" y="{bottom - 8}" width="18" height="4" fill="{colour}"/>',
            f'<text x="{_LEFT + 26}" y="{bottom}">{escape(name)}</text>',
        ]
    return "\n".join([*parts, "</svg>\n"])


def _ticks(low: float, high: float, *, log: bool) -> list[float]:
    if log:
        return [low * 10**step for step in range(math.ceil(math.log10(high / low)) + 1) if low * 10**step <= high]
    raw = high / _STEPS
    power = 10 ** math.floor(math.log10(raw))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= raw)
    return [step * number for number in range(int(high / step) + 1)]
