"""Results as Markdown: what it ran on, the goals, a table per family. Pure.

Owns the layout and how numbers are written. Does not own the verdicts (`speed.goals`) or what was found out about the
machine (`speed.machine`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from speed.catalog import FAMILIES, Family, Variant, of_family
from speed.goals import Goal, Verdict
from speed.ratios import Spread, spread
from speed.results import Failure, Measured

__all__ = ["document", "families", "goals_table", "number", "ranged", "table", "verdict_word"]

_LOTS = 1_000
_FEW = 10
_NONE = "-"


def number(value: float) -> str:
    """*value* as people write it: 41,200 and 3.14 and 0.021."""
    if abs(value) >= _LOTS:
        return f"{round(value, -2):,.0f}"
    return f"{value:.0f}" if abs(value) >= 10 * _FEW else f"{value:.1f}" if abs(value) >= _FEW else f"{value:.2f}"


def ranged(found: Spread | None) -> str:
    """A median with its range."""
    if found is None:
        return _NONE
    if found.rounds == 1:
        return number(found.median)
    return f"{number(found.median)} [{number(found.least)}..{number(found.most)}]"


def document(
    head: Mapping[str, str],
    conditions: Sequence[str],
    measured: Sequence[Measured],
    failures: Sequence[Failure],
    verdicts: Sequence[Verdict],
) -> str:
    """The whole of results.md."""
    parts = [
        "# Benchmarks",
        "",
        *(f"- {name}: {value}" for name, value in head.items()),
        "",
        *(f"{line}\n" for line in conditions),
    ]
    parts += ["## Goals", "", *goals_table(verdicts), ""]
    parts += families(measured)
    if failures:
        parts += [
            "## What failed",
            "",
            *(f"- {each.variant}, round {each.round + 1}: `{_line(each.text)}`" for each in failures),
            "",
        ]
    return "\n".join(parts)


def families(measured: Sequence[Measured]) -> list[str]:
    """A heading and a table per family that was measured."""
    parts: list[str] = []
    for family in FAMILIES:
        variants = [
            variant for variant in of_family(family.name) if any(each.variant == variant.id for each in measured)
        ]
        if variants:
            parts += [f"## {family.title}", "", *_family(family, variants, measured), ""]
    return parts


def verdict_word(verdict: Verdict, met: bool | None) -> str:
    """met, NOT met, or nothing to say."""
    if verdict.found is None:
        return "not measured"
    return _NONE if met is None else "met" if met else "**NOT met**"


def goals_table(verdicts: Sequence[Verdict]) -> list[str]:
    """A row per goal."""
    rows = [["goal", "found", "must", "", "stretch", "", "rounds"]]
    for verdict in verdicts:
        goal, found = verdict.goal, verdict.found
        rows.append(
            [
                goal.text,
                ranged(found) + ("" if found is None or goal.unit == "x" else f" {goal.unit}"),
                _bound(goal, goal.must),
                verdict_word(verdict, verdict.must),
                "within noise" if goal.stretch == "noise" else _bound(goal, goal.stretch),
                verdict_word(verdict, verdict.stretch).replace("*", ""),
                str(found.rounds) if found else _NONE,
            ]
        )
    return table(rows)


def _bound(goal: Goal, bound: float | None) -> str:
    if bound is None:
        return "no goal"
    sign = "<=" if goal.at_most else ">="
    return f"{sign} {bound:g}{'x' if goal.unit == 'x' else f' {goal.unit}'}"


def _family(family: Family, variants: Sequence[Variant], measured: Sequence[Measured]) -> list[str]:
    in_ms, memory = family.unit == "ms", family.name == "memory"
    first = ["p50 ms", "p99 ms"] if in_ms else ["messages/s"]
    heads = [
        "",
        *first,
        "CPU us/message",
        "bytes/message on disk" if family.log == "file" else "wire bytes/message",
        "peak RSS MB",
    ]
    rows = [[*heads, "drift MB" if memory else "of it after preparing", "does"]]
    for variant in variants:

        def of(get: Callable[[Measured], float | None], name: str = variant.id) -> str:
            return ranged(
                spread([value for each in measured if each.variant == name and (value := get(each)) is not None])
            )

        speeds = (
            [of(lambda each: each.answer.p50_ms), of(lambda each: each.answer.p99_ms)]
            if in_ms
            else [of(lambda each: each.answer.rate)]
        )
        rows.append(
            [
                f"**{variant.label}**" if variant.ours else variant.label,
                *speeds,
                of(lambda each: each.answer.cpu_us),
                of(lambda each: each.answer.wire_bytes),
                of(lambda each: each.answer.rss_peak_mb),
                _drifts(variant, measured) if memory else of(lambda each: each.answer.rss_growth_mb),
                variant.does,
            ]
        )
    return table(rows)


def _drifts(variant: Variant, measured: Sequence[Measured]) -> str:
    found = [each.answer for each in measured if each.variant == variant.id]
    return "; ".join(f"{name} {value:+.2f}" for answer in found for name, value in answer.rss_drift_mb.items()) or _NONE


def table(rows: Sequence[Sequence[str]]) -> list[str]:
    """A Markdown table; the first row is its head."""
    head, *rest = ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]
    return [head, "|" + "---|" * len(rows[0]), *rest]


def _line(text: str) -> str:
    return " ".join(text.split()).replace("`", "'")[-300:]
