"""Lease: one owner's lease as the owner itself knows it. Pure; times are arguments, in monotonic seconds.

Owns when to renew it, and when an owner may consider others dead. The stored leases are in `sqlite` and `postgres`.

If all owners paused at once (the store was unreachable, the machine slept), every lease has expired. The first owner to
return must not consider the others dead: it waits for the length of a lease.
"""

from __future__ import annotations

from bus.errors import ConfigurationError

__all__ = ["Lease"]

_RENEWALS = 4
"""How often a lease is renewed within its length."""


class Lease:
    """The lease of this owner, which starts at *now_s*. Raises ConfigurationError for a *length_s* not above 0."""

    def __init__(self, length_s: float, now_s: float) -> None:
        if not length_s > 0:
            raise ConfigurationError(f"a lease of {length_s} s is not more than 0")
        self.length_s = length_s
        self._renewed_s = now_s
        self._judges_from_s = now_s

    @property
    def interval_s(self) -> float:
        """Seconds between renewals."""
        return self.length_s / _RENEWALS

    def is_due(self, now_s: float) -> bool:
        """Return whether a write to the store should renew the lease on the way."""
        return now_s - self._renewed_s >= self.interval_s / 2

    def has_run_out(self, now_s: float) -> bool:
        """Return whether others may judge this owner dead."""
        return now_s - self._renewed_s > self.length_s

    def renewed(self, now_s: float) -> None:
        """Note that the lease was renewed; *now_s* is from before the store was asked."""
        if self.has_run_out(now_s):
            self._judges_from_s = now_s + self.length_s
        self._renewed_s = max(self._renewed_s, now_s)

    def judged(self, rest_s: float | None, now_s: float) -> float | None:
        """Return the remaining time of another owner's lease as this owner may judge it; *rest_s* is the store's
        value."""
        if rest_s is None or rest_s > 0 or (not self.has_run_out(now_s) and now_s >= self._judges_from_s):
            return rest_s
        return max(self._judges_from_s - now_s, self.interval_s)
