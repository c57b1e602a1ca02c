"""Scale curves as Markdown: a table per curve, start-up times, and the steady load. Pure.

Owns the layout of scale.md, and what scale.json holds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
from curves.catalog import CURVES, Curve, Point
from curves.startup import Start
from curves.steady import Steady
from speed.tables import number, ranged, table

__all__ = ["Measured", "curve_table", "document", "lines_of", "startup_table", "steady_table"]


class Measured(msgspec.Struct, kw_only=True):
    """Everything; what is measured again takes the place of what was."""

    machine: dict[str, str] = {}
    quick: bool = False
    seconds_each: float = 0.0
    points: list[Point] = []
    starts: list[Start] = []
    steady: list[Steady] = []
    failures: list[str] = []

    def put(self, point: Point) -> None:
        """Add *point*, in place of one like it."""
        mine = (point.curve, point.line, point.x)
        self.points = [*(each for each in self.points if (each.curve, each.line, each.x) != mine), point]

    def put_steady(self, steady: Steady) -> None:
        """Add *steady*, in place of one on the same log."""
        self.steady = [*(each for each in self.steady if each.log != steady.log), steady]


def lines_of(curve: Curve, points: Sequence[Point]) -> Mapping[str, list[Point]]:
    """The points of *curve* by line, along x."""
    found: dict[str, list[Point]] = {}
    for point in sorted((each for each in points if each.curve == curve.name), key=lambda each: each.x):
        found.setdefault(point.line, []).append(point)
    return found


def curve_table(curve: Curve, points: Sequence[Point]) -> list[str]:
    """A row per line and value."""
    rows = [
        ["", curve.of, "messages/s", "client CPU us/message", "broker CPU us/message", "bytes/message in the log", ""]
    ]
    for line, along in lines_of(curve, points).items():
        rows += [
            [
                line,
                f"{each.x:,}",
                number(each.rate),
                number(each.cpu_us),
                "-" if each.broker_cpu_us is None else number(each.broker_cpu_us),
                "-" if each.log_bytes is None else number(each.log_bytes),
                each.note,
            ]
            for each in along
        ]
    return table(rows)


def startup_table(starts: Sequence[Start]) -> list[str]:
    """A row per thing that starts."""
    rows = [["", "ms", "goal", ""]]
    for each in starts:
        met = "-" if each.goal_ms is None else "met" if each.ms.median <= each.goal_ms else "**NOT met**"
        rows.append([each.name, ranged(each.ms), "-" if each.goal_ms is None else f"<= {each.goal_ms:g} ms", met])
    return table(rows)


def steady_table(runs: Sequence[Steady]) -> list[str]:
    """A row per process of each run."""
    rows = [
        [
            "log",
            "minutes",
            "messages/s",
            "published",
            "handled",
            "process",
            "peak RSS MB",
            "RSS drift MB",
            "open files",
            "files drift",
        ]
    ]
    for run in runs:
        sizes, files = run.drifts(lambda course: course.rss_mb), run.drifts(lambda course: course.files)
        for name, course in run.courses.items():
            peak = max((value for _, value in course.rss_mb), default=0.0)
            last = course.files[-1][1] if course.files else 0
            drift = (f"{sizes[name]:+.2f}" if name in sizes else "-", f"{files[name]:+.1f}" if name in files else "-")
            head = [run.log, f"{run.minutes:g}", f"{run.per_second:,.0f}", f"{run.published:,}", f"{run.handled:,}"]
            rows.append([*head, name, f"{peak:.1f}", drift[0], f"{last:.0f}", drift[1]])
    return table(rows)


def document(measured: Measured) -> str:
    """The whole of scale.md."""
    parts = ["# Scale curves", "", *(f"- {name}: {value}" for name, value in measured.machine.items()), ""]
    if measured.quick:
        parts += ["**Quick run**: it shows that everything works; its numbers prove nothing.", ""]
    for curve in CURVES:
        if lines_of(curve, measured.points):
            parts += [f"## {curve.title}", "", *([f"{curve.setting}.", ""] if curve.setting else [])]
            parts += [f"![{curve.title}](scale-{curve.name}.svg)", "", *curve_table(curve, measured.points), ""]
    if measured.starts:
        parts += ["## Starting", "", *startup_table(measured.starts), ""]
    if measured.steady:
        parts += ["## Steady load", "", *steady_table(measured.steady), ""]
    if measured.failures:
        parts += ["## What failed", "", *(f"- {each}" for each in measured.failures), ""]
    return "\n".join(parts)
