"""What is known of a topic on Kafka: whether a partition of it can be written to."""

from __future__ import annotations

import pytest

from bus.transports.kafka.cluster.topic_facts import TopicFacts


@pytest.mark.parametrize(
    ("facts", "partition", "why"),
    [
        (TopicFacts((1, 2)), 1, ""),
        (TopicFacts((1, -1)), 0, ""),
        (TopicFacts((1, -1)), 1, "no leader"),
        (TopicFacts((1, 2)), 2, "no leader"),
        (TopicFacts((1, 2), in_sync=(2, 1), min_in_sync=2), 0, ""),
        (TopicFacts((1, 2), in_sync=(2, 1), min_in_sync=2), 1, "min.insync.replicas is 2"),
    ],
)
def test_a_partition_is_writable_with_a_leader_and_enough_in_sync_replicas(
    facts: TopicFacts, partition: int, why: str
) -> None:
    found = facts.hindrance(partition)
    assert bool(found) == bool(why)
    assert why in found
