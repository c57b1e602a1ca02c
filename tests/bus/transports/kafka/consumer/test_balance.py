"""Sharing partitions: nobody's partition is given away while it is held, and in the end everybody has an even share."""

from __future__ import annotations

import pytest
from aiokafka import TopicPartition
from hypothesis import given
from hypothesis import strategies as st

from bus.transports.kafka.consumer.balance import Bid, share

TOPICS = ("a", "b", "c", "d")


def settle(partitions: dict[str, int], bids: dict[str, Bid]) -> tuple[dict[str, Bid], int]:
    """Rounds until nobody is asked to let go of anything, as members would do it; the bids at the end, and how many
    rounds."""
    for round_number in range(1, 10):
        shares = share(partitions, bids)
        bids = {name: Bid(bids[name].topics, shares[name].owned - shares[name].leaving, round_number) for name in bids}
        if not any(given.leaving for given in shares.values()):
            return bids, round_number
    raise AssertionError("it never ends")


@st.composite
def groups(draw: st.DrawFn) -> tuple[dict[str, int], dict[str, Bid]]:
    partitions = {topic: draw(st.integers(0, 7)) for topic in TOPICS}
    places = [TopicPartition(topic, number) for topic in TOPICS for number in range(partitions[topic] + 1)]
    names = [f"m{number}" for number in range(draw(st.integers(1, 5)))]
    same = draw(st.booleans())
    topics = {name: frozenset(TOPICS) if same else draw(st.frozensets(st.sampled_from(TOPICS))) for name in names}
    held = {place: draw(st.sampled_from([*names, None])) for place in places}
    return partitions, {
        name: Bid(topics[name], frozenset(place for place in places if held[place] == name), draw(st.integers(-1, 3)))
        for name in names
    }


@given(groups())
def test_every_subscribed_partition_has_exactly_one_owner(group) -> None:
    partitions, bids = group
    shares = share(partitions, bids)
    given_away = sorted(place for one in shares.values() for place in one.owned)
    read = {topic for bid in bids.values() for topic in bid.topics}
    assert given_away == sorted(TopicPartition(topic, number) for topic in read for number in range(partitions[topic]))
    assert all(place.topic in bids[name].topics for name, one in shares.items() for place in one.owned)


@pytest.mark.medium
@given(groups())
def test_an_owned_partition_is_never_reassigned_in_the_same_round(group) -> None:
    partitions, bids = group
    shares = share(partitions, bids)
    for name, bid in bids.items():
        kept = {place for place in bid.owned if place.topic in bid.topics and place.partition < partitions[place.topic]}
        assert kept <= shares[name].owned
        assert shares[name].leaving <= kept


@pytest.mark.medium
@given(groups())
def test_two_rounds_make_it_even_in_each_topic_and_in_sum(group) -> None:
    partitions, bids = group
    ended, rounds = settle(partitions, bids)
    assert rounds <= 3
    for topic in TOPICS:
        counts = [sum(place.topic == topic for place in bid.owned) for bid in ended.values() if topic in bid.topics]
        assert not counts or max(counts) - min(counts) <= 1
    if len({bid.topics for bid in ended.values()}) == 1:
        sums = [len(bid.owned) for bid in ended.values()]
        assert max(sums) - min(sums) <= 1


@pytest.mark.medium
@given(groups())
def test_an_even_group_is_left_alone(group) -> None:
    partitions, bids = group
    ended, _ = settle(partitions, bids)
    assert {name: one.owned for name, one in share(partitions, ended).items()} == {
        name: bid.owned for name, bid in ended.items()
    }


def test_a_newcomer_gets_nothing_before_the_others_have_let_go() -> None:
    old = Bid(frozenset({"a"}), frozenset(TopicPartition("a", number) for number in range(4)), 1)
    shares = share({"a": 4}, {"old": old, "new": Bid(frozenset({"a"}))})
    assert shares["new"].owned == frozenset()
    assert len(shares["old"].leaving) == 2


def test_the_owner_of_the_newest_generation_keeps_the_partition() -> None:
    place = TopicPartition("a", 0)
    topics = frozenset({"a"})
    shares = share(
        {"a": 1}, {"zombie": Bid(topics, frozenset({place}), 3), "living": Bid(topics, frozenset({place}), 4)}
    )
    assert shares["living"].owned == {place}
    assert shares["zombie"].owned == frozenset()
