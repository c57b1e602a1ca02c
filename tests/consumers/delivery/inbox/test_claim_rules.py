"""Who may have a message next: the table of cases, row by row."""

from __future__ import annotations

import msgspec
import pytest

from bus.transports.base import NewRecord
from consumers.delivery.inbox.base import AlreadyDone, Claimed, ClaimedElsewhere, Conflict, KeepsCrashing, Suspect
from consumers.delivery.inbox.claim_rules import (
    CLOSED,
    MAX_DEATHS,
    NOBODY,
    Claimant,
    ClaimRow,
    decide_claim,
    finished,
    released,
)
from consumers.delivery.inbox.row_encoding import encode_outputs

ME, OTHER = 7, 8
ALIVE, DEAD = 12.0, 0.0
OUTPUTS = (NewRecord("agents.note.added", b"k", b"v"),)


def row(**changes: object) -> ClaimRow:
    return msgspec.structs.replace(
        ClaimRow(content_hash="h", state="claimed", owner=OTHER, token=4, keep_until_ms=1000, starts=1), **changes
    )


def asker(**changes: object) -> Claimant:
    return Claimant(ME, "h", 1000, alone=True)._replace(**changes)


def test_without_a_row_the_first_token_is_given() -> None:
    written, claim = decide_claim(None, asker(), CLOSED)
    assert claim == Claimed(token=1, starts=1, alone=False)
    assert written == ClaimRow(content_hash="h", state="claimed", owner=ME, token=1, keep_until_ms=1000, starts=1)


def test_a_row_forgotten_under_a_run_is_still_held_by_it() -> None:
    assert decide_claim(None, asker(running=True), CLOSED) == (None, ClaimedElsewhere(1.0))


def test_what_is_done_answers_with_its_outputs() -> None:
    assert decide_claim(row(state="done", outputs=encode_outputs(OUTPUTS)), asker(), CLOSED) == (
        None,
        AlreadyDone(OUTPUTS),
    )


@pytest.mark.parametrize("state", ["claimed", "free", "done"])
@pytest.mark.parametrize("rest_s", [ALIVE, DEAD, CLOSED])
def test_other_content_is_a_conflict_in_any_state(state: str, rest_s: float | None) -> None:
    assert decide_claim(row(state=state), asker(content_hash="g"), rest_s) == (None, Conflict("h"))


@pytest.mark.parametrize(("rest_s", "wait_s"), [(12.0, 1.0), (0.4, 0.4), (0.001, 0.05)])
def test_a_living_holder_keeps_it_and_says_when_to_ask_again(rest_s: float, wait_s: float) -> None:
    assert decide_claim(row(), asker(), rest_s) == (None, ClaimedElsewhere(wait_s))


def test_what_this_process_runs_it_does_not_run_twice() -> None:
    assert decide_claim(row(owner=ME), asker(running=True), ALIVE) == (None, ClaimedElsewhere(1.0))


def test_a_release_that_failed_is_no_death() -> None:
    written, claim = decide_claim(row(owner=ME, starts=2, deaths=1, suspect=True, alone=True), asker(), ALIVE)
    assert claim == Claimed(token=5, starts=1, alone=False)
    assert written is not None
    assert (written.deaths, written.suspect) == (0, False)


def test_a_holder_that_closed_in_order_is_no_death() -> None:
    assert decide_claim(row(), asker(), CLOSED).claim == Claimed(token=5, starts=1, alone=False)


def test_after_one_death_it_runs_among_others_again() -> None:
    written, claim = decide_claim(row(starts=1), asker(alone=False), DEAD)
    assert claim == Claimed(token=5, starts=2, alone=False)
    assert written is not None
    assert (written.deaths, written.suspect, written.alone) == (0, False, False)


def test_whoever_ran_among_others_at_two_deaths_is_a_suspect_and_runs_alone() -> None:
    written, claim = decide_claim(row(starts=2), asker(), DEAD)
    assert claim == Claimed(token=5, starts=3, alone=True)
    assert written is not None
    assert (written.deaths, written.suspect, written.alone) == (0, True, True)


def test_a_death_alone_counts() -> None:
    written, claim = decide_claim(row(suspect=True, alone=True, starts=2), asker(), DEAD)
    assert claim == Claimed(token=5, starts=3, alone=True)
    assert written is not None
    assert written.deaths == 1


def test_the_third_death_alone_is_remembered() -> None:
    written, claim = decide_claim(row(suspect=True, alone=True, deaths=2), asker(), DEAD)
    assert claim == KeepsCrashing(MAX_DEATHS) == KeepsCrashing(3)
    assert written is not None
    assert (written.state, written.token) == ("free", 4)
    assert decide_claim(written, asker(), CLOSED) == (None, KeepsCrashing(MAX_DEATHS))


def test_a_redrive_forgives_deaths_once_but_not_suspicion() -> None:
    given_up = row(state="free", owner=0, suspect=True, deaths=MAX_DEATHS)
    written, claim = decide_claim(given_up, asker(reopen=1), CLOSED)
    assert claim == Claimed(token=5, starts=2, alone=True)
    assert written is not None
    assert (written.deaths, written.reopened) == (0, 1)
    died_again = decide_claim(
        msgspec.structs.replace(written, owner=OTHER, deaths=MAX_DEATHS - 1), asker(reopen=1), DEAD
    )
    assert died_again.claim == KeepsCrashing(MAX_DEATHS)
    assert died_again.row is not None
    assert isinstance(decide_claim(died_again.row, asker(reopen=2), CLOSED).claim, Claimed)


def test_a_redrive_does_not_reopen_what_is_done() -> None:
    assert decide_claim(row(state="done"), asker(reopen=1), CLOSED).claim == AlreadyDone(())


def test_a_free_row_is_claimed_with_a_higher_token_and_kept_for_longer() -> None:
    written, claim = decide_claim(row(state="free", owner=0, starts=0), asker(keep_until_ms=2000), CLOSED)
    assert claim == Claimed(token=5, starts=1, alone=False)
    assert written is not None
    assert written.keep_until_ms == 2000
    shorter, _ = decide_claim(row(state="free", owner=0), asker(keep_until_ms=1), CLOSED)
    assert shorter is not None
    assert shorter.keep_until_ms == 1000


def test_the_claims_own_token_finishes_it() -> None:
    done = finished(row(suspect=True, alone=True), owner=OTHER, token=4, outputs=b"x")
    assert done == row(state="done", starts=0, outputs=b"x")


def test_finished_twice_alike_changes_nothing_and_otherwise_is_stale() -> None:
    done = row(state="done", outputs=b"x")
    assert finished(done, owner=OTHER, token=4, outputs=b"x") is done
    assert finished(done, owner=OTHER, token=4, outputs=b"y") is None


@pytest.mark.parametrize(("owner", "token"), [(OTHER, 3), (OTHER, 5), (ME, 4)])
def test_any_other_token_neither_finishes_nor_releases(owner: int, token: int) -> None:
    assert finished(row(), owner=owner, token=token, outputs=b"") is None
    assert released(row(), owner=owner, token=token) is None


def test_a_row_that_is_gone_or_free_is_not_finished() -> None:
    assert finished(None, owner=OTHER, token=4, outputs=b"") is None
    assert finished(row(state="free"), owner=OTHER, token=4, outputs=b"") is None


def test_a_row_that_is_gone_free_or_done_is_not_released() -> None:
    assert released(None, owner=OTHER, token=4) is None
    assert released(row(state="free"), owner=OTHER, token=4) is None
    assert released(row(state="done"), owner=OTHER, token=4) is None


def test_an_orderly_release_clears_the_start_count() -> None:
    freed = released(row(starts=3, deaths=2, suspect=True, alone=True), owner=OTHER, token=4)
    assert freed == row(state="free", owner=0, starts=0)


def test_a_suspect_is_claimed_only_by_an_exclusive_run() -> None:
    written, claim = decide_claim(row(suspect=True, alone=True), asker(alone=False), DEAD)
    assert claim == Suspect()
    assert written == row(state="free", owner=NOBODY, suspect=True, deaths=1)
    assert decide_claim(written, Claimant(ME, "h", 1000), CLOSED).claim == Suspect()
    assert decide_claim(written, asker(), CLOSED).claim == Claimed(token=5, starts=2, alone=True)
