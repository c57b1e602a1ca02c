"""A record on its way through the worker, and the partition it came from.

Owns the state that the stages share: what was parsed, which run this is, whether the partition is still ours. No
behaviour beyond that.
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

__all__ = ["Delivery"]


class Delivery(msgspec.Struct, kw_only=True):
    """One record between being fetched and being settled. *refusal* is set when a gate refused it; else message and the
    rest are."""

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
    asked: Ask | End | None = None
    """Set while it waits for a claim, or when its result failed, until a runner goes on with the answer."""
    sealed_ms: int = 0
    expires_ms: int = 0
    """When the message was sealed and when its life ends, an operator's extension included; 0 where nothing was
    parsed."""
