"""The lines of the pages: samples of the last hour, in memory."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from consumers.operations.console.samples import Samples

NOW_MS = 1_795_772_479_000.0


def known(values: list[float]) -> list[float]:
    return [value for value in values if not math.isnan(value)]


def test_a_line_begins_with_the_first_sample_and_shows_five_minutes_at_least() -> None:
    samples = Samples()
    assert samples.shown_s(NOW_MS) == 300
    for number in range(10):
        samples.add(NOW_MS + 3_000 * number, {"letters": float(number)})
    line = samples.hour("letters", NOW_MS + 27_000)
    assert len(line) == 100
    assert known(line) == [float(number) for number in range(10)]
    assert math.isnan(line[0])


def test_a_line_shows_an_hour_at_most() -> None:
    samples = Samples()
    for number in range(2_000):
        samples.add(NOW_MS + 3_000 * number, {"letters": float(number)})
    line = samples.hour("letters", NOW_MS + 3_000 * 1_999)
    assert len(line) == 1_200
    assert (line[0], line[-1]) == (800.0, 1_999.0)


def test_what_is_three_times_its_usual_value_is_unusual_since_then() -> None:
    samples = Samples()
    for number in range(200):
        samples.add(NOW_MS + 3_000 * number, {"half_s": 1.0, "young": math.nan, "little": 0.01})
    at_ms = NOW_MS + 3_000 * 200
    for number in range(20):
        samples.add(at_ms + 3_000 * number, {"half_s": 4.0, "young": 9.0, "little": 0.2})
    now_ms = at_ms + 3_000 * 19
    since_ms = samples.unusual_since_ms("half_s", now_ms, least=1.0)
    assert since_ms is not None
    assert abs(since_ms - at_ms) <= 3_000
    # Neither what is known for less than five minutes, nor what is small.
    assert samples.unusual_since_ms("young", now_ms, least=1.0) is None
    assert samples.unusual_since_ms("little", now_ms, least=1.0) is None
    samples.add(now_ms + 3_000, {"half_s": 1.1})
    assert samples.unusual_since_ms("half_s", now_ms + 3_000, least=1.0) is None


def test_a_short_gap_is_the_value_before_it_and_a_long_one_is_a_gap() -> None:
    samples = Samples()
    for at_s in (0, 3, 15, 120):
        samples.add(NOW_MS + 1_000 * at_s, {"lag": float(at_s)})
    line = samples.hour("lag", NOW_MS + 120_000)
    assert line[-1] == 120.0
    assert known(line[-41:-35]) == [0.0, 3.0, 3.0, 3.0, 3.0, 15.0]
    assert any(math.isnan(value) for value in line[-30:-2])


def test_it_knows_since_when_a_figure_is_above_a_limit_without_a_break() -> None:
    samples = Samples()
    for at_s in range(0, 60, 3):
        samples.add(NOW_MS + 1_000 * at_s, {"oldest_s": 0.0 if at_s < 30 else 20.0})
    now_ms = NOW_MS + 57_000
    since_ms = samples.since_ms("oldest_s", now_ms, above=10.0)
    assert since_ms is not None
    assert abs(since_ms - (NOW_MS + 30_000)) <= 3_000
    assert samples.since_ms("oldest_s", now_ms, above=100.0) is None
    assert samples.since_ms("unknown", now_ms, above=0.0) is None


def test_a_clock_that_is_set_back_does_not_lose_the_line() -> None:
    samples = Samples()
    samples.add(NOW_MS, {"lag": 1.0})
    samples.add(NOW_MS - 60_000, {"lag": 2.0})
    assert known(samples.hour("lag", NOW_MS))[-1] == 2.0


def test_names_that_come_and_go_do_not_grow_it() -> None:
    samples = Samples()
    for number in range(3_000):
        samples.add(NOW_MS + 60_000 * number, {f"group-{number}": 1.0})
    assert known(samples.hour("group-2999", NOW_MS + 60_000 * 2_999)) != []
    assert known(samples.hour("group-0", NOW_MS + 60_000 * 2_999)) == []


@given(st.lists(st.tuples(st.integers(0, 20_000), st.floats(0, 1e6, width=32)), min_size=1, max_size=60))
def test_the_newest_sample_ends_the_line(steps: list[tuple[int, float]]) -> None:
    samples, at_ms = Samples(), NOW_MS
    for step_ms, value in steps:
        at_ms += step_ms
        samples.add(at_ms, {"x": value})
    assert known(samples.hour("x", at_ms))[-1] == steps[-1][1]
