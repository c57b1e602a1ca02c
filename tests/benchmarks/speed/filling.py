"""RESULTS.md and results/tables.md: their tables are written by a program, their sentences by people.

Owns the places, `<!-- name -->` to `<!-- /name -->`, what goes into each from the files of a run, and copying the
drawings beside them. What was not measured leaves its place as it is.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import msgspec
from curves.catalog import CURVES
from curves.document import Measured as Scale
from curves.document import curve_table, lines_of, startup_table, steady_table
from speed import budgets, tables
from speed.goals import judge
from speed.results import Failure, Measured

__all__ = ["fill", "filled"]

_PATHS = re.compile(r"(?<![\w.])/(?:[\w.-]+/)+(?=(?:tests|build|bin)/)")
_PLACE = "<!-- {name} -->\n{text}\n<!-- /{name} -->"
_APART = ("native-publish", "native-consume")


class _Run(msgspec.Struct):
    """results.json."""

    machine: dict[str, str]
    quick: bool
    rounds: int
    measured: list[Measured]
    failures: list[Failure] = []


def filled(text: str, parts: Mapping[str, str]) -> str:
    """*text* with *parts* in their places. Raises ValueError for a part that has no place."""
    for name, part in parts.items():
        pattern = re.compile(rf"<!-- {name} -->\n.*?<!-- /{name} -->", re.DOTALL)
        if not pattern.search(text):
            raise ValueError(f"there is no place for {name}")
        new = _PLACE.format(name=name, text=part.strip("\n"))
        text = pattern.sub(new.replace("\\", r"\\"), text)
    return text


def fill(results: Path, source: Path) -> list[str]:
    """Write what *source* holds into *results*; the names of the places that were filled."""
    parts = _of_run(source / "results.json") | _of_scale(source / "scale.json") | _of_files(source, results.parent)
    drawings = results.parent / "results"
    drawings.mkdir(exist_ok=True)
    first = {name: parts[name] for name in ("machine", "goals") if name in parts}
    for page, own in ((results, first), (drawings / "tables.md", {k: v for k, v in parts.items() if k not in first})):
        page.write_text(filled(page.read_text("utf-8"), own), "utf-8")
    for drawing in sorted(source.glob("*.svg")):
        # A flame graph's title is the command that was recorded, with the paths of the machine.
        text = _PATHS.sub("", drawing.read_text("utf-8"))
        (drawings / drawing.name).write_text(text, "utf-8")
    return sorted(parts)


def _of_run(file: Path) -> dict[str, str]:
    if not file.exists():
        return {}
    run = msgspec.json.decode(file.read_bytes(), type=_Run)
    head = [f"- {name}: {value}" for name, value in run.machine.items()] + [f"- rounds: {run.rounds}"]
    if run.quick:
        head.append("- **a quick run, whose numbers prove nothing**")
    apart = {name: [each for each in run.measured if each.variant.startswith(f"{name}/")] for name in _APART}
    rest = [each for each in run.measured if not each.variant.startswith(tuple(f"{name}/" for name in _APART))]
    parts = {"machine": "\n".join(head)}
    if rest:
        parts["goals"] = "\n".join(tables.goals_table(judge(rest)))
        parts["families"] = _lower(tables.families(rest))
    if apart["native-publish"] or apart["native-consume"]:
        parts["native"] = _lower(tables.families([*apart["native-publish"], *apart["native-consume"]]))
    return parts


def _of_scale(file: Path) -> dict[str, str]:
    if not file.exists():
        return {}
    scale = msgspec.json.decode(file.read_bytes(), type=Scale)
    parts = {}
    for curve in CURVES:
        if lines_of(curve, scale.points):
            drawing = f"![{curve.title}](scale-{curve.name}.svg)"
            parts[f"scale-{curve.name}"] = "\n".join([*curve_table(curve, scale.points), "", drawing])
    if scale.starts:
        parts["startup"] = "\n".join(startup_table(scale.starts))
    if scale.steady:
        drawings = [f"![{run.log}](scale-steady-{run.log.partition(' ')[0].lower()}.svg)" for run in scale.steady]
        parts["steady"] = "\n".join([*steady_table(scale.steady), "", *drawings])
    return parts


def _of_files(source: Path, folder: Path) -> dict[str, str]:
    parts = {}
    profiles = source / "profiles.md"
    if profiles.exists():
        parts["profiles"] = profiles.read_text("utf-8")
    budget = budgets.read((folder / "budget.toml").read_text("utf-8"))
    rows = [["", "path", "most processor time, by the base's"]]
    rows += [[name, path, f"{budget.limit_of(name, path):.2f}"] for path in budgets.PATHS for name in budgets.LIMITS]
    parts["budget"] = "\n".join(tables.table(rows))
    return parts


def _lower(lines: list[str]) -> str:
    """Headings one level down."""
    return "\n".join(f"#{line}" if line.startswith("## ") else line for line in lines)
