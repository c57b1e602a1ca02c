"""What is shown and written: progress lines, tables, RESULTS.md.

Owns their form. Does not own a single figure in them.
"""

from __future__ import annotations

import platform
import sqlite3
from collections.abc import Iterable, Sequence
from importlib.metadata import PackageNotFoundError, version
from itertools import groupby
from pathlib import Path

from harness.rows.catalogue import ELSEWHERE, ROWS
from harness.terms import Result

__all__ = ["COLUMNS", "line", "show_results", "show_rows", "table", "write_results"]

COLUMNS = (
    "row", "log", "seeds", "faults", "accepted", "unknown", "handled", "dead", "lost", "phantom", "redone",
    "double effects", "order violations", "commits", "judged", "recovery max", "verdict",
)  # fmt: skip
_SUMMED = (
    "accepted",
    "unknown",
    "handled",
    "dead",
    "lost",
    "phantom",
    "redone",
    "double effects",
    "order violations",
    "commits",
    "judged",
)


def line(result: Result) -> str:
    """One run in a line."""
    counts = result.counts
    verdict = (
        "ok"
        if result.passed
        else "VIOLATED " + ", ".join(sorted({violation.invariant for violation in result.violations}))
    )
    return (
        f"{verdict}: {counts['accepted']} accepted, {counts['unknown']} unknown, {counts['handled']} handled, "
        f"{counts['dead']} dead, "
        f"{counts['repeated']} repeated, {counts['commits']} commits, lag gone after {result.recovery_s:.1f} s, "
        f"longest pause {result.stall_s:.1f} s, took {result.took_s:.0f} s"
    )


def summed(results: Iterable[Result]) -> list[tuple[str, ...]]:
    """One line of the table for each row and log."""
    lines = []
    ordered = sorted(
        results, key=lambda result: (_number(result.timeline.row), result.timeline.row, result.timeline.log)
    )
    for (row, log), group in groupby(ordered, key=lambda result: (result.timeline.row, result.timeline.log)):
        runs = list(group)
        sums = [str(sum(run.counts[name] for run in runs)) for name in _SUMMED]
        faults = sum(max(run.injected, run.fallen) for run in runs)
        verdict = "ok" if all(run.passed for run in runs) else "VIOLATED"
        recovery = f"{max(run.recovery_s for run in runs):.1f} s"
        lines.append((row, log, str(len(runs)), str(faults), *sums, recovery, verdict))
    return lines


def show_results(results: Sequence[Result], took_s: float) -> None:
    """The table, and what did not run."""
    print()
    for cells in table([COLUMNS, *summed(results)]):
        print(cells)
    failed = [result for result in results if not result.passed]
    print(f"\n{len(results)} runs in {took_s:.0f} s, {len(failed)} with violations")
    for result in failed:
        print(
            f"  again: python tests/faults/run.py --row {result.timeline.row} --log {result.timeline.log} --seed "
            f"{result.timeline.seed}"
        )


def show_rows() -> None:
    """Every row, and whether it can run."""
    for row in ROWS.values():
        lacking = row.lacking()
        print(
            f"{row.name:<22} {', '.join(row.logs):<16} {'quick' if row.quick else '':<6} "
            f"{row.title}{f'  NOT RUN: {lacking}' if lacking else ''}"
        )
    for number, why in ELSEWHERE.items():
        print(f"{number:<22} not here: {why}")


def table(lines: Sequence[Sequence[str]], separator: str = "  ") -> list[str]:
    """Columns as wide as they need to be."""
    widths = [max(len(cells[column]) for cells in lines) for column in range(len(lines[0]))]
    return [
        separator.join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)).rstrip() for cells in lines
    ]


def write_results(path: Path, results: Sequence[Result], command: str) -> None:
    """RESULTS.md: the command, the versions, the table, what did not run and why."""
    lines = ["# What the fault harness measured", "", f"    {command}", "", _versions(), ""]
    lines += ["| " + " | ".join(cells) + " |" for cells in [COLUMNS, tuple("---" for _ in COLUMNS), *summed(results)]]
    lines += [
        "",
        (
            "*commits* are all commits of the group, written down by the log itself; "
            "*judged* counts each record that a commit passed."
        ),
        "",
    ]
    ran = {(result.timeline.row, result.timeline.log) for result in results}
    missing = [
        (row.name, log, row.lacking() or "not asked for")
        for row in ROWS.values()
        for log in row.logs
        if (row.name, log) not in ran
    ]
    if missing:
        lines += ["## Not run", "", *(f"- {name} on {log}: {why}" for name, log, why in missing)]
    lines += [f"- {number}: {why}" for number, why in ELSEWHERE.items()]
    path.write_text("\n".join(lines) + "\n", "utf-8")


def _versions() -> str:
    found = [f"Python {platform.python_version()}", f"SQLite {sqlite3.sqlite_version}"]
    for name in ("sealbus", "aiokafka", "msgspec"):
        try:
            found.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            continue
    return ", ".join(found) + f", {platform.system()}"


def _number(row: str) -> int:
    return int(row.partition("-")[0])
