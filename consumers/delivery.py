"""A record on its way through the worker, and the partition it came from.

Owns the state that the stages share: what was parsed, which run this is, whether the partition is still ours. No behaviour beyond that.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Hashable
from typing import Any

import msgspec

from bus.errors import ContractError
from bus.sealing import Message
from bus.transports.base import Assignment, Record
from consumers.deadletter import Control
from consumers.declaration import Subscription
from consumers.frontier import MAX_SPAN, Frontier
from consumers.inbox.base import Ask, End, Key, Transaction
from consumers.lanes import Lane
from consumers.retry import Tier
from consumers.sightings import Sightings

__all__ = ["Asked", "Delivery", "Ended", "Hold", "Partition"]


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
        self, assignment: Assignment, *, expected_type: str | None, own: bool, tier: Tier | None, in_doubt: Callable[[], bool] = bool
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
        self.seen = Sightings()
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


class Hold(msgspec.Struct):
    """What a run holds in the inbox; *identity* is what the store knows the key by."""

    key: Key
    token: int
    identity: Any = None
    transaction: Transaction | None = None
    turn: asyncio.Lock | None = None
    """Of those that ask for the transaction at once."""
    over: bool = False
    """Its handler has ended: who asks for the transaction now has no part in it."""


class Asked(Ask, kw_only=True, eq=False, gc=False):
    """The claim that is asked for, on the head of *lane*, while no runner waits."""

    lane: Lane[Delivery]


class Ended(End, kw_only=True, eq=False, gc=False):
    """The result, of the head of *lane*, that is being made durable while no runner waits."""

    lane: Lane[Delivery]
    hold: Hold


class Delivery(msgspec.Struct, kw_only=True):
    """One record between being fetched and being settled. *refusal* is set when a gate refused it; else message and the rest are."""

    record: Record
    partition: Partition
    control: Control
    key: Hashable
    size: int
    priority: int = 5
    message: Message | None = None
    subscription: Subscription | None = None
    payload: msgspec.Struct | None = None
    refusal: ContractError | None = None
    requeue: Tier | None = None
    """The tier it goes back to without using an attempt."""
    taken_s: float = 0.0
    ends_s: float = 0.0
    """When its life ends, on the monotonic clock, as far as the last look at the wall clock could tell."""
    born_s: float = 0.0
    """When it was sealed, on the monotonic clock."""
    label: str = "other"
    """The message type as a metric label."""
    asked: Asked | Ended | None = None
    """Set while it waits for a claim, or when its result failed, until a runner goes on with the answer."""
    sealed_ms: int = 0
    expires_ms: int = 0
    """When the message was sealed and when its life ends, an operator's extension included; 0 where nothing was parsed."""
