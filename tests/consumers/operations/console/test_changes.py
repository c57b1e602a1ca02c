"""Since when a fault is seen, and what has changed."""

from __future__ import annotations

from typing import Any

from consumers.operations.console.changes import Changes
from consumers.operations.survey.results import fault, hint, ok
from producers.directory.presence import AgentEntry

NOW_MS = 1_795_772_479_000


def agent(name: str, health: Any = "healthy", versions: tuple[str, ...] = ()) -> AgentEntry:
    return AgentEntry(agent_id=name, health=health, instances=1, heard_s_ago=1.0, versions=versions)


def lag(count: int, group: str = "reader-1") -> str:
    return f"{group} is {count} s behind in page.fetch: {count:,} records wait"


def test_a_fault_is_the_same_though_its_numbers_change() -> None:
    changes = Changes()
    changes.look(NOW_MS, [fault("groups", lag(12), "")], [])
    changes.look(NOW_MS + 9_000, [fault("groups", lag(1_204), "")], [])
    assert changes.since_ms(fault("groups", lag(99), "")) == NOW_MS


def test_a_fault_that_grows_or_gets_another_detail_is_the_same() -> None:
    changes = Changes()
    changes.look(NOW_MS, [fault("letters", "1 dead letter is open; 1 of them: rejected of shop.bill", "")], [])
    more = fault("letters", "46 dead letters are open, besides 2 that a person rejected; 40 of them: crash_loop", "")
    for later_s in (30, 60, 90, 120):
        changes.look(NOW_MS + 1_000 * later_s, [more], [])
    assert changes.since_ms(more) == NOW_MS
    assert list(changes.latest) == []


def test_names_with_digits_are_different_faults() -> None:
    changes = Changes()
    changes.look(NOW_MS, [fault("groups", lag(12), "")], [])
    changes.look(NOW_MS + 5_000, [fault("groups", lag(12), ""), fault("groups", lag(3, "reader-2"), "")], [])
    assert changes.since_ms(fault("groups", lag(4, "reader-2"), "")) == NOW_MS + 5_000


def test_a_fault_that_goes_for_a_moment_is_the_same_and_one_that_stays_away_is_over() -> None:
    changes = Changes()
    found = fault("inbox", "the inbox does not answer", "")
    changes.look(NOW_MS, [found], [])
    changes.look(NOW_MS + 10_000, [ok("inbox", "answers")], [])
    changes.look(NOW_MS + 20_000, [found], [])
    assert changes.since_ms(found) == NOW_MS
    changes.look(NOW_MS + 90_000, [ok("inbox", "answers")], [])
    assert changes.since_ms(found) is None
    assert changes.latest[0].text == "over: the inbox does not answer"


def test_the_first_look_is_no_change_and_hints_are_none() -> None:
    changes = Changes()
    changes.look(NOW_MS, [fault("letters", "3 dead letters are open", "")], [agent("a@lab")])
    changes.look(NOW_MS + 3_000, [hint("topics", "no group reads x")], [agent("a@lab")])
    assert list(changes.latest) == []


def test_agents_come_change_their_health_and_leave() -> None:
    changes = Changes()
    changes.look(NOW_MS, [], [agent("a@lab")])
    changes.look(NOW_MS + 3_000, [], [agent("a@lab", "unhealthy"), agent("b@lab")])
    changes.look(NOW_MS + 6_000, [], [agent("a@lab")])
    assert [each.text for each in reversed(changes.latest)] == [
        "a@lab is unhealthy",
        "b@lab came",
        "a@lab is healthy",
        "b@lab has left",
    ]


def test_another_version_of_an_agent_is_a_change() -> None:
    changes = Changes()
    changes.look(NOW_MS, [], [agent("a@lab", versions=("2.3.1",))])
    changes.look(NOW_MS + 3_000, [], [agent("a@lab", versions=("2.3.1", "2.4.0"))])
    (change,) = changes.latest
    assert (change.text, change.detail) == ("a@lab runs version 2.3.1, 2.4.0", "before: 2.3.1")


def test_it_keeps_the_newest_two_hundred() -> None:
    changes = Changes()
    changes.look(NOW_MS, [], [])
    for number in range(500):
        changes.look(NOW_MS + number, [], [agent(f"agent-{number}@lab")])
    assert len(changes.latest) == 200
