"""A timeline is drawn from its seed alone, so that a failure can be had again."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import pytest
from harness.rows.catalogue import ROWS, matching
from harness.timeline import Fault, Timeline, draw, printed
from hypothesis import given
from hypothesis import strategies as st

HERE = Path(__file__).resolve().parent


@pytest.mark.medium
@given(seed=st.integers(0, 2**32), name=st.sampled_from(sorted(ROWS)))
def test_the_same_seed_draws_the_same_faults_in_order_of_time(seed: int, name: str) -> None:
    row = ROWS[name]
    timeline = draw(name, "embedded", seed, row.schedule)
    assert timeline == draw(name, "embedded", seed, row.schedule)
    times = [fault.at_s for fault in timeline.faults]
    assert times == sorted(times)
    assert all(fault.at_s >= 0 and fault.for_s >= 0 for fault in timeline.faults)
    assert timeline.over_s >= max(times, default=0.0)


@pytest.mark.medium
def test_another_process_draws_the_same() -> None:
    code = (
        f"import sys; sys.path[:0] = [{str(HERE.parents[1])!r}, {str(HERE)!r}]\n"
        "from harness.rows.catalogue import ROWS; from harness.timeline import draw, printed\n"
        "print(printed(draw('30-chaos', 'kafka', 7, ROWS['30-chaos'].schedule)))"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert said.strip() == printed(draw("30-chaos", "kafka", 7, ROWS["30-chaos"].schedule))


def test_other_seeds_draw_other_faults() -> None:
    drawn = {draw("7-kill", "embedded", seed, ROWS["7-kill"].schedule).faults for seed in range(20)}
    assert len(drawn) == 20


def test_a_printed_timeline_says_how_to_have_it_again() -> None:
    timeline = Timeline(row="7-kill", log="embedded", seed=3, faults=(Fault(1.5, "kill", "w1", 0.25),))
    first, second = printed(timeline).splitlines()
    assert "--row 7-kill --log embedded --seed 3" in first
    assert second.split() == ["1.50", "s", "kill", "w1", "for", "0.25", "s"]


def test_a_number_means_all_its_rows() -> None:
    assert {row.name for row in matching("27")} == {"27-dependency", "27-long-dependency"}
    with pytest.raises(KeyError):
        matching("99")


def test_faults_out_of_range_are_moved_to_the_beginning() -> None:
    def schedule(_: random.Random) -> list[Fault]:
        return [Fault(-1.0, "kill", "w1", -2.0)]

    assert draw("x", "embedded", 1, schedule).faults == (Fault(0.0, "kill", "w1", 0.0),)
