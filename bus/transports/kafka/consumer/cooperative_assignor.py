"""The group's protocol of rebalances: what members tell each other through the library's assignor.

Owns the name of the protocol and the bytes in which bids and shares travel (`user_data` of Kafka's classic consumer
protocol). The sharing itself is `sharing`'s, acting on a share `membership`'s.
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
    places: dict[str, list[int]] = {}


_decoder = msgspec.msgpack.Decoder(Declared)
_encode = msgspec.msgpack.Encoder().encode


def declared(generation: int, places: Iterable[TopicPartition]) -> Declared:
    """*places* in the form that travels."""
    return Declared(generation, _by_topic(places))


class CooperativeAssignor(AbstractPartitionAssignor):  # type: ignore[misc]  # the library has no types
    """One member's assignor. *held* answers with what this member holds; *leaving* hears what it shall let go of."""

    name = "sealbus-cooperative"

    def __init__(self, held: Callable[[], Declared], leaving: Callable[[set[TopicPartition]], None]) -> None:
        self._held = held
        self._leaving = leaving

    def metadata(self, topics: Iterable[str]) -> ConsumerProtocolMemberMetadata:
        """What this member says when it joins."""
        return ConsumerProtocolMemberMetadata(0, sorted(topics), _encode(self._held()))

    def assign(
        self, cluster: Any, members: Mapping[str, ConsumerProtocolMemberMetadata]
    ) -> dict[str, ConsumerProtocolMemberAssignment]:
        """The leader's part: everybody's share. A topic that the cluster does not tell of is given to nobody."""
        bids = {member: _bid_of(metadata) for member, metadata in members.items()}
        topics = {topic for bid in bids.values() for topic in bid.topics}
        partitions = {topic: len(cluster.partitions_for_topic(topic) or ()) for topic in topics}
        return {
            member: ConsumerProtocolMemberAssignment(
                0, sorted(_by_topic(given.held).items()), _encode(declared(-1, given.leaving))
            )
            for member, given in share(partitions, bids).items()
        }

    def on_assignment(self, assignment: ConsumerProtocolMemberAssignment) -> None:
        """What this member has from now on, as the leader sees it."""
        self._leaving(_places(_read(assignment.user_data)))


def _bid_of(metadata: ConsumerProtocolMemberMetadata) -> Bid:
    held = _read(metadata.user_data)
    return Bid(frozenset(metadata.subscription), frozenset(_places(held)), held.generation)


def _read(data: bytes | None) -> Declared:
    """Whoever says nothing that can be read holds nothing."""
    try:
        return _decoder.decode(data or b"")
    except msgspec.MsgspecError:
        return Declared()


def _places(held: Declared) -> set[TopicPartition]:
    return {TopicPartition(topic, number) for topic, numbers in held.places.items() for number in numbers}


def _by_topic(places: Iterable[TopicPartition]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for place in sorted(places):
        found.setdefault(place.topic, []).append(place.partition)
    return found
