"""What a sweep may delete."""

import pytest

from bus.transports.sqlite.retention import expendable

ROWS = [(0, 100, 10), (1, 200, 0), (2, 300, 10)]


@pytest.mark.parametrize(
    ("oldest_ms", "excess", "count"),
    [
        (None, 0, 0),
        (None, -5, 0),
        (None, 9, 0),
        (None, 10, 1),
        (None, 20, 3),
        (150, 0, 1),
        (250, 0, 2),
        (1000, 0, 3),
        (150, 15, 2),
        (50, 0, 0),
    ],
)
def test_records_go_from_the_oldest_on_while_too_old_or_too_many(oldest_ms, excess, count):
    assert expendable(ROWS, oldest_ms, excess) == ROWS[:count]


def test_empty_records_stay_without_a_limit():
    assert expendable([(0, 100, 0), (1, 100, 0)], None, 0) == []


def test_no_more_than_one_record_that_stays_is_looked_at():
    rows = iter(ROWS)
    expendable(rows, 150, 0)
    assert list(rows) == ROWS[2:]
