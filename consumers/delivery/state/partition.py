"""Partition: the state of one assigned partition of a worker. No behaviour."""

from __future__ import annotations

import math
from collections.abc import Callable

from bus.transports.base import Assignment
from consumers.delivery.resilience.retry import Tier
from consumers.delivery.resilience.retry_clock import FirstSeen
from consumers.delivery.state.commit_frontier import MAX_SPAN, Frontier

__all__ = ["Partition"]


class Partition:
    """One assignment: its frontier, its topic's purpose, and whether it is paused, draining or closed."""

    __slots__ = (
        "assignment",
        "awaiting_inbox",
        "behind",
        "closed",
        "committed",
        "crowding",
        "draining",
        "expected_type",
        "frontier",
        "full",
        "in_doubt",
        "max_open",
        "measured",
        "own",
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
        """Asks whether another worker may own it now; asking may close it."""
        self.frontier = Frontier()
        self.committed: int | None = None
        self.expected_type = expected_type
        self.own = own
        """Whether its topic is a retry or redrive topic, whose control headers are honoured."""
        self.tier = tier
        self.seen = FirstSeen()
        """Of a retry tier: since when its records are known to exist."""
        self.passed_ms = -math.inf
        """Of a retry tier: the latest append time of a released record, on the monotonic clock."""
        self.taken_ms = 0
        """The append time of the last record taken."""
        self.measured: int | None = None
        """The frontier when the lag was last measured."""
        self.behind = 0
        """Records after the frontier when the lag was last measured."""
        self.awaiting_inbox = 0
        """Deliveries whose claim or result is with the inbox, or that no slot has continued since.

        Also messages whose late answers are being sent.
        """
        self.paused = 0
        """The number of reasons not to fetch from it."""
        self.patient = 0
        """Outcomes that pause before their append is tried again."""
        self.max_open = MAX_SPAN
        """The limit of its span."""
        self.full = False
        """Its span has reached the limit: fetching waits for the frontier."""
        self.crowding = False
        """Its message type has taken half of the room."""
        self.resting = False
        """The brake is on its message type."""
        self.draining = False
        """It is about to be revoked: running handlers may finish, no handler starts."""
        self.closed = False
        """It was revoked: no message is started, settled or committed any more."""
