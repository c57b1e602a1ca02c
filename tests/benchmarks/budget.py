"""Processor time per message against its budget: `make budget`, and `python tests/benchmarks/budget.py --write` to set
it anew.

Owns the command line, and a process of its own for each path: the compiled one, where it is built, and Python alone.
The budget is in `budget.toml`; `tests/test_budget.py` holds the project to it. About ten seconds; no Kafka, no network.
"""

from __future__ import annotations

import argparse
import os
import platform
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(Path(__file__).resolve().parent))

import msgspec
from speed import budgets
from speed.figures import FIGURES
from speed.gauging import ROUNDS, Gauged, gauge

from bus.native import core
from bus.telemetry.logs import configure

__all__ = ["BUDGET", "checked", "gauged_apart"]

ROOT = Path(__file__).resolve().parents[2]
BUDGET = Path(__file__).resolve().with_name("budget.toml")
_ATTEMPTS, _WRITING_ROUNDS, _TIMEOUT_S = 3, 40, 300.0
_TOLERANCE = 1.5


def gauged_apart(path: budgets.Path, names: Sequence[str] = (), *, rounds: int = ROUNDS) -> dict[str, Gauged]:
    """The figures, measured in a process that has nothing else in it."""
    environment = os.environ | {"SEALBUS_NATIVE": "require" if path == "native" else "off"}
    command = [
        sys.executable,
        str(Path(__file__).resolve()),
        "--json",
        "--rounds",
        str(rounds),
        *(("--only", *names) if names else ()),
    ]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    if done.returncode:
        raise RuntimeError(f"measuring ended with {done.returncode}: {done.stderr.strip()[-2000:]}")
    return msgspec.json.decode(done.stdout.strip().splitlines()[-1], type=dict[str, Gauged])


def checked(budget: budgets.Budget, path: budgets.Path) -> tuple[dict[str, Gauged], dict[str, str]]:
    """What was found, and a sentence for each figure above its budget; those are measured again, for a machine can have
    a bad moment."""
    found = gauged_apart(path)
    above = budgets.over(budget, path, found)
    for _ in range(_ATTEMPTS - 1):
        if above:
            found = budgets.least([found, gauged_apart(path, list(above))])
            above = budgets.over(budget, path, found)
    return found, above


def parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--write", action="store_true", help="measure longer, and write the result into budget.toml as the budget"
    )
    parser.add_argument(
        "--json", action="store_true", help="measure in this process and print JSON; compare with nothing"
    )
    parser.add_argument("--rounds", type=int, default=ROUNDS, metavar="N", help=f"rounds of --json (default {ROUNDS})")
    parser.add_argument(
        "--only",
        nargs="+",
        default=[],
        choices=[figure.name for figure in FIGURES],
        metavar="NAME",
        help="some, with --json",
    )
    return parser.parse_args(arguments)


def write(before: budgets.Budget | None, paths: Sequence[budgets.Path]) -> None:
    """Measure and write; what cannot be measured here stays as it is."""
    found = {path: gauged_apart(path, rounds=_WRITING_ROUNDS) for path in paths}
    budget = budgets.Budget(
        tolerance=before.tolerance if before else _TOLERANCE,
        reference=f"Python {platform.python_version()}, {platform.system()} {platform.machine()}",
        native=found.get("native", before.native if before else {}),
        pure=found["pure"],
    )
    BUDGET.write_text(budgets.written(budget), "utf-8")
    print("\n".join(budgets.table(before or budget, found)))
    print(f"written: {BUDGET.relative_to(ROOT)}", file=sys.stderr)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run; the exit code: 1 when something is above its budget."""
    options = parsed(arguments)
    if options.json:
        configure("error")
        print(msgspec.json.encode(gauge(options.only, rounds=options.rounds)).decode())
        return 0
    paths = [path for path in budgets.PATHS if path == "pure" or core is not None]
    before = budgets.read(BUDGET.read_text("utf-8")) if BUDGET.exists() else None
    if options.write:
        write(before, paths)
        return 0
    if before is None:
        print("there is no budget.toml: --write makes one", file=sys.stderr)
        return 1
    if "native" not in paths:
        print("the compiled hot path is not built here: Python alone is measured", file=sys.stderr)
    results = {path: checked(before, path) for path in paths}
    print("\n".join(budgets.table(before, {path: found for path, (found, _) in results.items()})))
    sentences = [sentence for _, above in results.values() for sentence in above.values()]
    print("\n".join(f"ABOVE BUDGET: {sentence}" for sentence in sentences) or "all within budget")
    return int(bool(sentences))


if __name__ == "__main__":
    sys.exit(main())
