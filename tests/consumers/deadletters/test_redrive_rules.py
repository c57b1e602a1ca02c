"""Whether, as what and how fast a dead letter is sent back: the rules, without a log."""

from __future__ import annotations

import os
from typing import Any

import msgspec
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from bus.protocol.canonical import digest
from bus.protocol.reasons import DECIDED_BY_BYTES
from bus.protocol.timestamps import format_ms
from bus.transports.base import Headers, NewRecord, Record
from consumers.deadletters.journal import Begun, is_at_work, process_of, this_process
from consumers.deadletters.letter_state import (
    MAX_REDRIVES,
    IllegalStepError,
    LetterState,
    Step,
    follow_states,
    known_state_of,
    read_state,
    state_of,
)
from consumers.deadletters.letters import DeadLetter, read_dead_letter
from consumers.deadletters.records import CONTROL_HEADERS, Control, Failure, dead_letter_record, read_control, stub
from consumers.deadletters.redrive_rules import (
    Leave,
    Park,
    RateLimit,
    RedriveCount,
    RedriveCounts,
    RedriveOrders,
    Send,
    Twin,
    death_noted,
    death_of,
    death_told,
    decide_redrive,
    send_back,
)
from consumers.deadletters.redrive_words import forged_lines, unchanged_lines
from consumers.deadletters.selection import Selection

NOW_MS = 1_767_225_600_000
STATES = ("open", "redriven", "parked", "dismissed")
ACTIONS = ("sending", "redriven", "unsent", "twin", "parked", "dismissed")

names = st.sampled_from(
    [
        "content-type",
        "sb-type",
        "x",
        "__dlq.errors.topic",
        "sb-dlq-reason",
        "sb-redrive-count",
        *sorted(CONTROL_HEADERS),
    ]
)
headers = st.lists(st.tuples(names, st.binary(max_size=4)), max_size=6).map(tuple)
states = st.sampled_from(STATES)
steps = st.builds(
    Step,
    at=st.just(format_ms(NOW_MS)),
    action=st.sampled_from(ACTIONS),
    by=st.text(max_size=3),
    run=st.text(min_size=1, max_size=3),
)
known = st.builds(
    LetterState,
    state=states,
    origin=st.just("agents.a.b/3/42"),
    group=st.just("g"),
    count=st.integers(0, 5),
    content=st.sampled_from(["", digest(b"v")]),
    steps=st.lists(steps, max_size=3).map(tuple),
)
counts = st.integers(0, 6)
deep = pytest.param(b'{"x":' + b"[" * 100_000 + b"]" * 100_000 + b"}", id="100,000 levels")
values = st.none() | st.binary(max_size=3)


def letter_of(
    *,
    own: Headers = (),
    count: int = 0,
    group: str = "g",
    reason: str = "rejected",
    is_stub: bool = False,
    value: bytes | None = b"v",
) -> DeadLetter:
    came = Record("agents.a.b", 3, 42, NOW_MS, b"k", value, own)
    failure = Failure(reason=reason, error="Reject")
    control = Control("agents.a.b", 3, 42, redrive_count=count)
    new = dead_letter_record(came, control, failure, group=group, now_ms=NOW_MS, honoured=False, details=False)
    return read_dead_letter(laid(stub(came, new, failure) if is_stub else new))


def laid(new: NewRecord) -> Record:
    return Record(new.topic, 1, 7, NOW_MS, new.key, new.value, new.headers)


def step(action: Any) -> Step:
    return Step(at=format_ms(NOW_MS), action=action, by="me@here", run="r")


def judged(letter: DeadLetter, state: LetterState | None = None, *, sent_ms: int | None = None, **orders: Any) -> Any:
    return decide_redrive(letter, state, RedriveOrders(**orders), sent_ms=sent_ms, now_ms=NOW_MS)


@given(headers, counts)
def test_a_redrive_sends_the_original_bytes_with_the_buss_control_headers(own: Headers, count: int) -> None:
    letter = letter_of(own=own, count=count)
    back = send_back(letter, "agents", 0)
    assert (back.topic, back.key, back.value) == ("agents._redrive.g", b"k", b"v")
    assert tuple(header for header in back.headers if header[0] not in CONTROL_HEADERS) == tuple(
        header for header in own if header[0] not in CONTROL_HEADERS
    )
    control = read_control(laid(back))
    assert (control.origin_topic, control.origin_partition, control.origin_offset) == ("agents.a.b", 3, 42)
    assert (control.attempt, control.not_before_ms, control.extend_until_ms) == (0, 0, 0)
    assert (control.redrive_count, control.first_failed_at_ms) == (count + 1, NOW_MS)


@given(headers, counts, values)
def test_a_record_sent_back_tells_which_death_it_undoes(own: Headers, count: int, value: bytes | None) -> None:
    letter = letter_of(own=own, count=count, value=value)
    assert death_told(laid(send_back(letter, "agents", 0)), "g") == death_of(letter)


@given(headers, counts)
def test_dying_again_is_another_death_of_the_same_origin(own: Headers, count: int) -> None:
    letter = letter_of(own=own, count=count)
    back = laid(send_back(letter, "agents", NOW_MS + 1))
    again = dead_letter_record(
        back,
        read_control(back),
        Failure(reason="rejected", error="x"),
        group="g",
        now_ms=NOW_MS,
        honoured=True,
        details=False,
    )
    second = read_dead_letter(laid(again))
    assert (second.record.topic, second.origin, second.redrive_count) == (letter.record.topic, letter.origin, count + 1)
    assert death_of(second) != death_of(letter)
    assert second.record.value == letter.record.value


@given(values, values)
def test_two_messages_that_died_at_one_place_are_two_deaths(value: bytes | None, other: bytes | None) -> None:
    """A topic that was deleted and made anew has every place a second time."""
    assume((value or b"") != (other or b""))
    assert death_of(letter_of(value=value)) != death_of(letter_of(value=other))


@given(values, counts)
def test_a_stub_identifies_the_death_of_its_message(value: bytes | None, count: int) -> None:
    assert death_of(letter_of(value=value, count=count, is_stub=True)) == death_of(letter_of(value=value, count=count))


@pytest.mark.parametrize("junk", [None, b"", b"\xff", b"[]", b"{}", b'{"sha256":7}', b'{"sha256":"sha256:0"}', deep])
def test_what_only_calls_itself_a_stub_has_the_content_it_has(junk: bytes | None) -> None:
    called = Record("agents.a.b.dlq", 0, 0, NOW_MS, None, junk, (("sb-dlq-stub", b"1"),))
    assert read_dead_letter(called).content == digest(junk or b"")


@given(values, counts)
def test_a_state_identifies_its_letter_and_an_older_state_any_at_its_location(value: bytes | None, count: int) -> None:
    letter = letter_of(value=value, count=count)
    state = follow_states(letter, None, step("redriven"))
    assert death_noted(state) == death_of(letter)
    older = msgspec.structs.replace(state, content="")
    assert b"content" not in (older.record("agents", letter.place).value or b"")
    assert death_noted(older) in death_of(letter).forms
    assert death_noted(older) in death_of(letter_of(value=b"another", count=count)).forms
    assert death_noted(older) not in death_of(letter_of(value=value, count=count + 1)).forms


@given(st.none() | known, counts, st.booleans(), st.booleans(), st.none() | st.integers(NOW_MS - 5, NOW_MS + 5))
def test_what_was_sent_back_or_purged_or_is_a_stub_is_never_sent(
    state: LetterState | None, count: int, force: bool, is_stub: bool, sent_ms: int | None
) -> None:
    letter, state = letter_of(count=count, is_stub=is_stub), state and msgspec.structs.replace(state, count=count)
    verdict = judged(letter, state, sent_ms=sent_ms, force=force)
    if isinstance(verdict, Send):
        assert not is_stub
        assert state is None or state.state in ("open", "parked")
        assert force or (count < MAX_REDRIVES and (state is None or state.state == "open"))
        assert sent_ms is None or sent_ms < NOW_MS


@pytest.mark.parametrize("reason", sorted(DECIDED_BY_BYTES))
def test_what_the_bytes_decide_is_sent_back_by_force_alone(reason: str) -> None:
    assert judged(letter_of(reason=reason)) == Leave("decided by its bytes")
    assert isinstance(judged(letter_of(reason=reason), force=True), Send)


def test_what_may_be_forged_and_would_be_sent_is_named() -> None:
    counted = {("send", "signature_missing"): 2, ("send", "rejected"): 3, ("decided by its bytes", "hash_mismatch"): 4}
    plan = RedriveCounts()
    for (verdict, reason), letters in counted.items():
        plan.counts[RedriveCount(verdict, reason, "a.b", "g")] = letters
    (hint,) = forged_lines(plan)
    assert hint.startswith("hint: 2 signature_missing may be forged")
    (left,) = unchanged_lines(plan)
    assert left.startswith("4 left: a redrive cannot change 4 hash_mismatch")


@pytest.mark.parametrize("reason", ["key_unknown", "signature_missing", "sender_mismatch", "unknown_type", "oversized"])
def test_what_keys_code_or_settings_decide_is_sent_back(reason: str) -> None:
    assert isinstance(judged(letter_of(reason=reason)), Send)


@given(st.none() | known, counts, st.booleans(), st.none() | st.integers(NOW_MS - 5, NOW_MS + 5))
def test_every_verdict_can_be_written_down(
    state: LetterState | None, count: int, force: bool, sent_ms: int | None
) -> None:
    letter, state = letter_of(count=count), state and msgspec.structs.replace(state, count=count)
    match judged(letter, state, sent_ms=sent_ms, force=force):
        case Send():
            sending = follow_states(letter, state, step("sending"))
            assert sending.sending == "r"
            assert sending.state == (state.state if state else "open"), (
                "until it is known to have gone nothing has changed"
            )
            assert follow_states(letter, sending, step("redriven")).state == "redriven"
            assert not follow_states(letter, sending, step("unsent")).sending
        case Park():
            assert follow_states(letter, state, step("parked")).state == "parked"
        case Twin():
            assert follow_states(letter, state, step("twin")).state == "redriven"
        case Leave():
            assert state is not None


@pytest.mark.parametrize("digits", [15, 16, 18, 19])
def test_a_letter_state_round_trips_for_any_redrive_count(digits: int) -> None:
    letter = letter_of(count=10**digits - 1)
    written = follow_states(letter, None, step("dismissed")).record("agents", letter.place)
    assert read_state(laid(written)) == (letter.place, follow_states(letter, None, step("dismissed")))


@given(st.none() | known, counts, st.sampled_from(ACTIONS))
def test_a_state_is_read_back_as_it_was_written_and_nothing_leads_out_of_purged(
    state: LetterState | None, count: int, action: Any
) -> None:
    letter, state = letter_of(count=count), state and msgspec.structs.replace(state, count=count)
    try:
        after = follow_states(letter, state, step(action))
    except IllegalStepError:
        assert state is not None
        assert state.state in ("redriven", "dismissed")
        return
    assert state is None or state.state != "dismissed"
    written = after.record("agents", letter.place)
    assert written.topic == "agents._deadletters"
    assert read_state(laid(written)) == (letter.place, after)


@given(known, counts, values, st.sampled_from(["g", "h"]), st.sampled_from(ACTIONS))
def test_the_state_of_an_earlier_letter_at_the_same_location_is_ignored(
    state: LetterState, count: int, value: bytes | None, group: str, action: Any
) -> None:
    """A topic of dead letters that was deleted and made anew has every place a second time."""
    letter = letter_of(count=count, group=group, value=value)
    assume((state.group, state.count) != (group, count) or state.content not in ("", letter.content))
    assert known_state_of(letter, state) is None
    assert state_of(letter, state) == state_of(letter, None)
    assert judged(letter, state) == judged(letter, None)
    assert follow_states(letter, state, step(action)) == follow_states(letter, None, step(action))


@given(known, counts, values)
def test_a_letter_state_of_an_older_version_still_applies_and_gains_the_content(
    state: LetterState, count: int, value: bytes | None
) -> None:
    letter = letter_of(count=count, value=value)
    older = msgspec.structs.replace(state, count=count, content="")
    assert known_state_of(letter, older) == older
    assert state.state == "open" or state_of(letter, older) == state.state
    if state.state != "dismissed":
        after = follow_states(letter, older, step("dismissed"))
        assert (after.state, after.content, after.steps) == (
            "dismissed",
            letter.content,
            (*state.steps, step("dismissed")),
        )


def test_a_letter_is_parked_when_it_dies_after_its_last_redrive() -> None:
    assert [state_of(letter_of(count=count), None) for count in range(5)] == [
        "open",
        "open",
        "open",
        "parked",
        "parked",
    ]
    assert isinstance(judged(letter_of(count=MAX_REDRIVES)), Park)
    parked = follow_states(letter_of(count=MAX_REDRIVES), None, step("parked"))
    assert judged(letter_of(count=MAX_REDRIVES), parked) == Leave("parked")
    assert isinstance(judged(letter_of(count=MAX_REDRIVES), parked, force=True), Send)


@pytest.mark.parametrize(
    ("letter", "why"),
    [
        (letter_of(is_stub=True), "stub"),
        (letter_of(group="No Group"), "no group"),
        (msgspec.structs.replace(letter_of(), topic="no such topic"), "unreadable origin"),
        (msgspec.structs.replace(letter_of(), topic="elsewhere.a.b"), "unreadable origin"),
    ],
)
def test_a_letter_that_cannot_be_redriven_has_a_reason(letter: DeadLetter, why: Any) -> None:
    assert judged(letter, force=True) == Leave(why)


def test_a_foreign_record_in_a_dead_letter_topic_is_skipped() -> None:
    foreign = read_dead_letter(Record("agents.a.b.dlq", 0, 0, NOW_MS, None, b"?", ()))
    assert judged(foreign) == Leave("no group")
    named = msgspec.structs.replace(foreign, group="g")
    assert judged(named) == Leave("unreadable origin")


@pytest.mark.parametrize("junk", [b"", b"{", b"[]", b'{"state":"lost"}', b"\xff", deep])
def test_invalid_state_records_are_ignored(junk: bytes) -> None:
    read = read_state(Record("agents._deadletters", 0, 0, 0, b"a/0/0", junk, ()))
    assert read is None or read == ("a/0/0", None)


@given(st.floats(0.1, 10_000) | st.none(), st.booleans(), st.lists(st.booleans(), min_size=1, max_size=40))
def test_redrive_batches_respect_the_rate_and_shrink_after_a_failure(
    rate: float | None, watchful: bool, deaths: list[bool]
) -> None:
    pace, failures, elapsed_s = RateLimit(rate=rate, watchful=watchful), 0, 0.0
    for died in deaths:
        elapsed_s = max(elapsed_s, pace.due_s())
        size = pace.next_piece()
        assert 1 <= size <= 500
        assert rate is None or pace.sent <= rate * elapsed_s + 1e-6
        failures += died
        pace.passed(size, failures)
        if died and watchful:
            assert pace.next_piece() <= 10


@given(states, st.sampled_from(["g", "h"]), st.sampled_from(["rejected", "expired"]))
def test_every_filter_that_is_given_must_hold(state: Any, group: str, reason: str) -> None:
    letter = letter_of(group=group, reason=reason)
    assert Selection().takes(letter, state)
    assert Selection(group="g").takes(letter, state) == (group == "g")
    assert Selection(reasons=frozenset({"rejected"}), states=frozenset({"open"})).takes(letter, state) == (
        reason == "rejected" and state == "open"
    )
    assert Selection(since_ms=NOW_MS, until_ms=NOW_MS, message_type="a.b", places=frozenset({letter.place})).takes(
        letter, state
    )
    assert not Selection(since_ms=NOW_MS + 1).takes(letter, state)
    assert not Selection(until_ms=NOW_MS - 1).takes(letter, state)
    assert not Selection(sender="somebody").takes(letter, state)
    assert Selection(ends={("agents.a.b.dlq", 1): 8}).takes(letter, state)
    assert not Selection(ends={("agents.a.b.dlq", 1): 7, ("agents.a.b.dlq", 0): 8}).takes(letter, state)
    assert not Selection(message_type="a.c").takes(letter, state)


@given(headers, headers)
def test_headers_that_look_like_ours_are_told_apart_from_ours(own: Headers, other: Headers) -> None:
    assume(own != other)
    assert letter_of(own=own).headers == own


@pytest.mark.parametrize(
    ("begun", "wrote_ago_ms", "at_work"),
    [
        ({"host": "here", "pid": 7}, 0, False),
        ({"host": "here", "pid": 8}, 9_999_999, True),
        ({"host": "here", "pid": 9}, 0, False),
        ({"host": "there", "pid": 9}, 1_000, True),
        ({"host": "there", "pid": 9}, 61_000, False),
        ({"host": "there", "pid": 9, "appended_ms": NOW_MS - 1_000}, 61_000, True),
        ({"host": "there", "pid": 9, "at": format_ms(NOW_MS)}, 61_000, False),
        ({}, 61_000, False),
    ],
)
def test_a_run_without_an_end_is_at_work_while_its_process_lives_or_it_wrote_lately(
    begun: dict[str, Any], wrote_ago_ms: int, at_work: bool
) -> None:
    here = {"host": "here", "pid": 7}
    run = Begun(event="redrive.started", run="r", **begun)
    assert (
        is_at_work(run, wrote_ms=NOW_MS - wrote_ago_ms, now_ms=NOW_MS, here=here, lives=lambda pid: pid == 8) == at_work
    )


def test_a_run_whose_process_number_another_process_has_by_now_has_ended() -> None:
    here, parent = this_process(), os.getppid()
    process = process_of(parent)
    if not process:
        pytest.skip("this system does not tell processes of one number apart")
    begun = Begun(event="redrive.started", run="r", host=here["host"], pid=parent, process=process)
    assert is_at_work(begun, wrote_ms=0, now_ms=NOW_MS, here=here)
    assert not is_at_work(msgspec.structs.replace(begun, process=f"{process}0"), wrote_ms=0, now_ms=NOW_MS, here=here)
