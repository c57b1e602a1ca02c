"""What a store keeps of a handler's outputs, and what it knows a message by."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bus.transports.base import NewRecord
from consumers.delivery.inbox.base import InboxKey
from consumers.delivery.inbox.row_encoding import decode_outputs, encode_outputs, key_digest, key_text

TEXTS = st.sampled_from(["", "a", "a.b", '"', ",", '","', "\\", "ä", "\0"])
BYTES = st.none() | st.binary(max_size=3)
HEADERS = st.lists(st.tuples(TEXTS, st.binary(max_size=3)), max_size=3).map(tuple)
RECORDS = st.builds(NewRecord, TEXTS, BYTES, BYTES, HEADERS, st.none() | st.integers(0, 2**31 - 1))
KEYS = st.builds(InboxKey, *[TEXTS] * 5)


@pytest.mark.medium
@given(st.lists(RECORDS, max_size=4))
def test_rows_round_trip(outputs: list[NewRecord]) -> None:
    assert decode_outputs(encode_outputs(outputs)) == tuple(outputs)


def test_no_outputs_take_no_bytes() -> None:
    assert encode_outputs(()) == b""


def test_what_was_stored_under_version_1_stays_readable() -> None:
    stored = b"\x92\x01\x91\x95\xa5a.b.c\xc4\x01k\xc0\x91\x92\xa5sb-id\xc4\x02\x00\xff\x03"
    outputs = (NewRecord("a.b.c", b"k", None, (("sb-id", b"\x00\xff"),), 3),)
    assert decode_outputs(stored) == outputs
    assert encode_outputs(outputs) == stored


def test_a_key_is_one_readable_text() -> None:
    key = InboxKey("agents", "planner@svc", "research.request", "researchers", 'task "ä"')
    assert key_text(key) == '["agents","planner@svc","research.request","researchers","task \\"ä\\""]'


@given(KEYS, KEYS)
def test_two_keys_never_have_the_same_text(one: InboxKey, other: InboxKey) -> None:
    assert (key_text(one) == key_text(other)) == (one == other)


def test_a_stored_digest_stays_the_same_in_every_release() -> None:
    # Rows are found by it: another one would let everything run again.
    assert key_digest("ä").hex() == "33e6d73fee82904c8d7afb78de1154d1e8dc2a0edb08120e63df5b9385c2d9cc"
