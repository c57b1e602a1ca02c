"""Who is to blame for a process's death: whoever was alone at it, and suspects run alone."""

from __future__ import annotations

from typing import Literal

from consumers.delivery.crashes.crash_rules import (
    CrashCount,
    Death,
    Mark,
    RecordLocation,
    after,
    is_given_up,
    unexpired,
)

NOW_MS = 1_767_225_600_000


def mark(
    offset: int, kind: Literal["handler", "inbox", "judged"] = "handler", *, name: str = "", redrives: int = 0
) -> Mark:
    return Mark("agents.a", 0, offset, name or f"id-{offset}", redrives, kind)


def tolled(*deaths: tuple[Mark, ...]) -> dict[RecordLocation, CrashCount]:
    tolls: dict[RecordLocation, CrashCount] = {}
    for running in deaths:
        tolls = after(tolls, Death(1, NOW_MS, running))
    return tolls


def test_a_message_among_others_is_a_suspect_at_the_second_death() -> None:
    once = tolled((mark(1), mark(2)))
    assert not any(toll.suspect for toll in once.values())
    twice = tolled((mark(1), mark(2)), (mark(1), mark(3)))
    assert [toll.key.offset for toll in twice.values() if toll.suspect] == [1]
    assert all(toll.deaths == 0 for toll in twice.values())


def test_three_deaths_alone_and_it_is_given_up() -> None:
    for count in (1, 2):
        (toll,) = tolled(*[(mark(1),)] * count).values()
        assert toll.suspect
        assert not is_given_up(toll, 0)
    (toll,) = tolled(*[(mark(1),)] * 3).values()
    assert is_given_up(toll, 0)


def test_a_message_with_a_row_in_an_inbox_is_company_and_is_not_counted() -> None:
    (toll,) = tolled((mark(1), mark(2, "inbox"))).values()
    assert (toll.offset, toll.deaths) == (1, 0)


def test_the_record_that_was_being_judged_stands_alone_whatever_ran_beside_it() -> None:
    tolls = tolled((mark(1), mark(2, "judged")))
    assert tolls[mark(2, "judged").key].deaths == 1
    assert tolls[mark(1).key].deaths == 0


def test_a_redrive_forgives_deaths_and_not_suspicion() -> None:
    dead = [(mark(1),)] * 3
    (toll,) = tolled(*dead).values()
    assert not is_given_up(toll, 1)
    (toll,) = tolled(*dead, (mark(1, redrives=1),)).values()
    assert (toll.deaths, toll.suspect, is_given_up(toll, 1)) == (1, True, False)


def test_another_message_in_the_same_place_begins_anew() -> None:
    (toll,) = tolled((mark(1, name="before"),), (mark(1, name="before"),), (mark(1, name="since"),)).values()
    assert (toll.name, toll.deaths) == ("since", 1)


def test_what_is_old_is_forgotten() -> None:
    tolls = tolled((mark(1),))
    assert unexpired(tolls, NOW_MS + 29 * 86_400_000) == tolls
    assert unexpired(tolls, NOW_MS + 31 * 86_400_000) == {}
