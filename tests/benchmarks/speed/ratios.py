"""Medians, quantiles, and ratios of what was measured in the same round. Pure.

Owns the arithmetic. A ratio is taken within each round before anything is summarised: the machine drifts between
rounds.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence

import msgspec

__all__ = ["Spread", "quantile", "per_round", "spread"]


class Spread(msgspec.Struct, frozen=True):
    """A median with the least and the most, over *rounds* rounds."""

    median: float
    least: float
    most: float
    rounds: int


def spread(values: Sequence[float]) -> Spread | None:
    """What *values* come to; None where there are none."""
    if not values:
        return None
    return Spread(statistics.median(values), min(values), max(values), len(values))


def per_round(
    ours: Mapping[int, float], theirs: Mapping[int, float], combine: Callable[[float, float], float]
) -> list[float]:
    """*combine* of both for every round that has both; by default nothing else makes a pair."""
    return [combine(ours[number], theirs[number]) for number in sorted(ours.keys() & theirs.keys())]


def quantile(values: Sequence[float], share: float) -> float:
    """The value below which *share* of *values* lie."""
    if not values:
        raise ValueError("no values")
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]
