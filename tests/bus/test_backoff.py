"""A backoff doubles its waits up to the longest."""

from __future__ import annotations

from itertools import islice

from hypothesis import given
from hypothesis import strategies as st

from bus.backoff import Backoff

bases_s = st.floats(1e-3, 60)
caps_s = st.floats(60, 3600)
tries = st.integers(1, 10_000)


@given(bases_s, caps_s)
def test_the_first_wait_is_the_base(base_s: float, cap_s: float) -> None:
    assert Backoff(base_s, cap_s).delay_s(1) == base_s


@given(bases_s, caps_s, tries)
def test_each_wait_is_twice_the_last_or_the_longest(base_s: float, cap_s: float, tries: int) -> None:
    backoff = Backoff(base_s, cap_s)
    assert backoff.delay_s(tries + 1) == min(2 * backoff.delay_s(tries), cap_s)


@given(bases_s, st.floats(0, 3600), tries)
def test_no_wait_is_longer_than_the_longest(base_s: float, cap_s: float, tries: int) -> None:
    assert Backoff(base_s, cap_s).delay_s(tries) <= cap_s


@given(bases_s, caps_s, st.integers(0, 200))
def test_the_waits_in_a_row_are_those_of_one_try_after_another(base_s: float, cap_s: float, count: int) -> None:
    backoff = Backoff(base_s, cap_s)
    assert list(islice(backoff.delays_s(), count)) == [backoff.delay_s(number) for number in range(1, count + 1)]
