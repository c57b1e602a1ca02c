"""In which order variants take turns, and how long each warms up. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from speed.catalog import Variant

__all__ = ["rotated", "warm_up_of"]


def rotated(items: Sequence[Variant], number: int) -> list[Variant]:
    """*items* in the order of round *number*: each goes first in turn."""
    at = number % len(items) if items else 0
    return [*items[at:], *items[:at]]


def warm_up_of(variant: Variant, messages: int) -> int:
    """How many messages come before *messages* that count."""
    return max(1, messages // variant.warm_up_part)
