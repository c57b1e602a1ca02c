"""Hunting the deliberate bugs: each must be caught, by an invariant that it breaks.

Owns the order of runs and the table. The bugs are `bugs`'.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

import msgspec
from harness import report
from harness.bugs import BUGS, Bug
from harness.rows.catalogue import ROWS
from harness.stage import Stage
from harness.timeline import draw

__all__ = ["Catch", "caught", "hunt"]

SEEDS = 4
HEAL_S = 20.0


class Catch(msgspec.Struct, frozen=True, kw_only=True):
    """How a bug was caught; *seed* 0 when it was not."""

    bug: Bug
    row: str = ""
    seed: int = 0
    invariant: str = ""
    text: str = ""


async def hunt(names: Sequence[str]) -> int:
    """Build in one bug after another; 1 if one survives."""
    chosen = [bug for bug in BUGS.load().values() if not names or bug.name in names]
    catches = []
    async with Stage(Path(tempfile.mkdtemp(prefix="faults-bugs-")), heal_s=HEAL_S) as stage:
        for number, bug in enumerate(chosen, 1):
            catch = await caught(stage, bug)
            catches.append(catch)
            told = (
                f"caught by {catch.invariant} in {catch.row}, seed {catch.seed}: {catch.text}"
                if catch.seed
                else "SURVIVED"
            )
            print(f"[{number}/{len(chosen)}] {bug.name}: {told}", flush=True)
    lines = [("bug", "what", "row", "log", "seed", "caught by")]
    lines += [
        (c.bug.name, c.bug.what, c.row or "-", c.bug.log, str(c.seed or "-"), c.invariant or "SURVIVED")
        for c in catches
    ]
    print()
    print("\n".join(report.table(lines)))
    alive = [catch.bug.name for catch in catches if not catch.seed]
    print(f"\n{len(catches) - len(alive)} of {len(catches)} caught" + (f"; alive: {', '.join(alive)}" if alive else ""))
    return 1 if alive else 0


async def caught(stage: Stage, bug: Bug) -> Catch:
    """Run its rows until one of its invariants is violated."""
    for seed in range(1, SEEDS + 1):
        for name in bug.rows:
            row = ROWS[name]
            if row.lacking():
                continue
            result = await stage.run(row, draw(name, bug.log, seed, row.schedule), bug=bug.name)
            stage.forget(result)
            for violation in result.violations:
                if violation.invariant in bug.by:
                    return Catch(bug=bug, row=name, seed=seed, invariant=violation.invariant, text=violation.text)
    return Catch(bug=bug)
