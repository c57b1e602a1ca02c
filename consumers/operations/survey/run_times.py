"""RunTimes: how long the handlers of an agent take, from the counts of its heartbeats. Pure."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Final

import msgspec

from bus.vocabulary.agent import RecentRuns

__all__ = ["RunTimes", "run_times_of"]

_MAX_COUNTS: Final = 32
_LONGEST_S: Final = 86_400.0
_MOST: Final = 1e9


class RunTimes(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The handler runs that ended in the last minute or so, in all instances of an agent."""

    a_minute: float
    """How many end in a minute."""
    retried_a_minute: float
    """How many attempts of a minute are tried again."""
    half_s: float | None = None
    """Half of them took no longer; inf: longer than was counted; None: none has ended."""
    most_s: float | None = None
    """19 of 20 took no longer."""


def run_times_of(parts: Sequence[RecentRuns]) -> RunTimes | None:
    """Return what *parts*, one of each instance, come to; None where no instance says."""
    # What an agent says may be anything: less than a second has no rate of a minute, and nobody counts up to a year.
    known = [part for part in parts if part.within_s >= 1]
    if not known:
        return None
    counts = Counter[float]()
    for part in known:
        for each in part.took[:_MAX_COUNTS]:
            counts[math.inf if each.up_to_s is None or each.up_to_s > _LONGEST_S else each.up_to_s] += each.runs
    # A count of no runs is where the next one begins.
    ended = sorted(counts.items())
    return RunTimes(
        a_minute=min(
            _MOST, sum(60 * sum(each.runs for each in part.took[:_MAX_COUNTS]) / part.within_s for part in known)
        ),
        retried_a_minute=min(_MOST, sum(60 * part.retried / part.within_s for part in known)),
        half_s=_within_s(ended, 0.5),
        most_s=_within_s(ended, 0.95),
    )


def _within_s(ended: Sequence[tuple[float, int]], share: float) -> float | None:
    """Return the time that *share* of the runs took at most: between two counts, they are taken as evenly spread."""
    wanted, passed, longer_than_s = share * sum(count for _, count in ended), 0, 0.0
    for up_to_s, count in ended:
        if count and passed + count >= wanted:
            part = (wanted - passed) / count
            return up_to_s if math.isinf(up_to_s) else longer_than_s + (up_to_s - longer_than_s) * part
        passed, longer_than_s = passed + count, up_to_s
    return None
