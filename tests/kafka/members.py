"""A member of a group as these tests need it: what it holds, and polling until enough has come.

Owns no rule: what a member must do stands in the tests.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from bus.transports.base import Assignment, LogSubscription, Record

__all__ = ["MIB", "Listener", "receive"]

MIB = 1 << 20


class Listener:
    """Knows what its member holds, and drains nothing."""

    def __init__(self) -> None:
        self.held: set[Assignment] = set()

    def assigned(self, assignments: Sequence[Assignment]) -> None:
        self.held |= set(assignments)

    async def revoked(self, assignments: Sequence[Assignment]) -> None:
        self.held -= set(assignments)

    def lost(self, assignments: Sequence[Assignment]) -> None:
        self.held -= set(assignments)


async def receive(subscription: LogSubscription, count: int, within_s: float = 45.0) -> list[Record]:
    """Poll until *count* records have come."""
    got: list[Record] = []
    async with asyncio.timeout(within_s):
        while len(got) < count:
            got += await subscription.poll(timeout_s=0.2, max_records=500, max_bytes=32 * MIB)
    return got
