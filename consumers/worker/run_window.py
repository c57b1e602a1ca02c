"""RunWindow: the handler runs of a group that ended within the last minute, as the process's own metrics count them."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Final

import msgspec

from bus.telemetry.metrics import Metrics
from bus.vocabulary.agent import RecentRuns, RunCount

__all__ = ["RunWindow"]

_WINDOW_S: Final = 60.0
_STEP_S: Final = 5.0


class _Look(msgspec.Struct, frozen=True):
    at_s: float
    counts: Sequence[float]
    """By bucket of `handler_seconds`, since the process began."""
    retries: int


class RunWindow:
    """Compares the metrics of *group* with what they were a minute ago; nothing is done for each message."""

    def __init__(self, metrics: Metrics, group: str) -> None:
        self._metrics = metrics
        self._group = group
        self._looks = deque[_Look]()
        """Every five seconds one, of a minute."""
        self._found: RecentRuns | None = None

    def look(self, now_s: float) -> RecentRuns | None:
        """Return the runs that ended lately, at *now_s* of the monotonic clock; None where nothing is to compare.

        They are counted every five seconds; in between it is asked each second.
        """
        if not self._looks or now_s - self._looks[-1].at_s >= _STEP_S:
            self._found = self._counted(now_s)
        return self._found

    def _counted(self, now_s: float) -> RecentRuns | None:
        meters = self._metrics.meters(self._group).values()
        timings = [meter.handler_seconds for meter in meters]
        counts = [sum(each) for each in zip(*[timing.counts for timing in timings], strict=True)]
        look = _Look(now_s, counts, sum(meter.retries for meter in meters))
        while len(self._looks) > 1 and self._looks[1].at_s <= now_s - _WINDOW_S:
            self._looks.popleft()
        self._looks.append(look)
        before = self._looks[0]
        if before.at_s == now_s or not timings:
            return None
        ended = [round(now - then) for now, then in zip(counts, before.counts or [0] * len(counts), strict=True)]
        return RecentRuns(
            within_s=round(now_s - before.at_s, 3),
            retried=look.retries - before.retries,
            took=tuple(
                RunCount(up_to_s=up_to_s, runs=count)
                for up_to_s, count, next_count in zip((*timings[0].bounds, None), ended, (*ended[1:], 0), strict=True)
                # The one before a count too, without runs: it is where that one begins.
                if count or next_count
            ),
        )
