"""Durations are read as people write them."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bus.settings import durations


@pytest.mark.parametrize(
    ("written", "seconds"),
    [(10, 10.0), (0.25, 0.25), (0, 0.0), ("10s", 10.0), ("20", 20.0), ("0.5s", 0.5), ("5m", 300.0),
     ("1h", 3600.0), ("7d", 604_800.0), ("250ms", 0.25), (" 10s ", 10.0), ("PT10S", 10.0), ("PT0.5S", 0.5),
     ("PT1H30M", 5400.0), ("P7D", 604_800.0), ("P1DT12H", 129_600.0), ("pt10s", 10.0)],
)  # fmt: skip
def test_durations_are_parsed(written: object, seconds: float) -> None:
    assert durations.seconds(written) == seconds


@pytest.mark.parametrize(
    "written",
    ["", "s", "10 s", "10x", "-5s", "+5s", "1e3", "5m30s", ".5s", "5.s", "P", "PT", "P1DT", "P1M", "P1Y", "P1W",
     "PT-1S", "inf", "nan", "٣s", "10s\n5s", -1, -0.1, math.nan, math.inf, True, None, [], 10**400, "9" * 400],
)  # fmt: skip
def test_anything_else_is_refused(written: object) -> None:
    with pytest.raises(ValueError, match=r"seconds"):
        durations.seconds(written)


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0s"), (0.25, "250ms"), (90, "90s"), (300, "5m"), (86_400, "1d"), (1.5, "1500ms")]
)
def test_the_shortest_text(seconds: float, text: str) -> None:
    assert durations.duration_words(seconds) == text


def test_fractions_of_a_millisecond_have_no_text() -> None:
    with pytest.raises(ValueError, match="whole number of milliseconds"):
        durations.duration_words(0.0001)


@given(st.integers(0, 10**12))
def test_a_text_is_read_back_as_the_same_duration(milliseconds: int) -> None:
    assert durations.seconds(durations.duration_words(milliseconds / 1000)) == milliseconds / 1000
