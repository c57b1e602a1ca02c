"""Early events: they come before their process, wait for it without an attempt, and die by name when it does not come.

Owns how long they wait, how often they are put back, and how many of one sender may wait at once.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Sequence
from typing import Final

import msgspec

from bus.clock import Clock
from bus.telemetry.metrics import Metrics
from consumers.delivery.resilience.retry import Tier, next_tier
from consumers.delivery.settling.dispositions import refusal
from consumers.delivery.settling.outcome import Dead, MoveToTier, Outcome, RetryInLane
from consumers.delivery.state.delivery import Accepted

__all__ = ["MAX_APPENDS", "EarlyEvents"]

MAX_APPENDS: Final = 10
"""So often one event is put back into a tier at most."""
_SOON_S: Final = 1.0
_LAST_S: Final = 1.2
_MAX_SENDERS: Final = 10_000


class EarlyEvents:
    """Decides about the early events of one worker: each waits *bound_s* seconds at most, *max_waiting* of a sender."""

    def __init__(
        self, *, tiers: Sequence[Tier], bound_s: float, max_waiting: int, group: str, clock: Clock, metrics: Metrics
    ) -> None:
        self._tiers = tiers
        self._bound_s = bound_s
        self._max_waiting = max_waiting
        self._group = group
        self._clock = clock
        self._counted = metrics.saga_steps
        self._until_s: OrderedDict[str, deque[float]] = OrderedDict()
        """By sender, until when each of its events that were first seen here may wait, on the monotonic clock."""

    def outcome_of(self, delivery: Accepted) -> Outcome:
        """Send *delivery* to a longer retry tier each time, wait in the lane if its lifetime is short, or dead-letter
        it."""
        self._counted.labels(self._group, "other", "early").inc()
        now_ms, control = self._clock.now_ms(), delivery.control
        life_s = (delivery.expires_ms - now_ms) / 1000
        if life_s <= _LAST_S:
            return _never("it expires")
        if not control.early_since_ms:
            if not self._takes(delivery.message.metadata.sender.id or ""):
                return _never(f"its turn: its sender has {self._max_waiting} early events waiting")
            control = msgspec.structs.replace(control, early_since_ms=now_ms)
        bound_s = self._bound_s - (now_ms - control.early_since_ms) / 1000
        if bound_s <= 0:
            return _never(f"{self._bound_s:g} s were over")
        left_s = min(life_s - _LAST_S, bound_s)
        tier = next_tier(self._tiers, delivery.partition.tier, left_s)
        if tier is None and (not self._tiers or life_s - _LAST_S <= bound_s):
            # In the lane it is kept in memory alone: that is for the end of a short life, and for who has no tiers.
            delivery.control = control
            return RetryInLane(min(_SOON_S, left_s + _LAST_S / 2))
        if tier is None or control.early_count >= MAX_APPENDS:
            return _never(f"{self._bound_s:g} s were over, or it was put back {MAX_APPENDS} times")
        return MoveToTier(tier, msgspec.structs.replace(control, early_count=control.early_count + 1))

    def _takes(self, sender: str) -> bool:
        """Return whether one more event of *sender* may wait, and count it."""
        now_s = self._clock.monotonic_s()
        waiting = self._until_s.setdefault(sender, deque())
        self._until_s.move_to_end(sender)
        while waiting and waiting[0] <= now_s:
            waiting.popleft()
        if len(self._until_s) > _MAX_SENDERS:
            self._until_s.popitem(last=False)
        if len(waiting) >= self._max_waiting:
            return False
        waiting.append(now_s + self._bound_s)
        return True


def _never(before: str) -> Dead:
    return refusal("invalid_transition", f"its process has not come before {before}")
