"""The budget: how much processor time a message may take, and whether it keeps to that. Pure.

Owns reading and writing `budget.toml`, the comparison, and the sentences about it. One budget for the compiled hot
path, one for Python alone.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from typing import Literal

import msgspec
from speed.figures import FIGURES
from speed.gauging import Gauged

__all__ = ["PATHS", "Budget", "Path", "least", "over", "read", "table", "written"]

Path = Literal["native", "pure"]
PATHS: tuple[Path, ...] = ("native", "pure")
_WORDS: Mapping[Path, str] = {"native": "with the compiled hot path", "pure": "in Python alone"}
_TITLES = {figure.name: figure.title for figure in FIGURES}
_HEAD = """\
# Processor time that one message may take, in calibrations (speed/calibration.py), and what that was in microseconds \
on the reference machine.
# tests/test_budget.py fails above budget x tolerance. Not by hand: `python tests/benchmarks/budget.py --write` on a \
quiet machine; why a figure
# is higher than before goes into the commit.
"""


class Budget(msgspec.Struct, frozen=True, kw_only=True):
    """All that the file says."""

    tolerance: float
    reference: str
    native: dict[str, Gauged] = {}
    pure: dict[str, Gauged] = {}

    def of(self, path: Path) -> dict[str, Gauged]:
        """The figures of one path."""
        return self.native if path == "native" else self.pure


def read(text: str) -> Budget:
    """The budget in *text*."""
    return msgspec.convert(tomllib.loads(text), Budget)


def written(budget: Budget) -> str:
    """*budget* as the file has it."""
    lines = [_HEAD, f"tolerance = {budget.tolerance}", f"reference = {msgspec.json.encode(budget.reference).decode()}"]
    for path in PATHS:
        lines += ["", f"[{path}]"]
        lines += [
            f"{name} = {{ calibrations = {each.calibrations:.3f}, us = {each.us:.1f} }}"
            for name, each in budget.of(path).items()
        ]
    return "\n".join(lines) + "\n"


def over(budget: Budget, path: Path, found: Mapping[str, Gauged]) -> dict[str, str]:
    """A sentence for each figure of *found* that is above its budget, or has none."""
    sentences = {}
    for name, gauged in found.items():
        allowed = budget.of(path).get(name)
        where = f"{name} ({_TITLES[name]}), {_WORDS[path]}"
        if allowed is None:
            sentences[name] = f"{where}, has no budget: python tests/benchmarks/budget.py --write"
            continue
        factor = gauged.calibrations / allowed.calibrations
        if factor > budget.tolerance:
            sentences[name] = (
                f"{where}: {gauged.calibrations:.2f} calibrations a message, {factor:.2f}x its budget of "
                f"{allowed.calibrations:.2f}, where "
                f"{budget.tolerance:g}x is tolerated; about {allowed.us * factor:.1f} us on the reference machine, was "
                f"{allowed.us:.1f}. "
                "Make it cheaper; or raise the budget on purpose: python tests/benchmarks/budget.py --write, and say "
                "why in the commit."
            )
    return sentences


def table(budget: Budget, found: Mapping[Path, Mapping[str, Gauged]]) -> list[str]:
    """Markdown: every figure beside its budget."""
    lines = ["| | path | us/message here | calibrations | budget | of budget |", "|---|---|---|---|---|---|"]
    for name, title in _TITLES.items():
        for path, gauged in found.items():
            if name not in gauged:
                continue
            each, allowed = gauged[name], budget.of(path).get(name)
            share = "-" if allowed is None else f"{each.calibrations / allowed.calibrations:.0%}"
            bound = "-" if allowed is None else f"{allowed.calibrations:.2f}"
            lines.append(f"| {title} | {path} | {each.us:.1f} | {each.calibrations:.2f} | {bound} | {share} |")
    return lines


def least(several: Sequence[Mapping[str, Gauged]]) -> dict[str, Gauged]:
    """Of each figure the best."""
    names = {name: None for found in several for name in found}
    return {
        name: min((found[name] for found in several if name in found), key=lambda each: each.calibrations)
        for name in names
    }
