"""Presence: who counts as healthy, by the reader's monotonic clock alone."""

from __future__ import annotations

import time
from random import Random

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bus.protocol.identifiers import uuid7
from bus.vocabulary.agent import CurrentTask, RecentRuns, RunCount
from bus.vocabulary.parts import AgentCard
from producers.directory.presence import Presence, PresenceLimits, Work, accepts_version


def card(agent: str, *accepts: str, capabilities: tuple[str, ...] = ("search",)) -> AgentCard:
    return AgentCard(agent_id=agent, name=agent, version="1.0.0", capabilities=capabilities, accepts=accepts)


def beat(
    presence: Presence,
    session: str,
    at_s: float,
    *,
    agent: str = "a@svc",
    is_well: bool = True,
    sealed_ms: int | None = None,
) -> None:
    sealed_ms = round(at_s * 1000) if sealed_ms is None else sealed_ms
    presence.heard(agent, session, at_s, sealed_ms=sealed_ms, is_well=is_well, active_tasks=1, draining=False)


def leave(presence: Presence, session: str, at_s: float, sealed_ms: int | None = None) -> None:
    sealed_ms = round(at_s * 1000) if sealed_ms is None else sealed_ms
    presence.left("a@svc", session, sealed_ms=sealed_ms, at_s=at_s)


def show(presence: Presence, session: str, said: AgentCard, at_s: float, size: int = 100) -> None:
    presence.carded(said.agent_id, session, said, sealed_ms=round(at_s * 1000), at_s=at_s, size=size)


def health(presence: Presence, now_s: float) -> str:
    entry = presence.entry("a@svc", now_s)
    assert entry is not None
    return entry.health


RUNS = RecentRuns(within_s=60, took=(RunCount(up_to_s=1, runs=60),))


def task(message_id: str, since_ms: int) -> CurrentTask:
    return CurrentTask(message_type="task.request", message_id=message_id, conversation_id="c", since_ms=since_ms)


def works(presence: Presence, session: str, at_s: float, work: Work, *, is_well: bool = True) -> None:
    presence.heard(
        "a@svc",
        session,
        at_s,
        sealed_ms=round(at_s * 1000),
        is_well=is_well,
        active_tasks=1,
        draining=False,
        work=work,
    )


def test_an_instance_that_is_stuck_works_on_and_is_counted_with_its_work() -> None:
    presence = Presence(35)
    works(presence, "1", 100, Work(doing=(task("m1", 20),), places=10, busy=2, runs=RUNS), is_well=False)
    entry = presence.entry("a@svc", 101)
    assert entry is not None
    assert (entry.health, entry.unwell, entry.active_tasks) == ("unhealthy", 1, 1)
    assert (entry.busy, entry.places, entry.doing, entry.runs) == (2, 10, (task("m1", 20),), (RUNS,))


def test_an_agent_does_what_its_instances_do_that_are_heard() -> None:
    presence = Presence(35)
    works(presence, "1", 100, Work(doing=(task("m1", 20), task("m2", 30)), places=10, busy=2))
    works(presence, "2", 100, Work(doing=(task("m3", 10),), places=10, busy=1))
    works(presence, "3", 10, Work(doing=(task("m4", 1),), places=10, busy=1))
    beat(presence, "4", 100)
    entry = presence.entry("a@svc", 101)
    assert entry is not None
    assert [each.message_id for each in entry.doing] == ["m3", "m1", "m2"]
    assert (entry.places, entry.busy) == (20, 3)


def test_what_an_agent_does_is_unknown_where_no_heartbeat_says() -> None:
    presence = Presence(35)
    beat(presence, "1", 100)
    entry = presence.entry("a@svc", 101)
    assert entry is not None
    assert (entry.doing, entry.places, entry.busy) == ((), None, None)


def test_a_heartbeat_of_very_many_tasks_is_cut() -> None:
    presence = Presence(35)
    works(presence, "1", 100, Work(doing=tuple(task(f"m{number}", number) for number in range(500))))
    entry = presence.entry("a@svc", 101)
    assert entry is not None
    assert len(entry.doing) == 8


def test_the_versions_that_run_are_those_on_the_cards_of_healthy_instances() -> None:
    presence = Presence(35)
    for session, versions in {"1": ("1.0.0", "0.9"), "2": ("2.0.0", 7), "3": ("2.0.0", "x" * 500)}.items():
        said = msgspec.structs.replace(card("a@svc"), version=versions[0], metadata={"sealbus": versions[1]})
        show(presence, session, said, 100)
        beat(presence, session, 100)
    entry = presence.entry("a@svc", 101)
    assert entry is not None
    assert entry.versions == ("1.0.0", "2.0.0")
    assert entry.sealbus_versions == ("0.9", "x" * 64)


def test_an_agent_is_healthy_for_as_long_as_it_is_heard() -> None:
    presence = Presence(35)
    assert presence.entry("a@svc", 0) is None
    beat(presence, "1", 100)
    assert health(presence, 135) == "healthy"
    assert health(presence, 135.1) == "unhealthy"


def test_one_healthy_instance_is_enough() -> None:
    presence = Presence(35)
    beat(presence, "1", 100)
    beat(presence, "2", 130)
    entry = presence.entry("a@svc", 140)
    assert entry is not None
    assert (entry.health, entry.instances, entry.heard_s_ago) == ("healthy", 1, 10)


def test_a_goodbye_is_of_that_instance_alone() -> None:
    presence = Presence(35)
    beat(presence, "1", 100)
    beat(presence, "2", 100)
    leave(presence, "1", 100)
    assert health(presence, 101) == "healthy"
    leave(presence, "2", 100)
    assert health(presence, 101) == "gone"
    beat(presence, "3", 102)
    assert health(presence, 103) == "healthy"


def test_an_instance_that_has_left_does_not_come_back_by_a_beat_that_is_read_later() -> None:
    presence = Presence(35)
    leave(presence, "1", 101)
    beat(presence, "1", 100)
    assert health(presence, 101) == "gone"


def test_a_heartbeat_sealed_after_the_goodbye_counts() -> None:
    presence = Presence(35)
    beat(presence, "1", 102)
    leave(presence, "1", 103, sealed_ms=101_000)
    assert health(presence, 103) == "healthy"


def test_a_beat_that_is_read_again_or_was_sealed_before_the_newest_changes_nothing() -> None:
    presence = Presence(35)
    beat(presence, "1", 100)
    beat(presence, "1", 130, sealed_ms=100_000)
    beat(presence, "1", 131, sealed_ms=90_000, is_well=False)
    assert health(presence, 134) == "healthy"
    assert health(presence, 136) == "unhealthy"


def test_a_card_that_is_older_than_the_newest_changes_nothing() -> None:
    presence = Presence(35)
    beat(presence, "1", 100)
    show(presence, "1", card("a@svc", "new@1"), 100)
    presence.carded("a@svc", "1", card("a@svc", "old@1"), sealed_ms=99_000, at_s=101)
    entry = presence.entry("a@svc", 101)
    assert entry is not None
    assert entry.accepts == (("new@1",),)


def test_an_instance_reporting_itself_unhealthy_is_shown_so() -> None:
    presence = Presence(35)
    beat(presence, "1", 100, is_well=False)
    assert health(presence, 101) == "unhealthy"


def test_a_card_without_heartbeat_is_not_a_sign_of_life() -> None:
    presence = Presence(35)
    show(presence, "1", card("a@svc"), 0)
    assert health(presence, 0) == "unhealthy"


def test_capabilities_count_as_far_as_the_policy_grants_them() -> None:
    granted = frozenset({"search"})
    presence = Presence(35, granted_of=lambda _: granted)
    show(presence, "1", card("a@svc", capabilities=("search", "deploy")), 100)
    beat(presence, "1", 100)
    entry = presence.entry("a@svc", 100)
    assert entry is not None
    assert (entry.capabilities, entry.claimed) == (("search",), ("deploy",))
    assert not presence.found(100, capability="deploy")
    assert presence.found(100, capability="deploy", claimed=True)
    granted = frozenset({"deploy"})
    presence.regranted()
    assert presence.found(100, capability="deploy")


def test_an_instance_that_is_silent_for_ten_times_as_long_is_forgotten() -> None:
    presence = Presence(35)
    beat(presence, "1", 100)
    beat(presence, "2", 200)
    presence.forget(450)
    assert presence.instances == 2
    presence.forget(451)
    assert (presence.instances, list(presence.agents())) == (1, ["a@svc"])
    presence.forget(551)
    assert (presence.instances, list(presence.agents()), presence.entry("a@svc", 551)) == (0, [], None)


def test_agents_are_bounded_and_who_lives_keeps_the_place() -> None:
    presence = Presence(35, limits=PresenceLimits(agents=100))
    for number in range(1000):
        beat(presence, "1", 100, agent=f"a{number}@svc")
    assert (len(presence.agents()), presence.instances, presence.dropped) == (100, 100, 900)
    assert presence.entry("a0@svc", 100) is not None
    # Who is silent makes room for who comes.
    beat(presence, "1", 136, agent="new@svc")
    assert (len(presence.agents()), presence.entry("a0@svc", 136)) == (100, None)
    assert presence.entry("new@svc", 136) is not None


def test_instances_of_one_agent_are_bounded_and_leave_room_for_others() -> None:
    presence = Presence(35, limits=PresenceLimits(agents=10, instances=5))
    for session in range(100):
        beat(presence, str(session), 100)
    beat(presence, "1", 100, agent="b@svc")
    assert (presence.instances, presence.dropped) == (6, 95)


def test_all_instances_are_bounded() -> None:
    presence = Presence(35, limits=PresenceLimits(agents=2, instances=50))
    for session in range(10):
        for agent in ("a@svc", "b@svc"):
            beat(presence, str(session), 100, agent=agent)
    assert (presence.instances, presence.dropped) == (8, 12)


def test_cards_are_bounded_and_those_of_one_agent_leave_room_for_others() -> None:
    presence = Presence(35, limits=PresenceLimits(card_bytes=1_000, card_bytes_of_agent=500))
    for session in range(10):
        show(presence, str(session), card("a@svc"), 100)
    show(presence, "1", card("b@svc"), 100, size=500)
    show(presence, "1", card("c@svc"), 100, size=1)
    assert presence.dropped == 6
    assert presence.instances == 12
    for agent in ("b@svc", "c@svc"):
        beat(presence, "1", 100, agent=agent)
    assert [entry.agent_id for entry in presence.found(100, capability="search")] == ["b@svc"]
    # What is forgotten gives back its share.
    presence.forget(1000)
    show(presence, "1", card("c@svc"), 1000)
    beat(presence, "1", 1000, agent="c@svc")
    assert [entry.agent_id for entry in presence.found(1000, capability="search")] == ["c@svc"]


def test_found_are_those_with_all_that_is_asked_for_in_the_order_of_their_names() -> None:
    presence = Presence(35)
    for agent, accepts in (("c@svc", "order@1"), ("a@svc", "order@1"), ("b@svc", "bill@1")):
        show(presence, "1", card(agent, accepts), 100)
        beat(presence, "1", 100, agent=agent)
    assert [entry.agent_id for entry in presence.found(100, message_type="order")] == ["a@svc", "c@svc"]
    assert [entry.agent_id for entry in presence.found(136, healthy=False)] == ["a@svc", "b@svc", "c@svc"]
    assert not presence.found(136, message_type="order")


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


_said = st.tuples(st.sampled_from(["beat", "unwell", "leave"]), st.sampled_from(["1", "2"]), st.integers(0, 1000))


@given(st.lists(_said, min_size=1, unique_by=lambda said: said[1:]), st.randoms())
def test_the_order_in_which_records_come_and_how_often_means_nothing(
    said: list[tuple[str, str, int]], random: Random
) -> None:
    def told(records: list[tuple[str, str, int]]) -> Presence:
        presence = Presence(35)
        for what, session, at_s in records:
            if what == "leave":
                leave(presence, session, at_s)
            else:
                beat(presence, session, at_s, is_well=what == "beat")
        return presence

    again = [*said, *said]
    random.shuffle(again)
    assert told(said).entry("a@svc", 1000) == told(again).entry("a@svc", 1000)


def test_whoever_asks_waits_less_than_ten_milliseconds_with_all_places_taken() -> None:
    presence = Presence(35)
    for number in range(100_000):
        beat(presence, "1", 100, agent=f"made-up-{number}@svc")
    show(presence, "1", card("made-up-1@svc", "order@1"), 100)
    list(presence.renewed(100))

    def cost_s(now_s: float) -> float:
        begun_s = time.thread_time()
        presence.found(now_s, message_type="order", late_s=0.5)
        return time.thread_time() - begun_s

    assert min(cost_s(100) for _ in range(5)) < 0.01
    # All of them fall silent in one moment.
    assert min(cost_s(135.2) for _ in range(5)) < 0.01


def timed_beat(presence: Presence, session: str, at_s: float, offset_s: float = 0.0) -> None:
    presence.heard(
        "a@svc",
        session,
        at_s,
        sealed_ms=round(at_s * 1000),
        is_well=True,
        active_tasks=0,
        draining=False,
        clock_offset_s=offset_s,
    )


def test_a_silent_instance_is_lost_until_a_later_one_replaces_it() -> None:
    presence = Presence(35.0)
    timed_beat(presence, "one", 0)
    timed_beat(presence, "two", 0)
    timed_beat(presence, "two", 26)
    found = presence.entry("a@svc", 26)
    assert found is not None
    assert (found.lost, found.silent, found.health) == (1, 1, "healthy")
    timed_beat(presence, "three", 30)
    found = presence.entry("a@svc", 31)
    assert found is not None
    assert (found.lost, found.silent) == (0, 1)


def lost(presence: Presence, now_s: float) -> tuple[int, int]:
    found = presence.entry("a@svc", now_s)
    assert found is not None
    return found.lost, found.silent


def test_a_worker_that_is_started_again_and_again_is_one_that_was_replaced() -> None:
    presence = Presence(35.0)
    for at_s in range(0, 100, 20):
        timed_beat(presence, f"killed at {at_s}", at_s)
    assert lost(presence, 130) == (1, 5)
    timed_beat(presence, "stays", 131)
    assert lost(presence, 132) == (0, 5)
    told = []
    for now_s in (132, 180, 186, 200):
        timed_beat(presence, "stays", now_s)
        found = presence.entry("a@svc", now_s)
        told.append(found is not None and found.is_steady)
    assert told == [False, False, True, True]


def test_a_later_worker_that_has_ended_in_order_since_has_replaced_one_too() -> None:
    presence = Presence(35.0)
    timed_beat(presence, "killed", 0)
    timed_beat(presence, "next", 50)
    leave(presence, "next", 70)
    assert lost(presence, 80) == (0, 1)
    # One that ended before has replaced nobody.
    timed_beat(presence, "killed, too", 90)
    assert lost(presence, 120) == (1, 2)


def test_the_groups_of_lost_workers_are_known_where_none_else_is_heard() -> None:
    presence = Presence(35.0)
    show(presence, "one", msgspec.structs.replace(card("a@svc"), metadata={"group": "a-svc"}), 0)
    timed_beat(presence, "one", 0)
    found = presence.entry("a@svc", 26)
    assert found is not None
    assert (found.lost_groups, found.heard_groups) == (("a-svc",), ())
    # One that works on has the group, however many others were killed.
    show(presence, "two", msgspec.structs.replace(card("a@svc"), metadata={"group": "a-svc"}), 0)
    timed_beat(presence, "two", 27)
    found = presence.entry("a@svc", 28)
    assert found is not None
    assert (found.lost, found.lost_groups, found.heard_groups) == (1, (), ("a-svc",))


def test_one_heartbeat_that_was_long_under_way_says_nothing_about_a_clock() -> None:
    presence = Presence(35.0)
    for number, offset_s in enumerate((-0.1, -0.1, -40.0)):
        timed_beat(presence, "one", number * 10, offset_s)
    found = presence.entry("a@svc", 21)
    assert found is not None
    assert found.clock_offset_s > -1
    for number in range(3, 6):
        timed_beat(presence, "one", number * 10, -30.0)
    found = presence.entry("a@svc", 51)
    assert found is not None
    assert found.clock_offset_s == -30.0


def test_a_card_tells_which_member_of_which_group_sends_it_as_far_as_its_version_does() -> None:
    presence = Presence(35.0)
    started_ms = 1_700_000_000_000
    told = {"group": "shop-svc", "member": "host-1-0a", "inbox": "0000000f"}
    hostile = {"group": "shop-svc", "member": "\x1b[31m", "inbox": ["0"]}
    for session, metadata in ((uuid7(started_ms, bytes(10)), told), ("older", {"group": "shop-svc"}), ("h", hostile)):
        show(presence, session, msgspec.structs.replace(card("a@svc", "b.c@1", "b.a@2"), metadata=metadata), 1.0)
        beat(presence, session, 2.0)
    show(presence, "silent", msgspec.structs.replace(card("a@svc"), metadata=told), 1.0)
    entry = presence.entry("a@svc", 3.0)
    assert entry is not None
    first, older, other = entry.members
    assert (first.group, first.name, first.inbox, first.since_ms) == ("shop-svc", "host-1-0a", "0000000f", started_ms)
    assert first.handled == ("b.a", "b.c")
    assert (older.name, older.inbox, older.since_ms) == (other.name, other.inbox, other.since_ms) == ("", "", None)
