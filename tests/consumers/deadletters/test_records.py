"""Dead letters keep what came and say why; retries keep what came and say when."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bus.protocol.reasons import GATE_NAMES, REASONS, gate_of
from bus.transports.base import NewRecord, Record, check_topic_name
from consumers.deadletters.letters import read_dead_letter
from consumers.deadletters.records import (
    CONTROL_HEADERS,
    Control,
    Failure,
    dead_letter_record,
    read_control,
    reappend,
    stub,
)

NAMES = st.sampled_from(
    ["content-type", "sb-type", "x", "__dlq.errors.topic", "sb-dlq-reason", *sorted(CONTROL_HEADERS)]
)
HEADERS = st.lists(st.tuples(NAMES, st.binary(max_size=4)), max_size=6).map(tuple)
RECORDS = st.builds(
    Record,
    topic=st.just("agents.a.b"),
    partition=st.integers(0, 9),
    offset=st.integers(0, 2**53),
    timestamp_ms=st.just(0),
    key=st.none() | st.binary(max_size=5),
    value=st.none() | st.binary(max_size=5),
    headers=HEADERS,
)
CONTROL = Control(
    "agents.a.b",
    3,
    42,
    attempt=2,
    not_before_ms=5,
    first_failed_at_ms=6,
    error="ValueError",
    extend_until_ms=7,
    redrive_count=8,
)
FAILED_MS = 1_767_225_600_000


def buried(
    record: Record, control: Control = CONTROL, *, honoured: bool = False, details: bool = False, **failure: Any
) -> NewRecord:
    told = Failure(**{"reason": "rejected", "error": "Reject"} | failure)
    return dead_letter_record(record, control, told, group="g", now_ms=FAILED_MS, honoured=honoured, details=details)


def record(*headers: tuple[str, bytes], value: bytes | None = b"v") -> Record:
    return Record("agents.a.b", 3, 42, 0, b"k", value, headers)


@given(RECORDS)
def test_key_value_and_the_senders_headers_are_kept_byte_for_byte(came: Record) -> None:
    letter = buried(came)
    assert (letter.topic, letter.key, letter.value) == ("agents.a.b.dlq", came.key, came.value)
    assert letter.headers[: len(came.headers)] == came.headers


@given(RECORDS)
def test_from_the_buss_own_topics_its_control_headers_are_not_kept(came: Record) -> None:
    kept = tuple(header for header in came.headers if header[0] not in CONTROL_HEADERS)
    letter = buried(came, honoured=True)
    assert letter.headers[: len(kept)] == kept
    assert not {name for name, _ in letter.headers[len(kept) :]} & (CONTROL_HEADERS - {"sb-redrive-count"})


@given(RECORDS, st.sampled_from(sorted(REASONS)))
def test_a_letter_is_read_back_whatever_the_sender_put_into_its_headers(came: Record, reason: str) -> None:
    letter = buried(came, reason=reason, pointer="/metadata/hops")
    told = read_dead_letter(Record(letter.topic, 0, 0, 0, letter.key, letter.value, letter.headers))
    assert (told.reason, told.gate, told.error, told.pointer) == (reason, gate_of(reason), "Reject", "/metadata/hops")
    assert (told.topic, told.partition, told.offset, told.group, told.attempts) == ("agents.a.b", 3, 42, "g", 2)
    assert told.failed_at == "2026-01-01T00:00:00.000Z"
    assert not told.is_stub


def test_what_the_bus_did_not_add_is_not_read_from_the_senders_headers() -> None:
    letter = buried(record(("sb-dlq-stub", b"1"), ("sb-dlq-pointer", b"/forged")))
    told = read_dead_letter(Record(letter.topic, 0, 0, 0, letter.key, letter.value, letter.headers))
    assert (told.is_stub, told.pointer) == (False, "")


def test_the_headers_are_those_of_the_contract() -> None:
    assert dict(buried(record()).headers) == {
        "sb-dlq-id": b"c0e8c2c1b01a2cc2e289d55a21590bb4",
        "__dlq.errors.topic": b"agents.a.b",
        "__dlq.errors.partition": b"3",
        "__dlq.errors.offset": b"42",
        "__dlq.errors.group": b"g",
        "__dlq.errors.delivery.count": b"2",
        "__dlq.errors.message": b"rejected",
        "sb-dlq-reason": b"rejected",
        "sb-dlq-gate": b"handler",
        "sb-dlq-error": b"Reject",
        "sb-dlq-failed-at": b"2026-01-01T00:00:00.000Z",
        "sb-redrive-count": b"8",
    }


def test_texts_are_left_out_unless_details_are_asked_for() -> None:
    secret = ValueError("password")
    plain, told = (
        dict(buried(record(), text="password", exception=secret, details=details).headers) for details in (False, True)
    )
    assert plain["sb-dlq-error"] == b"Reject"
    assert b"password" in told["sb-dlq-error"]


def test_details_take_at_most_eight_kibibytes() -> None:
    assert len(dict(buried(record(), text="x" * 10**6, details=True).headers)["sb-dlq-error"]) == 8_192


def test_a_hostile_pointer_does_not_make_a_letter_too_large_to_store() -> None:
    letter = buried(record(), pointer="/" + "x" * 10**6)
    assert len(dict(letter.headers)["sb-dlq-pointer"]) <= 1_024
    assert (
        sum(len(value) for _, value in stub(record(), letter, Failure(reason="malformed", error="E")).headers) < 4_096
    )


def test_a_dead_letter_with_an_invalid_unicode_pointer_is_stored() -> None:
    letter = buried(record(), pointer="/data/\ud800")
    assert dict(letter.headers)["sb-dlq-pointer"] == b"/data/?"


def test_a_stub_names_what_is_lost() -> None:
    came = record(("x", b"own"), value=b"too large")
    letter = stub(came, buried(came, reason="oversized"), Failure(reason="oversized", error="E"))
    assert letter.key is None
    assert json.loads(letter.value or b"") == {
        "reason": "oversized",
        "sha256": "sha256:" + hashlib.sha256(b"too large").hexdigest(),
        "size": 9,
    }
    told = read_dead_letter(Record(letter.topic, 0, 0, 0, letter.key, letter.value, letter.headers))
    assert told.is_stub
    assert (told.topic, told.partition, told.offset, told.reason) == ("agents.a.b", 3, 42, "oversized")
    assert told.headers == ()


def test_a_stub_leaves_the_senders_headers_behind_whatever_their_names() -> None:
    came = record(("sb-dlq-evil", b"x" * 10**6), ("__dlq.errors.topic", b"x" * 10**6))
    letter = stub(came, buried(came), Failure(reason="rejected", error="E"))
    assert sum(len(content) for _, content in letter.headers) < 1_000
    assert dict(letter.headers)["__dlq.errors.topic"] == b"agents.a.b"


@given(RECORDS)
def test_a_retry_record_is_the_same_message_with_the_buss_own_control(came: Record) -> None:
    again = reappend(came, CONTROL, "agents._retry.g.5s")
    assert (again.topic, again.key, again.value) == ("agents._retry.g.5s", came.key, came.value)
    back = Record(again.topic, 0, 0, 0, again.key, again.value, again.headers)
    assert read_control(back) == CONTROL
    once_more = reappend(back, CONTROL, "agents._retry.g.5s")
    assert once_more == again


@pytest.mark.parametrize("text", [b"", b"-1", b"x", b"1.5", b"\xff", "\u0663".encode(), b" 1"])
def test_unreadable_control_counts_as_absent(text: bytes) -> None:
    control = read_control(
        record(
            *[
                (name, text)
                for name in ("sb-attempt", "sb-not-before", "sb-extend-until", "sb-redrive-count", "sb-first-failed-at")
            ]
        )
    )
    assert control == Control("agents.a.b", 3, 42)


def test_a_moment_with_more_digits_than_any_time_never_comes() -> None:
    assert read_control(record(("sb-not-before", b"9" * 16))).not_before_ms >= 10**15


def test_every_reason_has_a_gate() -> None:
    assert {gate_of(reason) for reason in REASONS} == {gate for gate, reasons in GATE_NAMES.items() if reasons}


ILLEGAL = [
    b"",
    b"no such topic",
    b"\xff\xff",
    b"bad topic!/..",
    b"a\0b",
    b"x" * 300,
    b"agents." + b"x" * 240,
    b"elsewhere.a.b",
    b"a.b",
    b"agents._retry.no good.5s",
]


@pytest.mark.parametrize("origin", ILLEGAL)
def test_an_origin_that_takes_no_dead_letters_counts_as_absent(origin: bytes) -> None:
    came = record(("sb-origin-topic", origin), ("sb-origin-partition", b"7"), ("sb-origin-offset", b"8"))
    assert read_control(came) == Control("agents.a.b", 3, 42)


@given(st.binary(max_size=20) | st.text(max_size=20).map(lambda text: f"agents.{text}".encode()))
def test_the_dead_letter_of_whatever_origin_has_a_legal_topic(origin: bytes) -> None:
    came = record(("sb-origin-topic", origin))
    check_topic_name(buried(came, read_control(came), honoured=True).topic)
