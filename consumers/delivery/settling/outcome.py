"""Outcomes: what a run came to, as a value.

`consumers.delivery.handling.executor` decides an `Outcome`, `consumers.delivery.settling.dispositions` carries it out.
Values only.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, TypeAlias

import msgspec

from bus.transports.base import NewRecord
from consumers.deadletters.records import Control, Failure
from consumers.delivery.resilience.retry import Tier

__all__ = [
    "AWAIT_INBOX",
    "CANCELLED",
    "DONE",
    "DROPPED",
    "AwaitInbox",
    "Dead",
    "Done",
    "Dropped",
    "MoveToTier",
    "Outcome",
    "PassOn",
    "RetryInLane",
    "Skipped",
    "Withheld",
]


class Done(msgspec.Struct, frozen=True):
    """The handler succeeded, now or in an earlier run: *outputs* are sent, then the offset is settled."""

    outputs: Sequence[NewRecord] = ()
    ran: bool = True
    """Whether it succeeded in this run, not in an earlier one."""


class Withheld(msgspec.Struct, frozen=True):
    """The record is stored beside its process: *outputs* ask the approvers, then the offset is settled."""

    outputs: Sequence[NewRecord] = ()


class RetryInLane(msgspec.Struct, frozen=True):
    """Wait *delay_s* seconds in the lane, then try again; *control* counts a used attempt, None none.

    *limits* names the limits that it waits for; empty: it waits for something else.
    """

    delay_s: float
    control: Control | None = None
    limits: str = ""


class MoveToTier(msgspec.Struct, frozen=True):
    """Append the record to *tier*, with *control* as its control headers.

    *climbs*: it waits without an attempt, and each time longer: from a tier it goes to the next longer one.
    """

    tier: Tier
    control: Control
    climbs: bool = False


class PassOn(msgspec.Struct, frozen=True):
    """Append the record to another partition of *tier*, whose worker may know its type."""

    tier: Tier


class Dead(msgspec.Struct, frozen=True):
    """Append a dead letter and report to the requester; *control* counts a used attempt, None none.

    *records* are both of them, where they are stored as the end of the message: whoever repeats it sends the same.
    """

    failure: Failure
    control: Control | None = None
    records: Sequence[NewRecord] = ()


class Skipped(Dead, frozen=True):
    """Nobody wants the result any more: no dead letter is written; the requester is told, with code CANCELLED.

    *records* is that report, where there is one.
    """


class AwaitInbox(msgspec.Struct, frozen=True):
    """Nothing is decided yet: the lane comes back when the inbox has answered."""


class Dropped(msgspec.Struct, frozen=True):
    """The partition goes away: its next owner settles the message."""


Outcome: TypeAlias = Done | Withheld | RetryInLane | MoveToTier | PassOn | Dead | AwaitInbox | Dropped

CANCELLED: Final = "CANCELLED"
"""The code of the report about a cancelled message."""
DONE: Final = Done()
AWAIT_INBOX: Final = AwaitInbox()
DROPPED: Final = Dropped()
