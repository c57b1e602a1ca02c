"""Who is to blame for a process's death: whoever was alone at it, and suspects run alone."""

from __future__ import annotations

from typing import Literal

from consumers.delivery.crashes.crash_rules import (
    CrashCount,
    Death,
    Mark,
    RecordLocation,
    after,
    blames_of,
    is_given_up,
    unexpired,
)

NOW_MS = 1_767_225_600_000


def mark(
    offset: int, kind: Literal["handler", "inbox", "judged"] = "handler", *, name: str = "", redrives: int = 0
) -> Mark:
    return Mark("agents.a", 0, offset, name or f"id-{offset}", redrives, kind)


def tolled(*deaths: tuple[Mark, ...]) -> dict[RecordLocation, CrashCount]:
    crash_counts: dict[RecordLocation, CrashCount] = {}
    for running in deaths:
        crash_counts = after(crash_counts, Death(1, NOW_MS, running))
    return crash_counts


def test_a_message_among_others_is_a_suspect_at_the_second_death() -> None:
    once = tolled((mark(1), mark(2)))
    assert not any(crash_count.suspect for crash_count in once.values())
    twice = tolled((mark(1), mark(2)), (mark(1), mark(3)))
    assert [crash_count.key.offset for crash_count in twice.values() if crash_count.suspect] == [1]
    assert all(crash_count.deaths == 0 for crash_count in twice.values())


def test_three_deaths_alone_and_it_is_given_up() -> None:
    for count in (1, 2):
        (crash_count,) = tolled(*[(mark(1),)] * count).values()
        assert crash_count.suspect
        assert not is_given_up(crash_count, 0)
    (crash_count,) = tolled(*[(mark(1),)] * 3).values()
    assert is_given_up(crash_count, 0)


def test_a_message_with_a_row_in_an_inbox_is_company_and_is_not_counted() -> None:
    (crash_count,) = tolled((mark(1), mark(2, "inbox"))).values()
    assert (crash_count.offset, crash_count.deaths) == (1, 0)


def test_the_record_that_was_being_judged_stands_alone_whatever_ran_beside_it() -> None:
    crash_counts = tolled((mark(1), mark(2, "judged")))
    assert crash_counts[mark(2, "judged").key].deaths == 1
    assert crash_counts[mark(1).key].deaths == 0


def test_a_redrive_forgives_deaths_and_not_suspicion() -> None:
    dead = [(mark(1),)] * 3
    (crash_count,) = tolled(*dead).values()
    assert not is_given_up(crash_count, 1)
    (crash_count,) = tolled(*dead, (mark(1, redrives=1),)).values()
    assert (crash_count.deaths, crash_count.suspect, is_given_up(crash_count, 1)) == (1, True, False)


def test_another_message_in_the_same_place_begins_anew() -> None:
    (crash_count,) = tolled((mark(1, name="before"),), (mark(1, name="before"),), (mark(1, name="since"),)).values()
    assert (crash_count.name, crash_count.deaths) == ("since", 1)


def test_what_is_old_is_forgotten() -> None:
    crash_counts = tolled((mark(1),))
    assert unexpired(crash_counts, NOW_MS + 29 * 86_400_000) == crash_counts
    assert unexpired(crash_counts, NOW_MS + 31 * 86_400_000) == {}


def test_the_messages_that_ran_in_most_of_several_deaths_are_blamed_whatever_kind_they_are() -> None:
    first, second = Death(1, NOW_MS, (mark(1, "inbox"), mark(2))), Death(2, NOW_MS + 9, (mark(1, "inbox"), mark(3)))
    assert blames_of([first]) == ()
    (blame,) = blames_of([first, second, Death(3, NOW_MS + 20, ())])
    assert (blame.mark.name, blame.deaths, blame.at_ms) == ("id-1", 2, NOW_MS + 9)
    whole = [Death(pid, NOW_MS, tuple(mark(offset) for offset in range(100))) for pid in (1, 2)]
    assert len(blames_of(whole)) == 3
