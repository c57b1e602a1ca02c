"""What was decoded is guarded by less, and as well: the two guards of a type agree about everything that is written as
it was read."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import defstruct

from bus.errors import ContractError
from bus.payloads.output_guard import make_decoded_guard, make_full_guard, make_guard
from bus.payloads.payload_types import encode_payload, payload, payload_type
from bus.protocol import canonical


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


FLOATS = st.floats(allow_nan=False, allow_infinity=False) | st.sampled_from(
    [0.0, -0.0, 1.0, 1e-5, 9.99e-6, 1e15, 1e-7, 1e21, 0.1, -0.1, 2.5]
)
INTEGERS = st.integers() | st.sampled_from([2**53 - 1, 2**53, -(2**53) + 1, -(2**53)])


@given(
    st.none() | FLOATS,
    st.none() | INTEGERS,
    st.lists(st.tuples(FLOATS, INTEGERS), max_size=3),
    st.lists(FLOATS, max_size=3),
)
def test_both_guards_agree_about_what_was_decoded(
    weight: Any, count: Any, steps: list[tuple[float, int]], shares: list[float]
) -> None:
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
        assert proven is not None or not plain(opened)
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


@pytest.mark.parametrize("name", ["class", "from", "None"])
def test_fields_named_like_a_keyword_are_left_to_the_exact_way(name: str) -> None:
    made = msgspec.defstruct("Made", [(name, int)])
    assert (make_guard(made), make_decoded_guard(made), make_full_guard(made)) == (None, None, None)
    kind = payload("guard.made")(made)
    assert encode_payload(kind(**{name: 1})) == b'{"%s":1}' % name.encode()


class Part(msgspec.Struct, frozen=True):
    name: str
    good: bool = True
    kind: Literal["a", "b"] = "a"


@payload("guard.whole", version="1.0.0")
class Whole(msgspec.Struct, frozen=True, kw_only=True):
    text: str
    count: int = 0
    ratio: float = 0.5
    maybe: str | None = None
    parts: list[Part] = []
    names: tuple[str, ...] = ()


ANYTHING = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(st.characters())
    | st.lists(st.text(), max_size=2)
    | st.binary()
)
WHOLES = st.builds(
    Whole,
    text=ANYTHING,
    count=ANYTHING,
    ratio=ANYTHING | FLOATS,
    maybe=ANYTHING,
    parts=ANYTHING
    | st.lists(st.builds(Part, ANYTHING, ANYTHING, ANYTHING | st.sampled_from(["a", "b", "c"])), max_size=2),
    names=ANYTHING | st.lists(ANYTHING, max_size=2) | st.lists(st.text(), max_size=2).map(tuple),
)
GOOD = st.builds(
    Whole,
    text=st.text(),
    count=st.integers(-(2**53) + 1, 2**53 - 1),
    ratio=FLOATS,
    maybe=st.none() | st.text(),
    parts=st.lists(st.builds(Part, st.text(), st.booleans(), st.sampled_from(["a", "b"])), max_size=2),
    names=st.lists(st.text(), max_size=2).map(tuple),
)


@given(WHOLES | GOOD)
def test_what_the_full_guard_passes_is_canonical_and_decodes_again(value: Whole) -> None:
    full = make_full_guard(Whole)
    assert full is not None
    if full(value):
        try:
            data = msgspec.json.Encoder(order="sorted").encode(value)
        except ValueError:
            return
        assert data == canonical.encode(msgspec.to_builtins(value))
        msgspec.json.decode(data, type=Whole)


def test_the_full_guard_passes_what_is_plain() -> None:
    full = make_full_guard(Whole)
    assert full is not None
    assert full(Whole(text="x", count=3, ratio=0.25, maybe="y", parts=[Part("z")], names=("n",)))


@pytest.mark.parametrize(
    "annotation",
    [Annotated[str, msgspec.Meta(max_length=3)], Annotated[int, msgspec.Meta(ge=0)], dict[str, str], bytes, Any, Sly],
)
def test_constraints_and_open_types_have_no_full_guard(annotation: Any) -> None:
    assert make_full_guard(msgspec.defstruct("Made", [("field", annotation)])) is None


@pytest.mark.parametrize("value", [9, 1.0, 1e20, 2**64, "x"])
def test_a_field_that_is_null_seals_nothing_else(value: object) -> None:
    cls = payload("guards.null")(defstruct("Null", [("nothing", None)]))
    assert encode_payload(cls(None)) == b'{"nothing":null}'
    with pytest.raises(ContractError, match="/data/nothing"):
        encode_payload(cls(value))


@pytest.mark.parametrize("levels", [21, 100, 300])
def test_a_deep_type_is_marked_or_refused_in_a_sentence(levels: int) -> None:
    annotation: Any = int
    for _ in range(levels):
        annotation = list[annotation] | None
    cls, mark = defstruct("Deep", [("x", annotation)]), payload("guards.deep")
    if levels > 100:
        with pytest.raises(ContractError, match="nest deeper"):
            mark(cls)
    else:
        assert encode_payload(mark(cls)([])) == b'{"x":[]}'


def test_a_name_that_python_reads_as_another_is_written_by_the_exact_way() -> None:
    cls = payload("guards.ligature")(defstruct("Ligature", [("\ufb01", float)], rename={"\ufb01": "fi"}))
    assert encode_payload(cls(1e22)) == b'{"fi":1e+22}'
    assert encode_payload(cls(1.0)) == b'{"fi":1}'
