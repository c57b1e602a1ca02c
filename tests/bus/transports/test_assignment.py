"""The assignment: complete, balanced, sticky, settled after one step."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bus.transports.sqlite.assignment import assign


@st.composite
def groups(draw, *, alike=False):
    counts = draw(st.dictionaries(st.sampled_from("abcdef"), st.integers(1, 9), min_size=1))
    topics, next_part = {}, 1
    for name, count in counts.items():
        topics[name] = list(range(next_part, next_part + count))
        next_part += count
    everything = sorted(topics)
    interests = st.just(everything) if alike else st.lists(st.sampled_from(everything), unique=True)
    members = draw(st.dictionaries(st.integers(1, 50), interests, min_size=1, max_size=7))
    owners = draw(st.dictionaries(st.integers(1, next_part), st.sampled_from([*members, 99])))
    return members, topics, owners


@given(groups())
def test_every_subscribed_partition_has_one_subscribed_owner(group):
    members, topics, owners = group
    target = assign(members, topics, owners)
    wanted = {
        part: name
        for name, parts in topics.items()
        for part in parts
        if any(name in names for names in members.values())
    }
    assert set(target) == set(wanted)
    assert all(wanted[part] in members[member] for part, member in target.items())


@pytest.mark.medium
@given(groups())
def test_shares_within_a_topic_differ_by_at_most_one(group):
    members, topics, owners = group
    target = assign(members, topics, owners)
    for name, parts in topics.items():
        shares = [sum(target.get(part) == member for part in parts) for member in members if name in members[member]]
        assert not shares or max(shares) - min(shares) <= 1


@pytest.mark.medium
@given(groups(alike=True))
def test_shares_of_members_with_the_same_topics_differ_by_at_most_one_overall(group):
    members, topics, owners = group
    shares = Counter(dict.fromkeys(members, 0)) + Counter()
    shares.update(assign(members, topics, owners).values())
    counted = [shares[member] for member in members]
    assert max(counted) - min(counted) <= 1


@given(groups())
def test_applying_it_twice_changes_nothing(group):
    members, topics, owners = group
    target = assign(members, topics, owners)
    assert assign(members, topics, target) == target


@pytest.mark.medium
@given(groups())
def test_the_order_of_members_does_not_matter(group):
    members, topics, owners = group
    assert assign(dict(reversed(members.items())), dict(reversed(topics.items())), owners) == assign(
        members, topics, owners
    )


@pytest.mark.medium
@given(groups())
def test_owners_give_up_only_what_exceeds_their_share(group):
    members, topics, owners = group
    target = assign(members, topics, owners)
    for name, parts in topics.items():
        for member in (member for member in members if name in members[member]):
            before = {part for part in parts if owners.get(part) == member}
            after = {part for part in parts if target.get(part) == member}
            assert before >= after or before <= after


@pytest.mark.medium
@given(groups(alike=True), st.data())
def test_taking_free_partitions_step_by_step_ends_in_balance(group, data):
    members, topics, _ = group
    target = assign(members, topics, {})
    leaver = data.draw(st.sampled_from(sorted(members)))
    left = {member: names for member, names in members.items() if member != leaver}
    owners = {part: member for part, member in target.items() if member != leaver}
    for _ in range(2):
        for member in data.draw(st.permutations(sorted(left))):
            wanted = {part for part, holder in assign(left, topics, owners).items() if holder == member}
            owners = {part: holder for part, holder in owners.items() if holder != member or part in wanted}
            owners |= {part: member for part in wanted if part not in owners}
    assert not left or owners == assign(left, topics, owners)
