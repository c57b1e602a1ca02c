"""Measuring how far a group is behind also notes what its tiers hold."""

from __future__ import annotations

from bus.clock import ManualClock
from bus.transports import open_transport
from bus.transports.base import Assignment, NewRecord, TopicSpec
from consumers.delivery import Partition
from consumers.lag import measure
from consumers.retry import Tier


async def test_what_a_tier_holds_when_the_lag_is_measured_is_known_to_be_there_although_it_was_not_fetched() -> None:
    clock = ManualClock()
    transport = open_transport("memory://", clock=clock)
    try:
        await transport.admin.create_topics([TopicSpec(name="a.b", partitions=1)])
        await transport.append([NewRecord("a.b", b"k", b"v")] * 700, timeout_s=5)
        assignment = Assignment("a.b", 0, 1)
        tier = Partition(assignment, expected_type=None, own=True, tier=Tier("5s", 5.0))
        await measure(transport, [tier, Partition(assignment, expected_type="a", own=False, tier=None)], clock)
        clock.advance(3)
        assert tier.seen.waited_s(699, clock.monotonic_s()) == 3
        assert tier.seen.waited_s(700, clock.monotonic_s()) == 0
    finally:
        await transport.close()
