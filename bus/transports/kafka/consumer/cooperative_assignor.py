"""The rebalance protocol of a group: what members exchange through the library's assignor.

Owns the protocol's name and the encoding of bids and shares (`user_data` of Kafka's classic consumer protocol).
`balance` computes the shares, `membership` acts on them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec
from aiokafka import TopicPartition
from aiokafka.coordinator.assignors.abstract import AbstractPartitionAssignor
from aiokafka.coordinator.protocol import ConsumerProtocolMemberAssignment, ConsumerProtocolMemberMetadata

from bus.transports.kafka.consumer.balance import Bid, share

__all__ = ["CooperativeAssignor", "Declared", "declared"]


class Declared(msgspec.Struct, frozen=True, array_like=True):
    """Partitions by topic, and the generation in which their holder last heard from the group."""

    generation: int = -1
    locations: dict[str, list[int]] = {}


_decoder = msgspec.msgpack.Decoder(Declared)
_encode = msgspec.msgpack.Encoder().encode


def declared(generation: int, locations: Iterable[TopicPartition]) -> Declared:
    """Return *locations* in their encoded form."""
    return Declared(generation, _by_topic(locations))


class CooperativeAssignor(AbstractPartitionAssignor):  # type: ignore[misc]  # the library has no types
    """The assignor of one member. *owned* returns its partitions; *leaving* is called with those it must release."""

    name = "sealbus-cooperative"

    def __init__(self, owned: Callable[[], Declared], leaving: Callable[[set[TopicPartition]], None]) -> None:
        self._owned = owned
        self._leaving = leaving

    def metadata(self, topics: Iterable[str]) -> ConsumerProtocolMemberMetadata:
        """Return what this member sends when it joins."""
        return ConsumerProtocolMemberMetadata(0, sorted(topics), _encode(self._owned()))

    def assign(
        self, cluster: Any, members: Mapping[str, ConsumerProtocolMemberMetadata]
    ) -> dict[str, ConsumerProtocolMemberAssignment]:
        """Compute every member's share, as the group's leader. Topics unknown to the cluster are not assigned."""
        bids = {member: _bid_of(metadata) for member, metadata in members.items()}
        topics = {topic for bid in bids.values() for topic in bid.topics}
        partitions = {topic: len(cluster.partitions_for_topic(topic) or ()) for topic in topics}
        return {
            member: ConsumerProtocolMemberAssignment(
                0, sorted(_by_topic(provided.owned).items()), _encode(declared(-1, provided.leaving))
            )
            for member, provided in share(partitions, bids).items()
        }

    def on_assignment(self, assignment: ConsumerProtocolMemberAssignment) -> None:
        """Take over this member's share as the leader computed it."""
        self._leaving(_locations(_read(assignment.user_data)))


def _bid_of(metadata: ConsumerProtocolMemberMetadata) -> Bid:
    owned = _read(metadata.user_data)
    return Bid(frozenset(metadata.subscription), frozenset(_locations(owned)), owned.generation)


def _read(data: bytes | None) -> Declared:
    """Decode *data*; unreadable data count as holding nothing."""
    try:
        return _decoder.decode(data or b"")
    except msgspec.MsgspecError:
        return Declared()


def _locations(owned: Declared) -> set[TopicPartition]:
    return {TopicPartition(topic, number) for topic, numbers in owned.locations.items() for number in numbers}


def _by_topic(locations: Iterable[TopicPartition]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for location in sorted(locations):
        found.setdefault(location.topic, []).append(location.partition)
    return found
