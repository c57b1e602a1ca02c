"""What one message reports as spent: tokens, cost, and for which model. Pure.

Owns reading these from the facts of a row. They are claims of agents, so every number is bounded.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from consumers.operations.audit.rows import AuditContent

__all__ = ["Spent", "facts_in", "may_report", "spent_in", "tells_of_spending"]

_MAX_TOKENS: Final = 1_000_000_000
"""Of one message: sums of it stay far below what a database can hold."""
_MAX_COST: Final = 1_000_000.0
_MAX_MODEL: Final = 100
_COUNTS: Final = ("input_tokens", "output_tokens", "tokens", "total_tokens")
_COSTS: Final = ("cost_usd", "cost")
_NAMES: Final = frozenset((*_COUNTS, *_COSTS))
_REPORTS: Final = frozenset({"inform", "confirm", "error"})
"""Performatives of messages that tell of what has happened: in a request or an offer, a cost is not spent yet."""


class Spent(msgspec.Struct, frozen=True, kw_only=True):
    """What one message reports; *cost* is as it was reported, whatever the currency."""

    tokens_in: int = 0
    """Input tokens; of a message that reports only a total, that total."""
    tokens_out: int = 0
    cost: float = 0.0
    model: str = ""
    """Empty: the message does not say, or was recorded by an older version."""
    is_reported: bool = False
    """Whether it reports anything."""


_NOTHING: Final = Spent()


def facts_in(content: AuditContent) -> Mapping[str, Any]:
    """Return the facts of *content*; {} where they cannot be read."""
    try:
        facts = msgspec.json.decode(content.facts)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return {}
    return facts if isinstance(facts, dict) else {}


def spent_in(facts: Mapping[str, Any]) -> Spent:
    """Return what *facts* report as spent."""
    if _NAMES.isdisjoint(facts) or not tells_of_spending(facts.get("performative")):
        return _NOTHING
    given, out, *totals = (_count(facts.get(name)) for name in _COUNTS)
    costs = (_amount(facts.get(name)) for name in _COSTS)
    cost = next((each for each in costs if each is not None), None)
    if given is None and out is None:
        given = next((each for each in totals if each is not None), None)
    model = facts.get("model")
    return Spent(
        tokens_in=given or 0,
        tokens_out=out or 0,
        cost=cost or 0.0,
        model=model[:_MAX_MODEL] if isinstance(model, str) else "",
        is_reported=given is not None or out is not None or cost is not None,
    )


def tells_of_spending(performative: object) -> bool:
    """Return whether messages of *performative* (None: not known) tell of what was spent."""
    return performative is None or (isinstance(performative, str) and performative in _REPORTS)


def may_report(content: AuditContent) -> bool:
    """Return whether the facts may report anything as spent: most do not, and need not be decoded for it."""
    return "tokens" in content.facts or '"cost' in content.facts


def _count(value: Any) -> int | None:
    number = _number(value)
    return None if number is None else int(min(number, _MAX_TOKENS))


def _amount(value: Any) -> float | None:
    """Return an amount: a number, or an amount of a currency (`bus.vocabulary.parts.Money`)."""
    if isinstance(value, Mapping):
        text = value.get("amount")
        try:
            value = float(text) if isinstance(text, str) else text
        except ValueError:
            return None
    number = _number(value)
    return None if number is None else float(min(number, _MAX_COST))


def _number(value: Any) -> int | float | None:
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    # An integer of any length is finite, and too long for `isfinite`.
    is_finite = isinstance(value, int) or math.isfinite(value)
    return value if is_finite and value >= 0 else None
