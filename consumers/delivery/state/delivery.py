"""Deliveries: records on their way through the worker, accepted by every gate or refused by one.

Owns the state that the stages share. No behaviour.
"""

from __future__ import annotations

from collections.abc import Hashable

import msgspec

from bus.errors import ContractError
from bus.protocol.sealing import Message
from bus.transports.base import Record
from consumers.deadletters.records import Control
from consumers.delivery.declaration import HandlerDeclaration
from consumers.delivery.inbox.base import Ask, End
from consumers.delivery.resilience.retry import Tier
from consumers.delivery.state.partition import Partition

__all__ = ["Accepted", "Delivery", "Refused"]


class Delivery(msgspec.Struct, kw_only=True):
    """One record between being fetched and being settled: `Accepted` or `Refused`."""

    record: Record
    partition: Partition
    control: Control
    key: Hashable
    """The key of its lane."""
    size: int
    """Bytes of the record, and of its decoded payload where that is worth counting."""
    message: Message | None = None
    """None if the record could not be parsed, or its content differs from the sealed content."""
    requeue: Tier | None = None
    """The tier it goes back to without using an attempt."""
    priority: int = 5
    label: str = "other"
    """The message type as a metric label."""
    taken_s: float = 0.0
    """When it was taken from the log, on the monotonic clock."""
    ends_s: float = 0.0
    """When its lifetime ends, on the monotonic clock, as of the last look at the wall clock."""
    born_s: float = 0.0
    """When it was sealed, on the monotonic clock."""
    sealed_ms: int = 0
    expires_ms: int = 0
    """When it was sealed, and when its lifetime ends, extensions included; both 0 where nothing was parsed."""
    limits_waited_for: str = ""
    """The limits for which it waits in its lane, by name; empty where it waits for something else."""
    awaited: bool = False
    """A run that is under way waits for its answer: it is part of that run."""

    @property
    def is_deep(self) -> bool:
        """Whether it may run while first messages are paused: other runs wait for it, or it leaves the worker."""
        return self.awaited or self.requeue is not None


class Accepted(Delivery, kw_only=True):
    """A delivery that has passed every gate."""

    message: Message
    subscription: HandlerDeclaration
    payload: object
    needs: object = None
    """The approval that the policy requires before the run: a `NeedsApproval`, or None."""
    cancelled: bool = False
    """Its requester has cancelled it while it runs."""
    unreadable: ContractError | None = None
    """Why its payload could not be read again for another attempt."""
    inbox_request: Ask | End | None = None
    """The claim or result request, from asking until a slot goes on with the answer."""


class Refused(Delivery, kw_only=True):
    """A delivery that a gate has refused; *error* names the gate's reason."""

    error: ContractError
    otherwise: Accepted | None = None
    """The accepted delivery, had the lifetime and policy gates let it pass: a done message is settled as done."""
