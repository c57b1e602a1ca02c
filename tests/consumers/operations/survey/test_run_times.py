"""How long the handlers of an agent take, from what its instances count."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from bus.vocabulary.agent import RecentRuns, RunCount
from consumers.operations.survey.run_times import RunTimes, run_times_of

counts = st.lists(
    st.builds(
        RunCount,
        up_to_s=st.none() | st.floats(min_value=0, allow_infinity=False, allow_nan=False),
        runs=st.integers(0, 2**53 - 1),
    ),
    max_size=40,
).map(tuple)
recent = st.builds(
    RecentRuns,
    within_s=st.floats(min_value=0, allow_infinity=False, allow_nan=False),
    retried=st.integers(0, 2**53 - 1),
    took=counts,
)


def took(within_s: float = 60, retried: int = 0, **runs: int) -> RecentRuns:
    """Runs by milliseconds; `more` is longer than all."""
    found = [
        RunCount(up_to_s=None if name == "more" else int(name[1:]) / 1000, runs=number) for name, number in runs.items()
    ]
    return RecentRuns(within_s=within_s, retried=retried, took=tuple(found))


def test_half_of_the_runs_and_nearly_all_are_told_by_their_times() -> None:
    times = run_times_of([took(_100=50, _1000=40, _10000=10)])
    assert times == RunTimes(a_minute=100, retried_a_minute=0, half_s=0.1, most_s=5.5)


def test_instances_add_up_each_by_its_own_time() -> None:
    times = run_times_of([took(30, 1, _100=10), took(60, _100=10)])
    assert times == RunTimes(a_minute=30, retried_a_minute=2, half_s=0.05, most_s=0.095)


def test_runs_are_spread_from_the_time_that_all_of_them_took_longer_than() -> None:
    times = run_times_of([took(_2500=0, _5000=20)])
    assert times == RunTimes(a_minute=20, retried_a_minute=0, half_s=3.75, most_s=4.875)


def test_what_took_longer_than_was_counted_is_longer_than_any_time() -> None:
    times = run_times_of([took(_100=1, more=9)])
    assert times is not None
    assert (times.half_s, times.most_s) == (math.inf, math.inf)


def test_nothing_that_ended_has_no_time_and_nobody_who_says_is_not_known() -> None:
    assert run_times_of([took()]) == RunTimes(a_minute=0, retried_a_minute=0)
    assert run_times_of([]) is None
    assert run_times_of([RecentRuns(within_s=0)]) is None


@given(st.lists(recent, max_size=4))
def test_whatever_agents_say_the_times_are_in_order_and_can_be_shown(parts: list[RecentRuns]) -> None:
    times = run_times_of(parts)
    if times is None:
        return
    assert 0 <= times.a_minute <= 1e9
    assert 0 <= times.retried_a_minute <= 1e9
    assert (times.half_s is None) == (times.most_s is None)
    if times.half_s is not None and times.most_s is not None:
        assert 0 <= times.half_s <= times.most_s
        assert math.isinf(times.most_s) or times.most_s <= 86_400
