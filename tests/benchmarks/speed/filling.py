"""RESULTS.md: its tables are written by a program, its sentences by people.

Owns the places, `<!-- name -->` to `<!-- /name -->`, what goes into each from the files of a run, and copying the
drawings beside it. What was not measured leaves its place as it is.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Mapping
from pathlib import Path

import msgspec
from curves.catalog import CURVES
from curves.document import Measured as Scale
from curves.document import curve_table, lines_of, startup_table, steady_table
from speed import budgets, plan, tables
from speed.goals import judge
from speed.results import Failure, Measured

__all__ = ["fill", "filled"]

_PATHS = re.compile(r"(?<![\w.])/(?:[\w.-]+/)+(?=(?:tests|build|bin)/)")
_PLACE = "<!-- {name} -->\n{text}\n<!-- /{name} -->"
_PUBLISH, _CONSUME = "publish/sealbus-keyed", "consume/sealbus-worker"
_APART = ("native-publish", "native-consume", "backend")


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
            raise ValueError(f"RESULTS.md has no place for {name}")
        new = _PLACE.format(name=name, text=part.strip("\n"))
        text = pattern.sub(new.replace("\\", r"\\"), text)
    return text


def fill(results: Path, source: Path) -> list[str]:
    """Write what *source* holds into *results*; the names of the places that were filled."""
    parts = _of_run(source / "results.json") | _of_scale(source / "scale.json") | _of_files(source, results.parent)
    results.write_text(filled(results.read_text("utf-8"), parts), "utf-8")
    drawings = results.parent / "results"
    drawings.mkdir(exist_ok=True)
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
        parts |= _planned(rest)
    if apart["native-publish"] or apart["native-consume"]:
        parts["native"] = _lower(tables.families([*apart["native-publish"], *apart["native-consume"]]))
    if apart["backend"]:
        parts["backend"] = _lower(tables.families(apart["backend"]))
    return parts


def _planned(measured: list[Measured]) -> dict[str, str]:
    """The arithmetic for more, where its two figures were measured."""
    answers = {name: [each.answer for each in measured if each.variant == name] for name in (_PUBLISH, _CONSUME)}
    wire_bytes = [answer.wire_bytes for answer in answers[_CONSUME] if answer.wire_bytes]
    if not all(answers.values()) or not wire_bytes:
        return {}
    publish, consume = (statistics.median(answer.rate for answer in answers[name]) for name in (_PUBLISH, _CONSUME))
    return {"plan": "\n".join(tables.table(plan.rows(publish, consume, statistics.median(wire_bytes))))}


def _of_scale(file: Path) -> dict[str, str]:
    if not file.exists():
        return {}
    scale = msgspec.json.decode(file.read_bytes(), type=Scale)
    parts = {}
    for curve in CURVES:
        if lines_of(curve, scale.points):
            drawing = f"![{curve.title}](results/scale-{curve.name}.svg)"
            parts[f"scale-{curve.name}"] = "\n".join([*curve_table(curve, scale.points), "", drawing])
    if scale.starts:
        parts["startup"] = "\n".join(startup_table(scale.starts))
    if scale.steady:
        drawings = [
            f"![{run.log}](results/scale-steady-{run.log.partition(' ')[0].lower()}.svg)" for run in scale.steady
        ]
        parts["steady"] = "\n".join([*steady_table(scale.steady), "", *drawings])
    return parts


def _of_files(source: Path, folder: Path) -> dict[str, str]:
    parts = {}
    profiles = source / "profiles.md"
    if profiles.exists():
        parts["profiles"] = profiles.read_text("utf-8").replace("](profile-", "](results/profile-")
    budget = budgets.read((folder / "budget.toml").read_text("utf-8"))
    rows = [["", "path", "budget, calibrations", "us on the reference machine"]]
    rows += [
        [name, path, f"{each.calibrations:.2f}", f"{each.us:.1f}"]
        for path in budgets.PATHS
        for name, each in budget.of(path).items()
    ]
    parts["budget"] = "\n".join(tables.table(rows))
    return parts


def _lower(lines: list[str]) -> str:
    """Headings one level down."""
    return "\n".join(f"#{line}" if line.startswith("## ") else line for line in lines)
