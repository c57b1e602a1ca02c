"""The figures of the overview speak of what was read."""

from __future__ import annotations

from consumers.operations.console.pages.overview import letters_figure
from consumers.operations.survey.letter_watch import OpenLetters


def letters(count: int, *, is_whole: bool = True) -> OpenLetters:
    return OpenLetters(count=count, oldest_ms=None, causes=(), by_type=(), is_whole=is_whole)


def test_a_number_that_is_still_counted_is_shown_as_one() -> None:
    figure = letters_figure(letters(1_200, is_whole=False), 200.0, [])
    assert (figure.value, figure.note) == ("1,200", "so far, more are being read")


def test_the_change_of_ten_minutes_is_told_where_it_is_known() -> None:
    assert letters_figure(letters(12), None, []).note == ""
    assert letters_figure(letters(12), 12.0, []).note == "no change in 10 min"
    assert letters_figure(letters(1_212), 12.0, []).note == "+1,200 in 10 min"
