"""What a run came to, as a value: decided in one place, made durable in another.

The executor decides an `Outcome`; `consumers.settling.dispositions` carries it out. Values only, nothing happens here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, TypeAlias

import msgspec

from bus.transports.base import NewRecord
from consumers.deadletters.records import Control, Failure
from consumers.resilience.retry import Tier

__all__ = [
    "AWAIT_INBOX",
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
]


class Done(msgspec.Struct, frozen=True):
    """The handler went through, now or at an earlier run: *outputs* leave, then the offset is settled."""

    outputs: Sequence[NewRecord] = ()
    ran: bool = True
    """Now, and not at an earlier run."""


class RetryInLane(msgspec.Struct, frozen=True):
    """Wait here for *delay_s* seconds, then try again. *control* counts the attempt that was used, where one was."""

    delay_s: float
    control: Control | None = None


class MoveToTier(msgspec.Struct, frozen=True):
    """Append the record to *tier*, with *control* as its control headers."""

    tier: Tier
    control: Control


class PassOn(msgspec.Struct, frozen=True):
    """Append the record to another partition of *tier*: a worker that reads that one may know its type."""

    tier: Tier


class Dead(msgspec.Struct, frozen=True):
    """Append a dead letter and tell the requester. *control* counts the attempt that was used, where one was."""

    failure: Failure
    control: Control | None = None


class AwaitInbox(msgspec.Struct, frozen=True):
    """Nothing is decided yet: the lane comes back when the inbox has answered."""


class Dropped(msgspec.Struct, frozen=True):
    """Its partition goes away: the next owner settles it."""


Outcome: TypeAlias = Done | RetryInLane | MoveToTier | PassOn | Dead | AwaitInbox | Dropped

DONE: Final = Done()
AWAIT_INBOX: Final = AwaitInbox()
DROPPED: Final = Dropped()
