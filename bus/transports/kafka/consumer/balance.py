"""Balance partitions among the members of a group without stopping those that stay. Pure.

Owns which member gets which partition, and which ones a member must release first. The library knows only eager
rebalancing, which takes every partition from every member. Here a member keeps its partitions through a rebalance. A
partition that moves is first drained, committed and released by its holder, and assigned in the next round (as in
KIP-429). The messages that carry these plans are in `cooperative_assignor`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping

import msgspec
from aiokafka import TopicPartition

__all__ = ["Bid", "PartitionShare", "share"]


class Bid(msgspec.Struct, frozen=True):
    """The declaration of one member at the beginning of a rebalance.

    It has the topics that the member reads, the partitions that it owns, and the last *generation* that it has seen.
    """

    topics: frozenset[str]
    owned: frozenset[TopicPartition] = frozenset()
    generation: int = -1


class PartitionShare(msgspec.Struct, frozen=True):
    """The partitions of a member from now on, and those of them that it must release."""

    owned: frozenset[TopicPartition]
    leaving: frozenset[TopicPartition]


def share(partitions: Mapping[str, int], bids: Mapping[str, Bid]) -> dict[str, PartitionShare]:
    """Return each member's share. Held partitions stay with their holder or are to be released; free ones are assigned
    now.

    Once all releases are done the result is balanced. Per topic and in total, two members that read the same topics
    differ by at most one.
    """
    everything = [TopicPartition(topic, number) for topic in sorted(partitions) for number in range(partitions[topic])]
    holders = _holders(everything, bids)
    wanted = _Balance(everything, bids, holders).owners
    owned: dict[str, set[TopicPartition]] = {member: set() for member in bids}
    leaving: dict[str, set[TopicPartition]] = {member: set() for member in bids}
    for location, owner in wanted.items():
        holder = holders.get(location, owner)
        owned[holder].add(location)
        if holder != owner:
            leaving[holder].add(location)
    return {member: PartitionShare(frozenset(owned[member]), frozenset(leaving[member])) for member in bids}


def _holders(everything: Collection[TopicPartition], bids: Mapping[str, Bid]) -> dict[TopicPartition, str]:
    """Return the owner of each partition; if two members claim one, the higher generation wins."""
    exists = set(everything)
    holders: dict[TopicPartition, str] = {}
    for member in sorted(bids, key=lambda name: (bids[name].generation, name)):
        bid = bids[member]
        for location in bid.owned:
            if location in exists and location.topic in bid.topics:
                holders[location] = member
    return holders


class _Balance:
    """Computes the final owner of every partition with as few moves as possible."""

    def __init__(
        self, everything: Iterable[TopicPartition], bids: Mapping[str, Bid], holders: Mapping[TopicPartition, str]
    ) -> None:
        self.owners: dict[TopicPartition, str] = {}
        self._in_sum: Counter[str] = Counter()
        self._in_topic: Counter[tuple[str, str]] = Counter()
        self._readers = {topic: sorted(name for name in bids if topic in bids[name].topics) for topic in _topics(bids)}
        self._owned: dict[tuple[str, str], list[TopicPartition]] = {}
        homeless = []
        for location in everything:
            if location in holders:
                self._give(location, holders[location])
            elif self._readers.get(location.topic):
                homeless.append(location)
        for location in homeless:
            self._give(
                location,
                min(
                    self._readers[location.topic],
                    key=lambda name: (self._in_topic[location.topic, name], self._in_sum[name], name),
                ),
            )
        for topic in sorted(self._readers):
            self._even_out(topic)
        self._even_out_sums()

    def _give(self, location: TopicPartition, member: str) -> None:
        self.owners[location] = member
        self._in_sum[member] += 1
        self._in_topic[location.topic, member] += 1
        self._owned.setdefault((location.topic, member), []).append(location)

    def _move(self, topic: str, giver: str, taker: str) -> None:
        location = self._owned[topic, giver].pop()
        self._in_sum[giver] -= 1
        self._in_topic[topic, giver] -= 1
        self._give(location, taker)

    def _even_out(self, topic: str) -> None:
        readers = self._readers[topic]

        def load(name: str) -> tuple[int, int, str]:
            return self._in_topic[topic, name], self._in_sum[name], name

        while True:
            giver, taker = max(readers, key=load), min(readers, key=load)
            if self._in_topic[topic, giver] - self._in_topic[topic, taker] <= 1:
                return
            self._move(topic, giver, taker)

    def _even_out_sums(self) -> None:
        """Balance the totals, keeping each topic balanced: topics with few partitions must not all go to one member."""
        while move := self._next_move():
            self._move(*move)

    def _next_move(self) -> tuple[str, str, str] | None:
        members = sorted(
            {name for readers in self._readers.values() for name in readers},
            key=lambda name: (self._in_sum[name], name),
        )
        for giver in reversed(members):
            for taker in members:
                if self._in_sum[giver] - self._in_sum[taker] <= 1:
                    break
                for topic, readers in sorted(self._readers.items()):
                    if (
                        giver in readers
                        and taker in readers
                        and self._in_topic[topic, giver] > self._in_topic[topic, taker]
                    ):
                        return topic, giver, taker
        return None


def _topics(bids: Mapping[str, Bid]) -> set[str]:
    return {topic for bid in bids.values() for topic in bid.topics}
