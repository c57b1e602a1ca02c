"""Processor time per message beside the base, a commit that does not move: `make budget`.

Owns the command line, and a process of its own for each tree and each path: the compiled one, where it is built, and
Python alone. Both trees take turns in one run. The limits are in `speed/budgets.py`, what is raised and why is in
`budget.toml`; CI holds the project to both. About a minute and a half; no Kafka, no network. The first run takes the
base out of the repository and builds its core.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(Path(__file__).resolve().parent))

import msgspec
from speed import budgets
from speed.base import MissingBaseError, base_tree
from speed.calls import calls_of
from speed.figures import COUNTED, FIGURES, SIZES
from speed.gauging import ROUNDS, Gauged, gauge

from bus.native import core
from bus.telemetry.logs import configure

__all__ = ["BUDGET", "beside_base", "checked"]

ROOT = Path(__file__).resolve().parents[2]
BUDGET = Path(__file__).resolve().with_name("budget.toml")
_ATTEMPTS, _TURNS, _TIMEOUT_S = 4, 3, 300.0


def gauged_apart(tree: Path, path: budgets.Path, names: Sequence[str] = ()) -> dict[str, Gauged]:
    """The figures of *tree*, measured in a process that has nothing else in it."""
    environment = os.environ | {
        "SEALBUS_NATIVE": "require" if path == "native" else "off",
        "PYTHONPATH": str(tree),
        "PYTHONDONTWRITEBYTECODE": "",
    }
    script = tree / "tests" / "benchmarks" / "budget.py"
    command = [sys.executable, str(script), "--json", "--rounds", str(ROUNDS), *(("--only", *names) if names else ())]
    done = subprocess.run(
        command, cwd=tree, env=environment, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False
    )
    if done.returncode:
        raise RuntimeError(f"measuring {tree.name} ended with {done.returncode}: {done.stderr.strip()[-2000:]}")
    return msgspec.json.decode(done.stdout.strip().splitlines()[-1], type=dict[str, Gauged])


def beside_base(base: Path, path: budgets.Path, names: Sequence[str] = ()) -> list[budgets.Turn]:
    """Both trees in turns: all figures, or those of *names*."""
    return [budgets.Turn(gauged_apart(base, path, names), gauged_apart(ROOT, path, names)) for _ in range(_TURNS)]


def checked(budget: budgets.Budget, path: budgets.Path, base: Path) -> tuple[list[budgets.Turn], dict[str, str]]:
    """What was found, and a sentence for each figure above its limit; those are measured more often, for a machine can
    have bad moments."""
    turns = beside_base(base, path)
    above = budgets.over(budget, path, turns)
    for _ in range(_ATTEMPTS - 1):
        if above:
            turns += beside_base(base, path, list(above))
            above = budgets.over(budget, path, turns)
    return turns, above


def unmeasured(turn: budgets.Turn) -> list[str]:
    """A sentence for each tree whose figures are not those that it must have: what is missing is not within budget."""
    wanted = {"this tree": (turn.head, {figure.name for figure in FIGURES}), "the base": (turn.base, {*budgets.LIMITS})}
    return [
        f"{tree} has other figures than it must: {', '.join(sorted(found.keys() ^ names))}"
        for tree, (found, names) in wanted.items()
        if found.keys() != names
    ]


def parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--json", action="store_true", help="measure this tree in this process and print JSON; compare with nothing"
    )
    parser.add_argument(
        "--calls", action="store_true", help="count calls per message in this process and print JSON; exact everywhere"
    )
    parser.add_argument("--rounds", type=int, default=ROUNDS, metavar="N", help=f"rounds of --json (default {ROUNDS})")
    parser.add_argument(
        "--only",
        nargs="+",
        default=[],
        choices=[figure.name for figure in (*FIGURES, *COUNTED)],
        metavar="NAME",
        help="some, with --json or --calls",
    )
    return parser.parse_args(arguments)


def measured(budget: budgets.Budget, paths: Sequence[budgets.Path]) -> tuple[list[str], bool]:
    """Print the table; return a sentence for each figure above its limit, and whether there was a base to compare."""
    sentences: list[str] = []
    is_compared = True
    found: dict[budgets.Path, list[budgets.Turn]] = {}
    try:
        base = base_tree(ROOT, compiled="native" in paths)
    except MissingBaseError as missing:
        print(missing, file=sys.stderr)
        is_compared = False
        found = {path: [budgets.Turn({}, gauged_apart(ROOT, path))] for path in paths}
    else:
        for path in paths:
            found[path], above = checked(budget, path, base)
            sentences += [*above.values(), *unmeasured(found[path][0])]
    print("\n".join(budgets.table(budget, found)))
    if "native" in paths:
        sentences += budgets.over_per_byte(found["native"][0].head, SIZES)
    return sentences, is_compared


def main(arguments: Sequence[str] | None = None) -> int:
    """Run; the exit code: 1 when something is above its limit."""
    options = parsed(arguments)
    if options.json:
        configure("error")
        print(msgspec.json.encode(gauge(options.only, rounds=options.rounds)).decode())
        return 0
    if options.calls:
        configure("error")
        names = options.only or [*budgets.LIMITS, *(figure.name for figure in COUNTED)]
        print(msgspec.json.encode({name: calls_of(name) for name in names}).decode())
        return 0
    paths = [path for path in budgets.PATHS if path == "pure" or core is not None]
    if "native" not in paths:
        print("the compiled hot path is not built here: Python alone is measured", file=sys.stderr)
    budget = budgets.read(BUDGET.read_text("utf-8"))
    above, is_compared = measured(budget, paths)
    sentences = [*budgets.faults(budget), *above]
    found = "all within budget" if is_compared else "nothing above budget, and nothing compared with the base"
    print("\n".join(f"ABOVE BUDGET: {sentence}" for sentence in sentences) or found)
    return int(bool(sentences))


if __name__ == "__main__":
    sys.exit(main())
