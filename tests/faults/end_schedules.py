"""Random schedules around the ends of messages, in one process: `python tests/faults/end_schedules.py --help`.

Runs the property test of `tests/behaviour/test_final_outcomes.py` with as many random schedules as requested, and
prints how many ran. A schedule has repeats, changed answers of handler and policy, and passing time.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT)]

from hypothesis import HealthCheck, Phase, given, settings  # noqa: E402 - after the path
from hypothesis import strategies as st  # noqa: E402

from bus.telemetry import logs  # noqa: E402
from tests.behaviour import test_final_outcomes  # noqa: E402


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--schedules", type=int, default=20_000)
    options = parser.parse_args()
    logs.configure("error", "json")
    judge = test_final_outcomes.test_no_request_is_both_refused_and_done_whatever_changes_its_mind.hypothesis.inner_test
    count, began_s = 0, time.monotonic()

    @settings(
        max_examples=options.schedules,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=[*HealthCheck],
    )
    @given(
        acts=st.lists(st.sampled_from(test_final_outcomes.ACTS), max_size=24),
        dedup=st.sampled_from(["always", "key"]),
        first=st.booleans(),
    )
    def schedules(acts: list[str], dedup: str, first: bool) -> None:
        nonlocal count
        judge(acts=acts, dedup=dedup, first=first)
        count += 1

    schedules()
    print(f"{count:,} schedules, none refused and done, each told once; {time.monotonic() - began_s:.0f} s")


if __name__ == "__main__":
    main()
