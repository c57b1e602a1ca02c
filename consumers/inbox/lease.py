"""One owner's lease as the owner itself knows it. Pure: every moment is an argument, in monotonic seconds.

Owns when to renew, and when an owner may call others dead. Does not own the stored leases, nor who reads them.

When all are held up at once (the store was away, the machine slept), every lease has run out, and whoever is back first
must not take the others for dead: it gives them as long as a lease lasts.
"""

from __future__ import annotations

__all__ = ["Lease"]

_RENEWALS = 4
"""So often within its length a lease is renewed."""


class Lease:
    """The lease of this owner, taken up at *now_s*."""

    def __init__(self, length_s: float, now_s: float) -> None:
        self.length_s = length_s
        self._renewed_s = now_s
        self._judges_from_s = now_s

    @property
    def interval_s(self) -> float:
        """How often to renew it."""
        return self.length_s / _RENEWALS

    def is_due(self, now_s: float) -> bool:
        """Whether whoever writes to the store anyway should renew it on the way."""
        return now_s - self._renewed_s >= self.interval_s / 2

    def has_run_out(self, now_s: float) -> bool:
        """Whether others may take this owner for dead."""
        return now_s - self._renewed_s > self.length_s

    def renewed(self, now_s: float) -> None:
        """It was renewed; *now_s* is from before the store was asked."""
        if self.has_run_out(now_s):
            self._judges_from_s = now_s + self.length_s
        self._renewed_s = max(self._renewed_s, now_s)

    def judged(self, rest_s: float | None, now_s: float) -> float | None:
        """The *rest_s* of another's lease, as this owner may see it."""
        if rest_s is None or rest_s > 0 or (not self.has_run_out(now_s) and now_s >= self._judges_from_s):
            return rest_s
        return max(self._judges_from_s - now_s, self.interval_s)
