"""Pictures of the pages: icons, lines, bars and lanes, as SVG of the server. Pure.

Positions are percentages in attributes, so nothing is stretched and no `style` is needed. Every picture has a text that
tells its content; texts are escaped. A drawing has one unit.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Final

import msgspec
from markupsafe import Markup

from bus.telemetry.terminal import printable

__all__ = ["Arrow", "LaneWork", "TimeBar", "icon", "lanes", "meter", "plot", "spark", "spans", "stacked"]

_ICONS: Final = {
    "overview": "M2 8h3l2-5 3 10 2-5h2",
    "letters": "M2 4h12v8.5H2zM2 4.5l6 4.5 6-4.5",
    "approvals": "M8 1.5l5.5 2v4c0 3.5-2.3 5.8-5.5 7-3.2-1.2-5.5-3.5-5.5-7v-4zM5.5 8l2 2 3-3.5",
    "conversations": "M2 3h9v6H6l-2.5 2.5V9H2zM13 6h1v6h-1v2l-2-2H7",
    "tail": "M2 4h12M2 8h8M2 12h5M13 10v4M11 12h4",
    "agents": "M5.5 5.5h5v5h-5zM8 2v3.5M8 10.5V14M2 8h3.5M10.5 8H14",
    "groups": "M2 13V9M6 13V3M10 13V7M14 13v-2",
    "processes": "M2 3h4v4H2zM10 9h4v4h-4zM6 5h4a2 2 0 0 1 2 2v2",
    "costs": "M8 2v12M11 4.5C10 3.5 5 3 5 5.5S11 8 11 10.5 6 13 5 11.5",
    "audit": "M3 2h8l2 2v10H3zM6 6h4M6 9h4",
    "search": "M7 2.5a4.5 4.5 0 1 0 0 9 4.5 4.5 0 0 0 0-9M10.5 10.5 14 14",
    "copy": "M5.5 5.5h8v8h-8zM10.5 5.5v-3h-8v8h3",
    "menu": "M2 4h12M2 8h12M2 12h12",
    "moon": "M8 2a6 6 0 1 0 0 12zM8 2a6 6 0 0 1 0 12",
    "ok": "M3 8.5l3.5 3.5L13 4.5",
    "hint": "M8 2.5 14.5 13.5H1.5zM8 6.5v3M8 11.5v.1",
    "fault": "M4 4l8 8M12 4l-8 8",
    "busy": "M8 2a6 6 0 1 1-6 6M8 5v3l2 2",
    "held": "M5.5 3v10M10.5 3v10",
    "retry": "M13 8a5 5 0 1 1-1.5-3.5L13 6M13 2.5V6H9.5",
    "off": "M8 3a5 5 0 1 0 0 10A5 5 0 0 0 8 3",
    "unknown": "M6 6a2 2 0 1 1 2.6 1.9c-.4.2-.6.5-.6 1.1M8 11.5v.1M8 2a6 6 0 1 0 0 12A6 6 0 0 0 8 2",
    "eye": "M1.5 8S4 3.5 8 3.5 14.5 8 14.5 8 12 12.5 8 12.5 1.5 8 1.5 8M8 6.5a1.5 1.5 0 1 0 0 3 1.5 1.5 0 0 0 0-3",
    "web": "M8 2a6 6 0 1 0 0 12A6 6 0 0 0 8 2M2 8h12M8 2c-4 4-4 8 0 12 4-4 4-8 0-12",
}
_MAX_POINTS: Final = 120
_TIPS: Final = {"dead": "M-5-5 5 5M5-5-5 5", "forged": "M-5-5 5 5M5-5-5 5", "hold": "M-2.5-6V6M2.5-6V6"}


class TimeBar(msgspec.Struct, frozen=True):
    """A part of a time line: its class, its begin and its width, in percent."""

    kind: str
    x: float
    width: float


class LaneWork(msgspec.Struct, frozen=True):
    """What a lane of a sequence did from the row *first* to the row *last*, as a class."""

    lane: int
    first: int
    last: int
    kind: str


class Arrow(msgspec.Struct, frozen=True):
    """A message from one lane to others; *kind* is how it is drawn: "", dead, forged or hold."""

    source: int
    targets: tuple[int, ...]
    kind: str = ""


def icon(name: str, tone: str = "") -> Markup:
    """Return a picture without a text of its own: a word stands beside it."""
    return Markup('<svg class="icon {}" viewBox="0 0 16 16" aria-hidden="true"><path d="{}"/></svg>').format(
        tone, _ICONS[name]
    )


def spark(values: Sequence[float], label: str, tone: str = "", least: float = 1.0) -> Markup:
    """Return *values* as a line without axes; NaN is a gap. A top below *least* is drawn as *least*: calm lies flat."""
    points = thinned(values, _MAX_POINTS)
    known = [value for value in points if not math.isnan(value)]
    if len(known) < 2:  # noqa: PLR2004 - a line has two ends
        return Markup("")
    top = max(*known, least)
    line, area = _line(points, top), _area(points, top)
    return Markup(
        '<svg class="spark {}" viewBox="0 0 100 30" preserveAspectRatio="none" role="img" aria-label="{}">'
        '<path class="area" d="{}"/><path d="{}"/></svg>'
    ).format(tone, _shown(label), area, line)


def plot(
    lines: Sequence[tuple[str, Sequence[float]]],
    label: str,
    y: Sequence[str],
    x: Sequence[str],
    *,
    top: float,
    events: Sequence[float] = (),
    size: str = "",
) -> Markup:
    """Return *lines*, each a class and its values from 0 to *top*, with the texts of both axes; *events* in percent."""
    drawn = Markup("").join(
        Markup('<line class="gridline" x1="0" x2="100" y1="{0}" y2="{0}"/>').format(at) for at in (0, 10, 20, 30)
    )
    drawn += Markup("").join(
        Markup('<line class="event" x1="{0:.1f}" x2="{0:.1f}" y1="0" y2="30"/>').format(at) for at in events
    )
    for kind, values in lines:
        points = thinned(values, _MAX_POINTS)
        drawn += Markup('<g class="{}"><path class="area" d="{}"/><path d="{}"/></g>').format(
            kind, _area(points, top), _line(points, top)
        )
    return Markup(
        '<figure class="plot {}"><div class="y" aria-hidden="true">{}</div><svg viewBox="0 0 100 30" '
        'preserveAspectRatio="none" role="img" aria-label="{}">{}</svg><div class="x" aria-hidden="true">{}</div>'
        "</figure>"
    ).format(size, _spans(y), _shown(label), drawn, _spans(x))


def meter(share: float, label: str, tone: str = "") -> Markup:
    """Return a bar of *share* percent."""
    return Markup(
        '<svg class="meter" role="img" aria-label="{}"><rect width="100%" height="100%" rx="4"/>'
        '<rect class="full {}" width="{:.1f}%" height="100%" rx="4"/></svg>'
    ).format(_shown(label), tone, min(100.0, max(0.0, share)))


def stacked(columns: Sequence[Sequence[float]], top: float, label: str, line: float = 0.0) -> Markup:
    """Return one bar a column, stacked; the parts of each have the classes k1, k2 and so on. *line*: a value across."""
    drawn = Markup("").join(
        Markup('<line class="gridline" x1="0" x2="100%" y1="{0}%" y2="{0}%"/>').format(at)
        for at in (0, 33.3, 66.7, 100)
    )
    step = 100 / max(1, len(columns))
    for number, parts in enumerate(columns):
        low = 0.0
        for kind, value in enumerate(parts, 1):
            high = 100 * value / top if top else 0.0
            if high > 0:
                drawn += Markup('<rect class="k{}" x="{:.2f}%" width="{:.2f}%" y="{:.2f}%" height="{:.2f}%"/>').format(
                    kind, number * step + step * 0.16, step * 0.68, 100 - low - high, max(0.3, high - 0.6)
                )
            low += high
    if line and top:
        drawn += Markup('<line class="event" x1="0" x2="100%" y1="{0:.2f}%" y2="{0:.2f}%"/>').format(
            100 - min(100.0, 100 * line / top)
        )
    return Markup('<svg class="bars" role="img" aria-label="{}">{}</svg>').format(_shown(label), drawn)


def spans(bars: Iterable[TimeBar], label: str) -> Markup:
    """Return the time line of one party."""
    drawn = Markup("").join(
        Markup('<rect class="{}" x="{:.2f}%" width="{:.2f}%" y="15%" height="70%" rx="2"/>').format(
            bar.kind, min(max(0.0, bar.x), 99.5), min(max(bar.width, 0.5), 100.0 - min(max(0.0, bar.x), 99.5))
        )
        for bar in bars
    )
    return Markup(
        '<svg role="img" aria-label="{}"><rect class="bed" width="100%" y="46%" height="8%"/>{}</svg>'
    ).format(_shown(label), drawn)


def lanes(count: int, row: int, work: Iterable[LaneWork], arrow: Arrow) -> Markup:
    """Return row *row* of a sequence of *count* lanes: their life lines, what they do, and *arrow*."""

    def at(lane: int) -> float:
        return round(100 * (lane + 0.5) / count, 2)

    drawn = Markup("").join(
        Markup('<line class="life" x1="{0}%" x2="{0}%" y1="0" y2="100%"/>').format(at(lane)) for lane in range(count)
    )
    # Much of what a party does at a time lies over itself: one line is enough for it.
    lines = dict.fromkeys(
        (each.kind, at(each.lane), "50%" if row == each.first else "0", "50%" if row == each.last else "100%")
        for each in work
        if each.first <= row <= each.last
    )
    for line in lines:
        drawn += Markup('<line class="{0}" x1="{1}%" x2="{1}%" y1="{2}" y2="{3}"/>').format(*line)
    for target in arrow.targets:
        turn = 1 if target > arrow.source else -1
        tip = _TIPS.get(arrow.kind, f"M{-9 * turn}-4.5 {-1 * turn} 0 {-9 * turn} 4.5Z")
        drawn += Markup(
            '<line class="arrow" x1="{}%" x2="{}%" y1="50%" y2="50%"/><svg x="{}%" y="50%" overflow="visible">'
            '<path class="tip" d="{}"/></svg>'
        ).format(at(arrow.source), at(target), at(target), tip)
    return Markup('<svg class="{}" aria-hidden="true">{}<circle class="from" cx="{}%" cy="50%" r="3.5"/></svg>').format(
        arrow.kind, drawn, at(arrow.source)
    )


def thinned(values: Sequence[float], most: int) -> list[float]:
    """Return at most *most* values: the largest of each stretch, so that a peak stays in sight."""
    if len(values) <= most:
        return list(values)
    size, found = len(values) / most, []
    for number in range(most):
        part = [value for value in values[int(number * size) : int((number + 1) * size)] if not math.isnan(value)]
        found.append(max(part, default=math.nan))
    return found


def _line(points: Sequence[float], top: float) -> str:
    """Return a path in a box of 100 by 30; a gap begins it anew."""
    step, parts, is_down = 100 / max(1, len(points) - 1), list[str](), False
    for number, value in enumerate(points):
        if math.isnan(value):
            is_down = False
            continue
        parts.append(f"{'L' if is_down else 'M'}{step * number:.1f} {_height(value, top):.1f}")
        is_down = True
    return "".join(parts)


def _area(points: Sequence[float], top: float) -> str:
    """Return the area below each stretch of a line."""
    step, parts, begin = 100 / max(1, len(points) - 1), list[str](), -1
    for number, value in enumerate([*points, math.nan]):
        if math.isnan(value):
            if begin >= 0:
                inside = "L".join(f"{step * at:.1f} {_height(points[at], top):.1f}" for at in range(begin, number))
                parts.append(f"M{step * begin:.1f} 30L{inside}L{step * (number - 1):.1f} 30Z")
            begin = -1
        elif begin < 0:
            begin = number
    return "".join(parts)


def _height(value: float, top: float) -> float:
    return 29 - 27 * min(1.0, value / top if top else 0.0)


def _spans(words: Iterable[str]) -> Markup:
    return Markup("").join(Markup("<span>{}</span>").format(_shown(word)) for word in words)


def _shown(text: str) -> str:
    return printable(text)
