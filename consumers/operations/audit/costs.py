"""Daily sums of costs: the cell of one record, and the sums that are shown. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Final, Literal, TypeAlias, get_args

import msgspec

from consumers.operations.audit.rows import AuditContent, AuditRow
from consumers.operations.audit.spending import facts_in, may_report, spent_in
from consumers.operations.lineage.log_search import ORIGINALS

__all__ = [
    "COST_DIMENSIONS",
    "CellKey",
    "CostCell",
    "CostDimension",
    "CostSum",
    "CostSums",
    "cells_of",
    "day_text",
    "sums_of",
]

CostDimension: TypeAlias = Literal["agent", "model", "conversation", "person", "day"]
COST_DIMENSIONS: Final = get_args(CostDimension)

_DAY_MS: Final = 86_400_000
_MAX_NAME: Final = 256
_MAX_DAY: Final = 2_900_000
"""Later days have no date."""

CellKey: TypeAlias = tuple[str, int, str, str, str]
"""Namespace, day, agent, model, conversation."""


class CostSum(msgspec.Struct, frozen=True, kw_only=True):
    """What was spent under one name, as the agents have reported it."""

    name: str
    """An agent, a model, a conversation's id, the opener of conversations, or a day (`2026-01-31`, UTC). Empty: not
    said, or erased. Untrusted text."""
    tokens_in: int = 0
    tokens_out: int = 0
    cost: float = 0.0
    """Whatever the currency."""
    calls: int = 0
    """Messages that reported something."""


class CostSums(msgspec.Struct, frozen=True, kw_only=True):
    """What was spent on some days, by one dimension."""

    by: CostDimension
    since_day: str
    """The first day, `2026-01-31`, UTC."""
    until_day: str
    """The last day."""
    rows: tuple[CostSum, ...]
    """The largest, at most 100: by cost, then by tokens. By day: in the order of days."""
    rest: CostSum | None
    """All others as one; None: there are none."""
    rest_count: int
    """How many these are."""
    total: CostSum
    indexed_rows: int
    """Rows of the audit that the sums contain. Fewer than *recorded_rows*: older records are not looked at yet."""
    recorded_rows: int

    @property
    def is_whole(self) -> bool:
        """Whether every row of the audit was looked at."""
        return self.indexed_rows >= self.recorded_rows


class CostCell(msgspec.Struct, frozen=True):
    """What was spent on one day by one agent with one model in one conversation."""

    tokens_in: int = 0
    tokens_out: int = 0
    cost: float = 0.0
    calls: int = 0


def cells_of(rows: Iterable[tuple[str, AuditRow, AuditContent | None]]) -> dict[CellKey, CostCell]:
    """Return by key what *rows*, each with its namespace, report as spent. Refused records and copies do not count."""
    cells: dict[CellKey, CostCell] = {}
    for namespace, row, content in rows:
        if content is None or row.kind not in ORIGINALS or row.verdict != "holds" or not may_report(content):
            continue
        spent = spent_in(facts_in(content))
        if not spent.is_reported:
            continue
        day = max(0, min(row.appended_ms // _DAY_MS, _MAX_DAY))
        key = (namespace, day, content.sender[:_MAX_NAME], spent.model, content.conversation_id[:_MAX_NAME])
        known = cells.get(key, CostCell())
        cells[key] = CostCell(
            known.tokens_in + spent.tokens_in,
            known.tokens_out + spent.tokens_out,
            known.cost + spent.cost,
            known.calls + 1,
        )
    return cells


def sums_of(
    by: CostDimension,
    rows: Sequence[CostSum],
    total: CostSum,
    *,
    names: int,
    first: int,
    last: int,
    indexed: int,
    recorded: int,
) -> CostSums:
    """Return the sums of days *first* to *last*: *rows* are the largest of *names* in *total*."""
    left = names - len(rows)
    rest = CostSum(
        name="",
        tokens_in=total.tokens_in - sum(each.tokens_in for each in rows),
        tokens_out=total.tokens_out - sum(each.tokens_out for each in rows),
        cost=max(0.0, total.cost - sum(each.cost for each in rows)),
        calls=total.calls - sum(each.calls for each in rows),
    )
    return CostSums(
        by=by,
        since_day=day_text(first),
        until_day=day_text(last),
        rows=tuple(sorted(rows, key=lambda each: each.name) if by == "day" else rows),
        rest=rest if left > 0 else None,
        rest_count=max(0, left),
        total=total,
        indexed_rows=indexed,
        recorded_rows=recorded,
    )


def day_text(day: int) -> str:
    """Return the date of *day*, counted from 1970-01-01 UTC."""
    return (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(days=max(0, min(day, _MAX_DAY)))).date().isoformat()
