"""A record on its way through the worker: accepted by every gate, or refused by one.

Owns the state that the stages share. No behaviour beyond that.
"""

from __future__ import annotations

from collections.abc import Hashable

import msgspec

from bus.errors import ContractError
from bus.protocol.sealing import Message
from bus.transports.base import Record
from consumers.deadletters.records import Control
from consumers.declaration import Subscription
from consumers.inbox.base import Ask, End
from consumers.resilience.retry import Tier
from consumers.state.partition import Partition

__all__ = ["Accepted", "Delivery", "Refused"]


class Delivery(msgspec.Struct, kw_only=True):
    """One record between being fetched and being settled: `Accepted` or `Refused`."""

    record: Record
    partition: Partition
    control: Control
    key: Hashable
    """Of its lane."""
    size: int
    """In bytes, with what its payload takes decoded."""
    message: Message | None = None
    """None where the record could not be parsed, or is not what was sealed."""
    requeue: Tier | None = None
    """The tier it goes back to without using an attempt."""
    priority: int = 5
    label: str = "other"
    """The message type as a metric label."""
    taken_s: float = 0.0
    """When it was taken from the log, on the monotonic clock."""
    ends_s: float = 0.0
    """When its life ends, on the monotonic clock, as far as the last look at the wall clock could tell."""
    born_s: float = 0.0
    """When it was sealed, on the monotonic clock."""
    sealed_ms: int = 0
    expires_ms: int = 0
    """When the message was sealed and when its life ends, an operator's extension included; 0 where nothing was
    parsed."""


class Accepted(Delivery, kw_only=True):
    """Every gate has passed it."""

    message: Message
    subscription: Subscription
    payload: msgspec.Struct
    unreadable: ContractError | None = None
    """Why its payload could not be read again for another attempt."""
    asked: Ask | End | None = None
    """Set while it waits for a claim, or when its result failed, until a slot goes on with the answer."""


class Refused(Delivery, kw_only=True):
    """A gate has refused it; *error* says which, and why."""

    error: ContractError
    otherwise: Accepted | None = None
    """What it would be, had the gates of lifetime and policy let it pass: what is done already is settled as done."""
