"""What was decoded is guarded by less, and as well: the two guards of a type agree about everything that is written as it was read."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bus import canonical
from bus.guards import make_decoded_guard, make_guard
from bus.payloads import payload, payload_type


class Step(msgspec.Struct, frozen=True):
    score: float
    tokens: int = 0


@payload("guard.plan", version="1.0.0")
class Plan(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    weight: float | None = None
    count: int | None = None
    steps: list[Step] = []
    shares: tuple[float, ...] = ()
    note: str = ""
    share: float = 1


@payload("guard.sly", version="1.0.0")
class Sly(msgspec.Struct):
    """Puts a float where its type says integer: written again, 1.0 is 1.0."""

    count: int

    def __post_init__(self) -> None:
        self.count = float(self.count)  # type: ignore[assignment]


class Outer(msgspec.Struct):
    inner: list[Sly]


@payload("guard.open", version="1.0.0")
class Open(msgspec.Struct):
    anything: dict[str, Any]


FLOATS = st.floats(allow_nan=False, allow_infinity=False) | st.sampled_from([0.0, -0.0, 1.0, 1e-5, 9.99e-6, 1e15, 1e-7, 1e21, 0.1, -0.1, 2.5])
INTEGERS = st.integers() | st.sampled_from([2**53 - 1, 2**53, -(2**53) + 1, -(2**53)])


@given(st.none() | FLOATS, st.none() | INTEGERS, st.lists(st.tuples(FLOATS, INTEGERS), max_size=3), st.lists(FLOATS, max_size=3))
def test_both_guards_agree_about_what_was_decoded(weight: Any, count: Any, steps: list[tuple[float, int]], shares: list[float]) -> None:
    plain, decoded = make_guard(Plan), make_decoded_guard(Plan)
    assert plain is not None
    assert decoded is not None
    value = Plan(weight=weight, count=count, steps=[Step(*step) for step in steps], shares=tuple(shares))
    data = msgspec.json.encode(value, order="sorted")
    try:
        opened = msgspec.json.decode(data, type=Plan)
    except msgspec.ValidationError:
        return
    if msgspec.json.encode(opened, order="sorted") == data:
        assert decoded(opened) == plain(opened)
        proven = payload_type(Plan).prove(data)
        assert (proven is not None) == plain(opened)
        if proven is not None:
            assert canonical.is_canonical(data, canonical.parse(data))


@pytest.mark.parametrize("cls", [Sly, Outer])
def test_what_a_post_init_changes_is_looked_at_again(cls: type[msgspec.Struct]) -> None:
    data = b'{"count":1}' if cls is Sly else b'{"inner":[{"count":1}]}'
    opened = msgspec.json.decode(data, type=cls)
    decoded = make_decoded_guard(cls)
    assert decoded is not None
    assert not decoded(opened)


def test_where_nothing_can_be_said_there_is_no_guard() -> None:
    assert make_guard(Open) is None
    assert make_decoded_guard(Open) is None
