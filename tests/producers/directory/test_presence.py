"""Presence: who counts as healthy, by the reader's monotonic clock alone."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bus.vocabulary.parts import AgentCard
from producers.directory.presence import Presence, accepts_version


def card(agent: str, *accepts: str, capabilities: tuple[str, ...] = ("search",)) -> AgentCard:
    return AgentCard(agent_id=agent, name=agent, version="1.0.0", capabilities=capabilities, accepts=accepts)


def beat(presence: Presence, session: str, at_s: float, *, is_well: bool = True) -> None:
    presence.heard("a@svc", session, at_s, is_well=is_well, active_tasks=1, draining=False)


def health(presence: Presence, now_s: float) -> str:
    entry = presence.entry("a@svc", now_s, None)
    assert entry is not None
    return entry.health


def test_an_agent_is_healthy_for_as_long_as_it_is_heard() -> None:
    presence = Presence(35)
    assert presence.entry("a@svc", 0, None) is None
    beat(presence, "1", 100)
    assert health(presence, 135) == "healthy"
    assert health(presence, 135.1) == "unhealthy"


def test_one_healthy_instance_is_enough() -> None:
    presence = Presence(35)
    beat(presence, "1", 100)
    beat(presence, "2", 130)
    entry = presence.entry("a@svc", 140, None)
    assert entry is not None
    assert (entry.health, entry.instances) == ("healthy", 1)


def test_a_goodbye_is_of_that_instance_alone() -> None:
    presence = Presence(35)
    beat(presence, "1", 100)
    beat(presence, "2", 100)
    presence.left("a@svc", "1")
    assert health(presence, 101) == "healthy"
    presence.left("a@svc", "2")
    assert health(presence, 101) == "gone"
    beat(presence, "3", 102)
    assert health(presence, 103) == "healthy"


def test_an_instance_that_has_left_does_not_come_back_by_a_beat_that_is_read_later() -> None:
    presence = Presence(35)
    presence.left("a@svc", "1")
    beat(presence, "1", 100)
    assert health(presence, 101) == "gone"


def test_an_instance_that_says_it_is_unwell_is_believed() -> None:
    presence = Presence(35)
    beat(presence, "1", 100, is_well=False)
    assert health(presence, 101) == "unhealthy"


def test_a_card_alone_is_no_sign_of_life() -> None:
    presence = Presence(35)
    presence.carded("a@svc", "1", card("a@svc"))
    assert health(presence, 0) == "unhealthy"


def test_capabilities_count_as_far_as_the_policy_grants_them() -> None:
    presence = Presence(35)
    presence.carded("a@svc", "1", card("a@svc", capabilities=("search", "deploy")))
    beat(presence, "1", 100)
    entry = presence.entry("a@svc", 100, frozenset({"search"}))
    assert entry is not None
    assert (entry.capabilities, entry.claimed) == (("search",), ("deploy",))


@pytest.mark.parametrize(
    ("taken", "version", "takes"),
    [
        ("order@1", "1.4.2", True),
        ("order@1", "2.0.0", False),
        ("order@1.2", "1.1.9", False),
        ("order@1.2", "1.2.0", True),
        ("order@1.2.3", "1.2.3", True),
        ("order@1.2.3", "1.2.4", False),
        ("orders@1", "1.0.0", False),
    ],
)
def test_a_range_of_versions(taken: str, version: str, takes: bool) -> None:
    assert accepts_version([taken], "order", version) is takes


@given(st.lists(st.tuples(st.sampled_from(["1", "2"]), st.floats(0, 1000)), min_size=1))
def test_the_order_in_which_beats_come_means_nothing(beats: list[tuple[str, float]]) -> None:
    first, second = Presence(35), Presence(35)
    for session, at_s in beats:
        beat(first, session, at_s)
    for session, at_s in reversed(beats):
        beat(second, session, at_s)
    assert first.entry("a@svc", 1000, None) == second.entry("a@svc", 1000, None)
