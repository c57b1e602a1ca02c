"""One partition that a worker holds. State without behaviour.

Its frontier, what it is for, and what may still happen to it.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from bus.transports.base import Assignment
from consumers.resilience.retry import Tier
from consumers.resilience.retry_clock import FirstSeen
from consumers.state.commit_frontier import MAX_SPAN, Frontier

__all__ = ["Partition"]


class Partition:
    """One assignment: its frontier, what it is for, and whether anything may still happen to it."""

    __slots__ = (
        "assignment",
        "closed",
        "committed",
        "crowding",
        "draining",
        "expected_type",
        "frontier",
        "full",
        "in_doubt",
        "measured",
        "most_open",
        "own",
        "parked",
        "passed_ms",
        "patient",
        "paused",
        "resting",
        "seen",
        "taken_ms",
        "tier",
    )

    def __init__(
        self,
        assignment: Assignment,
        *,
        expected_type: str | None,
        own: bool,
        tier: Tier | None,
        in_doubt: Callable[[], bool] = bool,
    ) -> None:
        self.assignment = assignment
        self.in_doubt = in_doubt
        """Whether it may be another's by now; it may be closed by the question."""
        self.frontier = Frontier()
        self.committed: int | None = None
        self.expected_type = expected_type
        self.own = own
        """Whether this is one of the bus's own topics, whose control headers are honoured."""
        self.tier = tier
        self.seen = FirstSeen()
        """Of a tier: since when its records are known to be there."""
        self.passed_ms = -math.inf
        """Of a tier: when the latest of the records that were let through had been appended, on the monotonic clock."""
        self.taken_ms = 0
        """When the last record that was taken had been appended."""
        self.measured: int | None = None
        """The frontier when the lag was last measured."""
        self.parked = 0
        """Deliveries whose claim or result is being made durable, or that have not gone on since."""
        self.paused = 0
        """How many reasons there are not to fetch from it."""
        self.patient = 0
        """Outcomes that pause before they are tried again."""
        self.most_open = MAX_SPAN
        """So long may its span be."""
        self.full = False
        """Its span reached that: fetching waits for the frontier."""
        self.crowding = False
        """Its type has taken half of the room."""
        self.resting = False
        """The brake is on its type."""
        self.draining = False
        """About to be given away: what runs may finish, nothing is started."""
        self.closed = False
        """Given away: nothing is started, settled or committed any more."""
