"""The sums above the table of costs, and what they are beside the budget."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from consumers.operations.audit.costs import CostSum, CostSums
from consumers.operations.console.pages.costs import cost_figures, pace_of

HOUR_MS = 3_600_000
MIDNIGHT_MS = 20_000 * 24 * HOUR_MS


def spent(name: str, cost: float, tokens: int = 100) -> CostSum:
    return CostSum(name=name, cost=cost, tokens_in=tokens * 9 // 10, tokens_out=tokens // 10, calls=1)


def sums(*rows: CostSum, others: int = 0) -> CostSums:
    total = CostSum(
        name="",
        cost=sum(each.cost for each in rows),
        tokens_in=sum(each.tokens_in for each in rows),
        tokens_out=sum(each.tokens_out for each in rows),
    )
    return CostSums(
        by="conversation",
        since_day="2026-01-01",
        until_day="2026-01-07",
        rows=rows,
        rest=CostSum(name="") if others else None,
        rest_count=others,
        total=total,
        indexed_rows=1,
        recorded_rows=1,
    )


def test_the_pace_of_a_day_is_known_after_its_first_hour() -> None:
    assert pace_of(3.0, MIDNIGHT_MS + HOUR_MS - 1) is None
    assert pace_of(3.0, MIDNIGHT_MS + 6 * HOUR_MS) == 12.0


@given(st.floats(0, 1e9), st.integers(HOUR_MS, 24 * HOUR_MS - 1))
def test_the_pace_is_never_below_what_was_spent(today: float, passed_ms: int) -> None:
    pace = pace_of(today, MIDNIGHT_MS + passed_ms)
    assert pace is not None
    assert pace >= today


def test_a_week_is_compared_with_the_one_before() -> None:
    week = sums(spent("a", 3.0), spent("b", 1.0))
    told = {before: cost_figures(week, week, spent("", before), uses_cost=True)[0] for before in (0.0, 4.0, 2.0, 8.0)}
    assert {each.value for each in told.values()} == {"4.00"}
    assert told[0.0].note == "nothing in the week before"
    assert told[4.0].note == "as in the week before"
    assert told[2.0].note == "100 % more than the week before"
    assert told[8.0].note == "50 % less than the week before"


def test_the_middle_conversation_is_told_only_where_all_are_known() -> None:
    rows = [spent("a", 9.0), spent("b", 2.0), spent("c", 1.0)]
    by_label = {each.label: each for each in cost_figures(sums(*rows), sums(*rows), spent("", 1), uses_cost=True)}
    assert (by_label["A conversation"].value, by_label["A conversation"].note) == ("4.00", "half of them at most 2.00")
    assert by_label["Tokens today"].note == "90 % read, 10 % written"
    assert (by_label["The dearest today"].value, by_label["The dearest today"].link) == ("9.00", "/conversations?id=a")
    many = sums(*rows, others=5)
    cut = {each.label: each for each in cost_figures(sums(*rows), many, spent("", 1), uses_cost=True)}
    assert (cut["A conversation"].value, cut["A conversation"].note) == ("1.50", "on average in 7 days")


@pytest.mark.parametrize("name", ['"><script>', "x" * 256, ""])
def test_a_conversation_is_a_link_whatever_its_id(name: str) -> None:
    rows = sums(spent(name, 1.0))
    dearest = cost_figures(rows, rows, spent("", 1), uses_cost=True)[-1]
    assert not set('"<> ') & set(dearest.link)
    assert len(dearest.note) < 40


def test_where_no_cost_is_reported_tokens_count() -> None:
    rows = sums(spent("a", 0.0, 1_000), spent("b", 0.0, 500))
    figures = cost_figures(rows, rows, spent("", 0.0, 3_000), uses_cost=False)
    assert (figures[0].value, figures[0].note) == ("1,500", "50 % less than the week before")
