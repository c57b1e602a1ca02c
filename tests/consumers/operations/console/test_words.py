"""Words of the pages."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from consumers.operations.console.words import age, duration, exact, initials, money, short, short_count


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (0.0004, "<1 ms"),
        (0.012, "12 ms"),
        (0.6, "0.6 s"),
        (2.1, "2.1 s"),
        (59, "59 s"),
        (500, "8 min 20 s"),
        (8_000, "2 h 13 min"),
        (90_000, "1 d 1 h"),
        (float("inf"), "very long"),
    ],
)
def test_a_duration_has_two_units_at_most(seconds: float, text: str) -> None:
    assert duration(seconds) == text


@given(st.floats(0, 1e9))
def test_every_duration_is_short(seconds: float) -> None:
    assert len(duration(seconds)) <= 14


@pytest.mark.parametrize(
    ("before_s", "text"), [(0, "now"), (3, "3 s ago"), (65, "1 min ago"), (-125, "in 2 min"), (172_800, "2 d ago")]
)
def test_an_age_is_of_the_past_or_of_the_future(before_s: int, text: str) -> None:
    assert age(1_000_000_000 - 1_000 * before_s, 1_000_000_000) == text


def test_ids_are_shortened_to_the_end_that_tells_neighbours_apart() -> None:
    assert short("01a21550-67c0-77c7-8f7f-62ed08a17b58") == "…08a17b58"
    assert short("4b6db4a2") == "4b6db4a2"


@pytest.mark.parametrize(
    ("number", "text"), [(0, "0"), (24.63, "24.6"), (1_204, "1,204"), (48_200, "48.2k"), (4_100_000, "4.1M")]
)
def test_numbers_are_short(number: float, text: str) -> None:
    assert short_count(number) == text


def test_small_amounts_keep_a_digit_more() -> None:
    assert [money(each) for each in (0, 0.034, 18.42, 4_310)] == ["0.00", "0.034", "18.42", "4,310.00"]


def test_a_moment_is_exact_to_the_millisecond() -> None:
    assert exact(1_795_772_479_265) == "2026-11-27 09:41:19.265 UTC"


@given(st.text(max_size=20))
def test_initials_are_of_any_name(name: str) -> None:
    assert 1 <= len(initials(name)) <= 2
