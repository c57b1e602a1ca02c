"""ProcessGroup: the group that owns processes, and its means to send. A value."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from bus.payloads.payload_types import PayloadType, Registry
from bus.vocabulary import BUILT_IN
from consumers.delivery.resilience.retry import Tier

__all__ = ["ProcessGroup"]


class ProcessGroup(msgspec.Struct, frozen=True, kw_only=True):
    """One consumer group with processes, and its agent."""

    namespace: str
    name: str
    """The group, without its namespace."""
    agent_id: str
    mailbox: str
    """The topic to which answers and due waits come."""
    registry: Registry
    """The types that the group's app knows."""
    tiers: Sequence[Tier]
    keep_ms: int
    """How long the row of an ended process stays."""

    def kind_of(self, name: str) -> PayloadType | None:
        """Return the type called *name*, of the app or built in; None if it is unknown."""
        return self.registry.get(name) or BUILT_IN.get(name)
