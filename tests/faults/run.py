"""The fault harness: `python tests/faults/run.py --help`.

Owns the command line, running rows one after another, progress, the table at the end and the exit code. Rows are
`harness.rows`', a run `harness.arena`'s.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parents[1]), str(HERE)]

from harness import report  # noqa: E402 - after the path
from harness.rows.catalogue import ROWS, matching  # noqa: E402
from harness.rows.row import Row  # noqa: E402
from harness.stage import Stage  # noqa: E402
from harness.terms import Result  # noqa: E402
from harness.timeline import draw, printed  # noqa: E402


def arguments() -> argparse.Namespace:
    """What was asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--list", action="store_true", help="the rows, and why some cannot run")
    parser.add_argument(
        "--row", action="append", default=[], metavar="NAME", help="a row, or all rows of a number; may be repeated"
    )
    parser.add_argument("--log", choices=["embedded", "kafka"], help="on this log only")
    parser.add_argument("--seed", type=int, help="this seed only")
    parser.add_argument("--seeds", type=int, help="so many seeds; without it as many as each row says")
    parser.add_argument(
        "--from", type=int, default=1, dest="first", metavar="SEED", help="the first of them; 1 without it"
    )
    parser.add_argument(
        "--quick", action="store_true", help="one seed of the rows that say most, on both logs: about five minutes"
    )
    parser.add_argument("--all", action="store_true", help="every row")
    parser.add_argument(
        "--bugs", action="store_true", help="build in one deliberate bug after another: each must be caught"
    )
    parser.add_argument(
        "--bug", action="append", default=[], metavar="NAME", help="with this bug only; may be repeated"
    )
    parser.add_argument("--results", action="store_true", help="write RESULTS.md")
    parser.add_argument("--keep", action="store_true", help="keep the files of runs that passed, too")
    return parser.parse_args()


def chosen(asked: argparse.Namespace) -> list[tuple[Row, str, int]]:
    """Row, log and seed of each run."""
    if asked.row:
        rows = [row for name in asked.row for row in matching(name)]
    elif asked.quick:
        rows = [row for row in ROWS.values() if row.quick]
    else:
        rows = list(ROWS.values())
    logs = [asked.log] if asked.log else ["embedded", "kafka"]
    runs = []
    for log in logs:
        for row in rows:
            if log not in row.logs or row.lacking() or (asked.quick and log not in row.quick_logs):
                continue
            many = asked.seeds or (1 if asked.quick else row.seeds)
            seeds = [asked.seed] if asked.seed is not None else range(asked.first, asked.first + many)
            runs += [(row, log, seed) for seed in seeds]
    return runs


async def run_all(runs: list[tuple[Row, str, int]], *, keep: bool, results_at: Path | None) -> list[Result]:
    """Run them one after another; what is known so far is always in the file at *results_at*, if there shall be one."""
    results = []
    # It stays where a run fails: whoever looks into it needs everything.
    async with Stage(Path(tempfile.mkdtemp(prefix="faults-"))) as stage:
        for number, (row, log, seed) in enumerate(runs, 1):
            timeline = draw(row.name, log, seed, row.schedule)
            print(f"[{number}/{len(runs)}] {row.name} on {log}, seed {seed} ... ", end="", flush=True)
            result = await stage.run(row, timeline)
            results.append(result)
            if results_at is not None:
                report.write_results(results_at, results, f"python tests/faults/run.py {' '.join(sys.argv[1:])}")
            print(report.line(result), flush=True)
            if not result.passed:
                print(printed(timeline))
                for violation in result.violations:
                    print(f"  {violation.invariant}: {violation.text}")
                print(f"  files: {result.folder}", flush=True)
            elif not keep:
                stage.forget(result)
    return results


def main() -> int:
    asked = arguments()
    if asked.list:
        report.show_rows()
        return 0
    if asked.bugs or asked.bug:
        from harness import bughunt

        return asyncio.run(bughunt.hunt(asked.bug))
    try:
        runs = chosen(asked)
    except KeyError as error:
        print(f"there is no row {error}; --list shows them", file=sys.stderr)
        return 2
    if not (asked.row or asked.quick or asked.all):
        print("say --row NAME, --quick, --all, --bugs or --list", file=sys.stderr)
        return 2
    started_s = time.monotonic()
    results = asyncio.run(run_all(runs, keep=asked.keep, results_at=HERE / "RESULTS.md" if asked.results else None))
    report.show_results(results, time.monotonic() - started_s)
    return 1 if any(not result.passed for result in results) else 0


if __name__ == "__main__":
    sys.exit(main())
