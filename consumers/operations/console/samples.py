"""Samples: the figures of the last hour, in memory.

Each look at the namespace adds one sample of each figure. They begin empty with the process, and pages tell so:
Prometheus is the long memory.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Mapping
from typing import Final

__all__ = ["Samples"]

_HOUR_S: Final = 3_600.0
_STEP_S: Final = 3.0
_LEAST_SHOWN_S: Final = 300.0
_MAX_SERIES: Final = 2_000
_LEAST_USUAL_S: Final = 300.0
_UNUSUAL: Final = 3.0


class Samples:
    """Series of numbers by name, all of one time axis."""

    def __init__(self) -> None:
        self.begun_ms: float | None = None
        """When the first sample was added."""
        self._ring = _Ring(_STEP_S, _HOUR_S)

    def add(self, now_ms: float, figures: Mapping[str, float]) -> None:
        """Add one sample of each of *figures*, at most 2,000; a name that is missing is a gap."""
        if self.begun_ms is None:
            self.begun_ms = now_ms
        self._ring.add(now_ms, figures)

    def shown_s(self, now_ms: float) -> float:
        """Return how many seconds a line shows: since the begin, 5 minutes at least, an hour at most."""
        known_s = 0.0 if self.begun_ms is None else (now_ms - self.begun_ms) / 1000
        return min(_HOUR_S, max(_LEAST_SHOWN_S, known_s))

    def hour(self, name: str, now_ms: float) -> list[float]:
        """Return the values of *name* in the last `shown_s` seconds, oldest first, evenly spaced; NaN is a gap."""
        return self._ring.values(name, now_ms, self.shown_s(now_ms))

    def ago(self, name: str, now_ms: float, seconds: float) -> float | None:
        """Return the value of *name* so many seconds ago; None where it is not known."""
        values = self._ring.values(name, now_ms, seconds)
        known = [value for value in values if not math.isnan(value)]
        return known[0] if known else None

    def unusual_since_ms(self, name: str, now_ms: float, least: float) -> float | None:
        """Return since when *name* has been three times its median of the hour, and *least*; None where it is not.

        Five minutes of samples say what is usual.
        """
        values = sorted(value for value in self._ring.values(name, now_ms, _HOUR_S) if not math.isnan(value))
        if len(values) * self._ring.step_s < _LEAST_USUAL_S:
            return None
        above = max(least, _UNUSUAL * values[len(values) // 2])
        return self.since_ms(name, now_ms, above=above) if values[-1] > above else None

    def since_ms(self, name: str, now_ms: float, above: float) -> float | None:
        """Return since when *name* has been above *above* without a break; None where it is not above it now."""
        found, step = None, self._ring.step_s
        values = self._ring.values(name, now_ms, _HOUR_S)
        for back, value in enumerate(reversed(values)):
            if math.isnan(value):
                continue
            if value <= above:
                break
            found = now_ms - back * step * 1000
        return found


class _Ring:
    """Values of the last *kept_s* seconds, one for each *step_s*."""

    def __init__(self, step_s: float, kept_s: float) -> None:
        self.step_s = step_s
        self._size = int(kept_s / step_s)
        self._series: dict[str, array[float]] = {}
        self._seen: dict[str, int] = {}
        """By name, the last slot with a value."""
        self._slot = -1
        """The number of the newest slot since the epoch."""

    def add(self, now_ms: float, figures: Mapping[str, float]) -> None:
        slot = int(now_ms / 1000 / self.step_s)
        # A clock that was set back writes into the newest slot.
        slot = max(slot, self._slot)
        self._skip_to(slot)
        for name, value in figures.items():
            series = self._series.get(name)
            if series is None:
                if len(self._series) >= _MAX_SERIES:
                    continue
                series = self._series[name] = array("f", [math.nan]) * self._size
            series[slot % self._size] = value
            self._seen[name] = slot

    def values(self, name: str, now_ms: float, within_s: float) -> list[float]:
        series = self._series.get(name)
        wanted = min(self._size, max(1, int(within_s / self.step_s)))
        if series is None:
            return [math.nan] * wanted
        last = max(int(now_ms / 1000 / self.step_s), self._slot)
        found = [
            series[slot % self._size] if self._slot - self._size < slot <= self._slot else math.nan
            for slot in range(last - wanted + 1, last + 1)
        ]
        # A look may take longer than a step: a short gap is the value before it.
        return _bridged(found, max(1, int(20 / self.step_s)))

    def _skip_to(self, slot: int) -> None:
        passed = slot - self._slot if self._slot >= 0 else 0
        for series in self._series.values():
            for number in range(1, min(passed, self._size) + 1):
                series[(self._slot + number) % self._size] = math.nan
        self._slot = slot
        for name in [name for name, seen in self._seen.items() if seen <= slot - self._size]:
            del self._series[name], self._seen[name]


def _bridged(values: list[float], most: int) -> list[float]:
    """Return *values* with gaps of at most *most* filled by the value before them."""
    gap, before = 0, math.nan
    for number, value in enumerate(values):
        if math.isnan(value):
            gap += 1
            if gap <= most:
                values[number] = before
        else:
            gap, before = 0, value
    return values
