"""Costs: what agents say they have spent, by agent, model, conversation or person, and by day."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final
from urllib.parse import quote

import msgspec
from litestar import Response, get

from bus.protocol.timestamps import format_ms
from consumers.operations.audit.costs import CostDimension, CostSum, CostSums
from consumers.operations.console.model import Console, NotRead
from consumers.operations.console.pages.frame import PageRequest, console_of, page_of, parameter
from consumers.operations.console.words import money, short, short_count

__all__ = ["COSTS_ROUTES", "CostFigure", "DaySpending", "cost_figures", "pace_of", "spent_today"]

_DAYS: Final = 14
_WEEK: Final = 7
_LARGEST: Final = 4
"""As many colours there are beside that of all others."""
_LEAST: Final = 0.001
_DAY_MS: Final = 86_400_000
_HOUR_MS: Final = 3_600_000
_COLUMNS: Final[dict[str, CostDimension]] = {
    "agent": "agent",
    "model": "model",
    "conversation": "conversation",
    "person": "person",
}


class DaySpending(msgspec.Struct, frozen=True, kw_only=True):
    """What was spent since midnight UTC."""

    cost: float
    tokens: int
    budget: float
    """Of the setting audit.daily_budget; 0: there is none."""


class CostFigure(msgspec.Struct, frozen=True, kw_only=True):
    """One sum above the table; its note may have untrusted text."""

    label: str
    value: str
    note: str
    link: str = ""


class SpenderRow(msgspec.Struct, frozen=True, kw_only=True):
    """What one agent, model, conversation or person has spent; its name is untrusted."""

    name: str
    cost: float
    tokens: int
    calls: int
    share: float
    """Of the cost of seven days, in percent; of the tokens where no cost is reported."""
    week_cost: float
    week_tokens: int


async def spent_today(console: Console) -> DaySpending | None:
    """Return what was spent since midnight UTC; None where no audit knows it, or it cannot be read."""
    now_ms = console.clock.now_ms()
    sums = await console.of_audit(lambda store: store.costs("day", days=1, now_ms=now_ms))
    if sums is None or isinstance(sums, NotRead):
        return None
    return DaySpending(cost=sums.total.cost, tokens=_tokens(sums.total), budget=console.settings.audit.daily_budget)


def pace_of(today: float, now_ms: int) -> float | None:
    """Return what *today* comes to by midnight UTC; None in the first hour, which tells nothing. Pure."""
    passed_ms = now_ms % _DAY_MS
    return today * _DAY_MS / passed_ms if passed_ms >= _HOUR_MS else None


def _change_words(now: float, then: float) -> str:
    """Return how a week's sum *now* differs from that of the week before."""
    if not then:
        return "nothing in the week before"
    percent = round(100 * (now - then) / then)
    if not percent:
        return "as in the week before"
    return f"{abs(percent):,} % {'more' if percent > 0 else 'less'} than the week before"


def cost_figures(today: CostSums, week: CostSums, before: CostSum, *, uses_cost: bool) -> list[CostFigure]:
    """Return the sums of *today* and of a *week*, both by conversation; *before* is the week before that one. Pure."""

    def of(found: CostSum) -> float:
        return found.cost if uses_cost else float(_tokens(found))

    def shown(value: float) -> str:
        return money(value) if uses_cost else short_count(value)

    now = of(week.total)
    figures = [CostFigure(label="7 days", value=shown(now), note=_change_words(now, of(before)))]
    if tokens := _tokens(today.total):
        read = round(100 * today.total.tokens_in / tokens)
        figures.append(
            CostFigure(label="Tokens today", value=short_count(tokens), note=f"{read} % read, {100 - read} % written")
        )
    if count := len(week.rows) + week.rest_count:
        # The rows are the largest. Where others are left out, the one in the middle is among those.
        middle = None if week.rest_count else sorted(of(each) for each in week.rows)[count // 2]
        figures.append(
            CostFigure(
                label="A conversation",
                value=shown(now / count),
                note="on average in 7 days" if middle is None else f"half of them at most {shown(middle)}",
            )
        )
    if today.rows and of(today.rows[0]):
        dearest = today.rows[0]
        link = f"/conversations?id={quote(dearest.name, safe='')}" if dearest.name else ""
        note = short(dearest.name) if dearest.name else "in no conversation"
        figures.append(CostFigure(label="The dearest today", value=shown(of(dearest)), note=note, link=link))
    return figures


def _tokens(found: CostSum) -> int:
    return found.tokens_in + found.tokens_out


def _values(sums: Iterable[CostSum], days: Sequence[str], *, uses_cost: bool) -> list[float]:
    """Return what *sums*, each of a day, are on *days*."""
    found = {each.name: each.cost if uses_cost else float(_tokens(each)) for each in sums}
    return [found.get(day, 0.0) for day in days]


@get("/costs")
async def costs(request: PageRequest) -> Response[str]:
    """Show tokens and costs, as agents have reported them."""
    console, by = console_of(request), _COLUMNS.get(parameter(request, "by", "agent"), "agent")
    now_ms = console.clock.now_ms()
    async with console.audit() as store:
        if store is None:
            return page_of(request, "costs.html", has_audit=False)
        today, week = [await store.costs(by, days=days, now_ms=now_ms) for days in (1, _WEEK)]
        days = await store.costs("day", days=_DAYS, now_ms=now_ms)
        largest = [row.name for row in (await store.costs(by, days=_DAYS, now_ms=now_ms)).rows[:_LARGEST]]
        parts = await store.costs_each_day(by, largest, days=_DAYS, now_ms=now_ms)
        talks_today, talks = [await store.costs("conversation", days=days, now_ms=now_ms) for days in (1, _WEEK)]
        before = (await store.costs("day", days=_WEEK, now_ms=now_ms - _WEEK * _DAY_MS)).total
    of_today = {row.name: row for row in today.rows}
    uses_cost = week.total.cost > 0
    total = (week.total.cost if uses_cost else float(_tokens(week.total))) or 1.0
    rows = [
        SpenderRow(
            name=row.name,
            cost=(now := of_today.get(row.name, CostSum(name=row.name))).cost,
            tokens=_tokens(now),
            calls=now.calls,
            share=100 * (row.cost if uses_cost else _tokens(row)) / total,
            week_cost=row.cost,
            week_tokens=_tokens(row),
        )
        for row in week.rows
    ]
    note = "" if week.is_whole else f"The audit has looked at {week.indexed_rows:,} of {week.recorded_rows:,} records."
    names = [format_ms(now_ms - back * _DAY_MS)[:10] for back in range(_DAYS - 1, -1, -1)]
    values = _values(days.rows, names, uses_cost=uses_cost)
    series = [_values(parts.get(each, ()), names, uses_cost=uses_cost) for each in largest]
    others = [max(0.0, whole - sum(known)) for whole, *known in zip(values, *series, strict=True)]
    budget = console.settings.audit.daily_budget if uses_cost else 0.0
    return page_of(
        request,
        "costs.html",
        has_audit=True,
        today=today.total.cost,
        tokens=_tokens(today.total),
        rows=rows,
        rest=week.rest,
        rest_count=week.rest_count,
        uses_cost=uses_cost,
        values=values,
        bars=list(zip(*series, others, strict=True)),
        largest=largest,
        others=max(others) > _LEAST * max(values),
        top=max([*values, budget, 1.0 if not uses_cost else 0.01]),
        budget=budget,
        pace=pace_of(today.total.cost, now_ms) if uses_cost else None,
        figures=cost_figures(talks_today, talks, before, uses_cost=uses_cost) if week.rows else [],
        day_names=[name[-2:] for name in names],
        by=by,
        columns=list(_COLUMNS),
        note=note,
    )


COSTS_ROUTES = (costs,)
