"""Backoff: how long to wait before each further try of something that failed."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

import msgspec

__all__ = ["Backoff"]


class Backoff(msgspec.Struct, frozen=True):
    """Waits of *base_s* seconds at first, then twice the last one, at most *cap_s*."""

    base_s: float
    cap_s: float

    def delay_s(self, tries: int) -> float:
        """Return the seconds to wait after *tries* failures in a row, at least one."""
        return min(self.cap_s, self.base_s * 2.0 ** min(tries - 1, 64))

    def delays_s(self) -> Iterator[float]:
        """Yield the waits from the first on, without end."""
        return map(self.delay_s, count(1))
