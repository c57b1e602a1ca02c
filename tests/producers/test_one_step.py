"""Sealing in one compiled step gives the very records that Python alone gives, or leaves the message to it."""

from __future__ import annotations

import math
from typing import Any, Literal

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bus import native
from bus.clock import ManualClock
from bus.payloads.payload_types import payload
from bus.protocol.envelope import Agent
from bus.settings.loading import load
from producers.outcomes import PublishRejected
from producers.sealing.options import Outgoing
from producers.sealing.sealed_record import SealedRecord
from producers.sealing.sealer import Sealer, make_sealer
from tests.twins_alone import twins_alone

compiled = pytest.mark.skipif(native.core is None, reason="the compiled hot path is not built: make native")


class Inner(msgspec.Struct, frozen=True, rename="camel"):
    z_first: int = 0
    a_last: float = 0.5
    note: str | None = None


class Empty(msgspec.Struct, frozen=True):
    pass


@payload("steps.rich")
class Rich(msgspec.Struct, kw_only=True):
    integer: int = 0
    real: float = 0.5
    text: str = ""
    flag: bool = False
    nothing: None = None
    word: Literal["a", 'b"\n'] = "a"
    maybe: int | None = None
    numbers: list[float] = []
    inners: tuple[Inner, ...] = ()
    nested: list[list[str]] = []
    empty: Empty = Empty()


@payload("steps.omitting")
class Omitting(msgspec.Struct, omit_defaults=True):
    n: int = 0


@payload("steps.checked")
class Checked(msgspec.Struct):
    n: int

    def __post_init__(self) -> None:
        if self.n < 0:
            raise ValueError("negative")


def checked(n: int) -> Checked:
    """One that may have become what it must not be since it was built."""
    made = Checked(1)
    made.n = n
    return made


@payload("steps.open")
class Open(msgspec.Struct):
    anything: Any
    by_name: dict[str, int] = {}


class Loud(str):
    __slots__ = ()


class Grand(int):
    pass


class Longer(Inner, frozen=True):
    more: int = 1


TEXTS = (
    st.text(max_size=12)
    | st.text('ab"\\\n\x1f\x7fé', max_size=40)
    | st.sampled_from(
        ["\ud800", "\x00\x1f\x7f", 'a"b\\c\n\t\r\b\f', "\u2028\U0001f600", Loud("x"), "12345678\n", "1234567\n"]
    )
)
INTEGERS = st.integers() | st.sampled_from([2**53 - 1, 2**53, -(2**53) + 1, -(2**53), 2**64, 0, -1, Grand(3), True])
DECIMALS = st.builds(lambda digits, places: digits / 10**places, st.integers(-(10**14), 10**14), st.integers(0, 7))
BESIDE = st.builds(math.nextafter, DECIMALS, st.sampled_from([-math.inf, math.inf]))
REALS = (
    st.floats()
    | DECIMALS
    | BESIDE
    | st.integers(-(2**54), 2**54).map(float)
    | st.sampled_from([-0.0, 1e15, 1e-6, 1e-7, 999999999999999.9])
    | INTEGERS
)
INNERS = st.builds(Inner, z_first=INTEGERS, a_last=REALS, note=st.none() | TEXTS) | st.just(Longer())
ODD = st.sampled_from([None, "text", 1, 1.5, b"bytes", [], (), {}, True, {1}, Inner(), object()])


def mostly(usual: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.integers(0, 30).flatmap(lambda dice: ODD if dice == 0 else usual)


RICH = st.builds(
    Rich,
    integer=mostly(INTEGERS),
    real=mostly(REALS),
    text=mostly(TEXTS),
    flag=mostly(st.booleans()),
    nothing=mostly(st.none()),
    word=mostly(st.sampled_from(["a", 'b"\n', "c"])),
    maybe=mostly(st.none() | INTEGERS),
    numbers=mostly(st.lists(REALS, max_size=3)),
    inners=mostly(st.lists(INNERS, max_size=3).map(tuple)),
    nested=mostly(st.lists(st.lists(TEXTS, max_size=2), max_size=2)),
    empty=mostly(st.builds(Empty)),
)
KEYS = st.none() | st.sampled_from(["k", "", "a" * 256, "a" * 257, 'quo"te', "back\\slash", "\x7f", "é", Loud("k"), 7])
PAYLOADS = RICH | st.builds(Omitting, INTEGERS) | st.builds(Open, ODD) | st.builds(checked, st.integers(-3, 9))
DRAFTS = st.builds(
    Outgoing,
    payload=PAYLOADS,
    key=KEYS,
    idempotency_key=KEYS,
    conversation_id=KEYS,
    ttl_s=st.sampled_from([None, None, None, 5.0, 7, 0, True, 0.0015, math.nan, 1e9]),
    to=st.sampled_from([None, None, "b@svc", "c@svc"]),
    priority=st.sampled_from([None, None, 5, "high", True, 11]),
    rests_on=st.sampled_from([(), []]),
)
ITEMS = st.lists(PAYLOADS | DRAFTS, min_size=1, max_size=6)


def sealer(**flags: object) -> Sealer:
    settings = load(flags={"bus.url": "memory://", **flags}, env={}, file=None).settings
    return make_sealer(settings, "steps@tests", clock=ManualClock())


def sealed_by(each: Sealer, item: Any) -> SealedRecord | str:
    try:
        sealed = each.seal(item) if isinstance(item, Outgoing) else each.seal_plain(item)
        return msgspec.structs.replace(sealed, made=None)
    except PublishRejected as error:
        return str(error)


@pytest.mark.slow  # a thousand cases, each sealed twice
@compiled
@settings(max_examples=1_000, deadline=None)
@given(PAYLOADS | DRAFTS)
def test_the_compiled_step_seals_the_same_as_python(item: Any) -> None:
    quick = sealer()
    with twins_alone():
        plain = sealer()
    for first in (Rich(), Omitting(), Checked(1), Open(None), item, item):
        sealed_by(quick, first)
    quick._entropy = plain._entropy = bytes
    with twins_alone():
        expected = sealed_by(plain, item)
    assert sealed_by(quick, item) == expected


@pytest.mark.medium
@compiled
@settings(max_examples=300, deadline=None)
@given(ITEMS, st.booleans())
def test_a_batch_seals_the_same_as_single_calls(items: list[Any], as_tuple: bool) -> None:
    quick = sealer()
    quick._entropy = bytes
    for first in (Rich(), Omitting(), Checked(1), Open(None), *items, *items):
        sealed_by(quick, first)
    given_items = tuple(items) if as_tuple else items
    at = 0
    while at < len(items):
        sealed, records, size = quick.seal_run(given_items, at, max_count=4, room=1 << 20)
        assert len(sealed) <= 4
        assert records == [each.record for each in sealed]
        assert size == sum(len(record.value or b"") + len(record.key or b"") + 64 for record in records)
        for each, item in zip(sealed, items[at:], strict=False):
            assert each == sealed_by(quick, item)
        at += len(sealed) or 1


@compiled
def test_ordinary_messages_are_sealed_in_one_step() -> None:
    quick = sealer()
    rich = Rich(
        integer=-5, real=2.0, text="é\n", maybe=3, numbers=[1, 1.5, -0.0], inners=(Inner(note="x"),), nested=[["a"], []]
    )
    quick.seal_plain(rich)
    items = [rich, Outgoing(rich, key="k"), Outgoing(rich, idempotency_key="i", conversation_id="c")] * 3
    sealed, _, _ = quick.seal_run(items, 0, max_count=100, room=1 << 20)
    assert len(sealed) == len(items)
    assert len({each.message_id for each in sealed}) == len(items)
    assert sealed[0].message.data == (
        b'{"empty":{},"flag":false,"inners":[{"aLast":0.5,"note":"x","zFirst":0}],"integer":-5,"maybe":3,"nested":[["a"],[]],"nothing":null,'
        b'"numbers":[1,1.5,0],"real":2,"text":"\xc3\xa9\\n","word":"a"}'
    )


@compiled
def test_messages_with_options_are_sealed_in_one_step_and_apart_from_those_without() -> None:
    quick = sealer()
    rich = Rich()
    addressed = Outgoing(rich, to="b@tests", intent="try", priority=7, ttl_s=5.0)
    for _ in range(2):
        quick.seal(addressed)
    quick.seal_plain(rich)
    items = [addressed, Outgoing(rich, to="b@tests", intent="try", priority=7, ttl_s=9), rich, addressed]
    sealed, records, _ = quick.seal_run(items, 0, max_count=100, room=1 << 20)
    assert [
        (each.message.metadata.recipient, each.message.metadata.intent, each.message.routing.priority)
        for each in sealed
    ] == [(Agent(id="b@tests"), "try", 7)] * 2
    assert records[0].headers[-1] == ("sb-to", b"b@tests")
    bare, _, _ = quick.seal_run(items, 2, max_count=100, room=1 << 20)
    assert [each.message.metadata.recipient for each in bare] == [None]


def test_templates_are_bounded_whatever_options_come() -> None:
    quick = sealer()
    for number in range(2_000):
        for _ in range(2):
            quick.seal(Outgoing(Rich(), to=f"agent-{number}@tests"))
    assert quick._templates is None or len(quick._templates) <= 1_024


def test_an_option_that_is_no_unicode_text_is_refused_however_often_it_comes() -> None:
    quick = sealer()
    for _ in range(3):
        with pytest.raises(PublishRejected, match="a lone surrogate is not Unicode text"):
            quick.seal(Outgoing(Rich(), intent="\ud800"))


def test_a_class_in_place_of_a_payload_is_refused_for_what_it_is_itself() -> None:
    quick = sealer()
    assert sealed_by(quick, Rich) == "refused before sending: /data: Rich is a class: give an instance of it"
    refusal = sealed_by(quick, Inner)
    assert isinstance(refusal, str)
    assert "Inner is not a payload type" in refusal


@compiled
def test_a_run_ends_where_its_room_is_used_up_and_before_what_is_too_large() -> None:
    quick = sealer(**{"publish.max_message_bytes": 2_000})
    quick.seal_plain(Rich())
    small, large = Rich(text="s" * 100), Rich(text="l" * 5_000)
    assert len(quick.seal_run([small] * 9, 0, max_count=100, room=1)[0]) == 1
    assert len(quick.seal_run([small, small, large, small], 0, max_count=100, room=1 << 20)[0]) == 2
    assert quick.seal_run([large], 0, max_count=100, room=1 << 20) == ([], [], 0)
    with pytest.raises(PublishRejected, match="at most 2000 are allowed"):
        quick.seal_plain(large)


def test_a_payload_with_an_unset_field_is_left_to_python() -> None:
    quick = sealer()
    quick.seal_plain(Rich())
    broken = Rich()
    del broken.text
    assert quick.seal_run([broken], 0, max_count=1, room=1 << 20) == ([], [], 0)


ITEMS_OF_GREEDY: list[Any] = []


@payload("steps.greedy")
class Greedy(msgspec.Struct):
    hungry: bool = False

    def __post_init__(self) -> None:
        if self.hungry:
            ITEMS_OF_GREEDY.clear()


@compiled
def test_a_type_whose_own_code_empties_the_list_that_is_sent_ends_the_run() -> None:
    quick = sealer()
    quick.seal_plain(Greedy())
    greedy = Greedy()
    greedy.hungry = True
    ITEMS_OF_GREEDY[:] = [Greedy(), greedy, Greedy(), Greedy()]
    sealed, records, _ = quick.seal_run(ITEMS_OF_GREEDY, 0, max_count=100, room=1 << 20)
    assert len(sealed) == len(records) == 2


@payload("steps.early")
class Early(msgspec.Struct):
    later: Later | None = None


class Later(msgspec.Struct):
    n: int = 1


@compiled
def test_a_type_that_names_a_class_further_down_is_sealed_in_one_step() -> None:
    quick = sealer()
    quick.seal_plain(Early(Later()))
    sealed, _, _ = quick.seal_run([Early(Later(2))], 0, max_count=1, room=1 << 20)
    assert [each.message.data for each in sealed] == [b'{"later":{"n":2}}']
