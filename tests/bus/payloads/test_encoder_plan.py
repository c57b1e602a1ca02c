"""What the compiled encoder writes by a plan is what the general way writes; it says nothing of what that refuses."""

from __future__ import annotations

import datetime
import decimal
import enum
import gc
import math
import uuid
import weakref
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Generic, Literal, TypedDict, TypeVar
from unittest import mock
from zoneinfo import ZoneInfo

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import UNSET, Meta, UnsetType

from bus import native
from bus.errors import ContractError
from bus.payloads.encoder_plan import encoding_plan
from bus.payloads.payload_types import payload, payload_type

Item = TypeVar("Item")
compiled = pytest.mark.skipif(native.core is None, reason="the compiled hot path is not built: make native")


class Mode(enum.Enum):
    QUICK = "qui\nck"
    SLOW = "slow"


class Level(enum.IntEnum):
    LOW = 1
    DEEP = -7


class Huge(enum.IntEnum):
    MANY = 2**60


class Shouting(enum.Enum):
    A = "a"

    @property
    def value(self) -> str:
        return self.name * 3


class Right(enum.Flag):
    READ = 1
    WRITE = 2


class Point(msgspec.Struct, tag="point", frozen=True):
    y: float = 0.5
    x: int = 1


class Circle(msgspec.Struct, tag=2, tag_field="type", frozen=True):
    radius: float = 1.5


class Square(msgspec.Struct, tag=3, tag_field="type", frozen=True):
    size: Annotated[float, Meta(gt=0)] = 1.5


class Options(TypedDict, total=False):
    name: str
    weight: float


class Positive(msgspec.Struct, frozen=True):
    n: int = 1

    def __post_init__(self) -> None:
        if self.n <= 0:
            raise ValueError("not positive")


class Sparse(msgspec.Struct, omit_defaults=True, frozen=True):
    number: int = 0
    words: list[str] = []
    counts: dict[str, int] = msgspec.field(default_factory=dict)
    made: list[int] = msgspec.field(default_factory=lambda: [1])
    note: str | None = None
    mode: Mode = Mode.SLOW
    unset: int | UnsetType = UNSET
    last: str = "z"


class Floating(datetime.tzinfo):
    def utcoffset(self, _: datetime.datetime | None) -> datetime.timedelta:
        return datetime.timedelta(hours=2)

    def dst(self, _: datetime.datetime | None) -> None:
        return None

    def tzname(self, _: datetime.datetime | None) -> str:
        return "floating"


class LoudName(str):
    __slots__ = ()


class Line(msgspec.Struct, tag="line", frozen=True):
    length: int = 1


NAMES = (
    st.text(max_size=6)
    | st.text("abé\ud7ff\ue000\U0001f600", max_size=3)
    | st.sampled_from(["", "a", 'q"', "\n", "\ud800", LoudName("loud")])
)
NUMBERS = (
    st.integers() | st.floats() | st.integers(-9, 9) | st.sampled_from([2**53, 2**53 - 1, -0.0, 1e15, 1e-7, math.nan])
)
SCALARS = (
    st.none()
    | st.booleans()
    | NUMBERS
    | NAMES
    | st.sampled_from([b"bytes", {1}, object(), Mode.SLOW, Point(), datetime.date(2026, 1, 31)])
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=2).map(tuple)
        | st.dictionaries(NAMES | st.integers(), inner, max_size=3)
    ),
    max_leaves=8,
)
ZONES = st.sampled_from(
    [
        None,
        datetime.UTC,
        datetime.timezone(datetime.timedelta(hours=-5, minutes=-30)),
        datetime.timezone(datetime.timedelta(seconds=1)),
        ZoneInfo("Europe/Rome"),
        Floating(),
    ]
)
SHAPES: dict[str, tuple[Any, st.SearchStrategy[Any]]] = {
    "anything": (Any, VALUES),
    "any dict": (dict, VALUES),
    "by name": (dict[str, float], st.dictionaries(NAMES, NUMBERS, max_size=4)),
    "by name, any": (dict[str, Any], st.dictionaries(NAMES, VALUES, max_size=4)),
    "mapping": (Mapping[str, int], st.dictionaries(NAMES, NUMBERS, max_size=2)),
    "by choice": (dict[Literal["a", "b"], int], st.dictionaries(st.sampled_from(["a", "b", "c"]), st.integers(0, 3))),
    "by short name": (
        dict[Annotated[str, Meta(max_length=3)], bool],
        st.dictionaries(NAMES, st.booleans(), max_size=2),
    ),
    "by day": (dict[datetime.date, str], st.dictionaries(st.dates(), st.just("x"))),
    "short text": (Annotated[str, Meta(max_length=3)], NAMES),
    "some numbers": (Annotated[list[int], Meta(min_length=1)], st.lists(st.integers(-9, 9), max_size=2)),
    "positive": (Annotated[int, Meta(gt=0)], NUMBERS),
    "enum": (Mode, st.sampled_from([*Mode, "slow", Level.LOW])),
    "integer enum": (Level, st.sampled_from([*Level, 1])),
    "large enum": (Huge, st.sampled_from(list(Huge))),
    "enum with a value of its own": (Shouting, st.sampled_from(list(Shouting))),
    "flags": (Right, st.sampled_from([Right.READ, Right.READ | Right.WRITE])),
    "time": (datetime.datetime, st.builds(datetime.datetime.replace, st.datetimes(), tzinfo=ZONES)),
    "time with zone": (
        Annotated[datetime.datetime, Meta(tz=True)],
        st.builds(datetime.datetime.replace, st.datetimes(), tzinfo=ZONES),
    ),
    "time of day": (datetime.time, st.builds(datetime.time.replace, st.times(), tzinfo=ZONES)),
    "date": (datetime.date, st.dates() | st.datetimes()),
    "duration": (datetime.timedelta, st.timedeltas()),
    "uuid": (uuid.UUID, st.uuids() | st.just("no uuid")),
    "bytes": (bytes, st.binary(max_size=9) | st.just(bytearray(b"x"))),
    "decimal": (decimal.Decimal, st.decimals() | NUMBERS),
    "scalars": (int | str | float | bool | None, SCALARS),
    "list or dict": (
        list[int] | dict[str, int] | str,
        VALUES | st.lists(st.integers(0, 9)) | st.dictionaries(NAMES, st.integers(0, 9)),
    ),
    "one of two Structs": (
        Circle | Square,
        st.sampled_from([Circle(), Square(), Square(-1.0), Point(), Circle(radius=math.inf), None]),
    ),
    "tagged": (Sequence[Point], st.lists(st.sampled_from([Point(), Point(x=2), Circle(), Point(y=math.nan)]))),
    "choice": (Literal["a", 1, None], st.sampled_from(["a", "b", 1, 2, None, True, 1.0])),
    "row": (tuple[int, str, float], st.tuples(NUMBERS, NAMES, NUMBERS) | st.just((1, "a")) | st.just([1, "a", 0.5, 2])),
    "typed dict": (Options, st.fixed_dictionaries({"name": NAMES}, optional={"weight": NUMBERS, "more": NAMES})),
    "checked": (Positive, st.builds(Positive)),
    "sparse": (
        Sparse,
        st.builds(
            Sparse,
            number=st.sampled_from([0, 5, 2**60, True]),
            words=st.lists(NAMES, max_size=2),
            counts=st.dictionaries(NAMES, st.integers(0, 9), max_size=2),
            made=st.sampled_from([[], [1]]),
            note=st.none() | NAMES,
            mode=st.sampled_from(Mode),
            unset=st.just(UNSET) | NUMBERS,
            last=st.sampled_from(["z", "a"]),
        ),
    ),
    "set": (set[str], st.sets(st.text(max_size=3))),
}


def holder(annotation: Any) -> type[msgspec.Struct]:
    return payload("plans.holder")(msgspec.defstruct("Holder", [("before", int), ("x", annotation), ("behind", str)]))


def encoded(subject: msgspec.Struct) -> bytes | None:
    try:
        return payload_type(subject).encode(subject)
    except ContractError:
        return None


def encoded_in_python(subject: msgspec.Struct) -> bytes | None:
    with mock.patch.object(payload_type(subject).encoder, "compiled", None):
        return encoded(subject)


@pytest.mark.medium
@compiled
@pytest.mark.parametrize("shape", SHAPES)
def test_a_compiled_encoder_writes_what_the_general_way_writes(shape: str) -> None:
    annotation, values = SHAPES[shape]
    cls = holder(annotation)
    encoder = payload_type(cls).encoder.compiled

    @settings(max_examples=150, deadline=None)
    @given(values)
    def judge(value: Any) -> None:
        subject = cls(before=1, x=value, behind="\u00e9")
        expected = encoded_in_python(subject)
        written = None if encoder is None else encoder.encode(subject)
        assert written in (None, expected)
        assert encoded(subject) == expected

    judge()


ORDINARY: list[tuple[Any, Any, bytes]] = [
    (Any, {"b": [1, 2.5, None, True], "a": ("x", {})}, b'{"a":["x",{}],"b":[1,2.5,null,true]}'),
    (dict[str, Any], {"ü": 1, "z": 2.0, "a": "\n"}, b'{"a":"\\n","z":2,"\xc3\xbc":1}'),
    (Annotated[str, Meta(max_length=3)], "abc", b'"abc"'),
    (Mode, Mode.QUICK, b'"qui\\nck"'),
    (Level, Level.DEEP, b"-7"),
    (datetime.datetime, datetime.datetime(2026, 1, 31, 12, tzinfo=datetime.UTC), b'"2026-01-31T12:00:00Z"'),
    (datetime.date, datetime.date(2026, 1, 31), b'"2026-01-31"'),
    (uuid.UUID, uuid.UUID(int=1), b'"00000000-0000-0000-0000-000000000001"'),
    (decimal.Decimal, decimal.Decimal("1.50"), b'"1.50"'),
    (int | str, "five", b'"five"'),
    (Point | Line, Point(x=2), b'{"type":"point","x":2,"y":0.5}'),
    (tuple[int, str], (1, "a"), b'[1,"a"]'),
    (Literal["a", 1], 1, b"1"),
    (Options, {"name": "n", "weight": 2.5}, b'{"name":"n","weight":2.5}'),
    (Positive, Positive(3), b'{"n":3}'),
    (Sparse, Sparse(), b'{"made":[1]}'),
    (Sparse, Sparse(last="a", made=[1], number=2), b'{"last":"a","made":[1],"number":2}'),
]


@compiled
@pytest.mark.parametrize(("annotation", "value", "written"), ORDINARY)
def test_ordinary_payloads_are_encoded_in_one_step(annotation: Any, value: Any, written: bytes) -> None:
    cls = holder(annotation)
    assert (
        payload_type(cls).encoder.compiled.encode(cls(before=1, x=value, behind="b"))
        == b'{"before":1,"behind":"b","x":%b}' % written
    )


@compiled
@pytest.mark.parametrize("deep", [60, 61, 62, 63, 64])
def test_a_payload_may_be_as_deep_as_the_general_way_lets_it(deep: int) -> None:
    value: Any = []
    for _ in range(deep):
        value = [value]
    subject = holder(Any)(before=1, x=value, behind="")
    expected = encoded_in_python(subject)
    assert payload_type(subject).encoder.compiled.encode(subject) == expected


@compiled
def test_recursive_types_use_the_general_encoder() -> None:
    endless: list[Any] = []
    endless.append(endless)
    cls = holder(Any)
    assert payload_type(cls).encoder.compiled.encode(cls(before=1, x=endless, behind="")) is None


@compiled
def test_ctrl_c_in_a_types_own_code_is_not_a_validation_error() -> None:
    class Interrupted(msgspec.Struct):
        first: bool = True

        def __post_init__(self) -> None:
            if not self.first:
                raise KeyboardInterrupt

    cls = holder(Interrupted)
    value = Interrupted()
    value.first = False
    with pytest.raises(KeyboardInterrupt):
        payload_type(cls).encoder.compiled.encode(cls(before=1, x=value, behind=""))


@pytest.mark.medium
@compiled
def test_no_user_code_runs_while_a_payload_is_encoded() -> None:
    cls = holder(list[Options | datetime.date])
    encoder = payload_type(cls).encoder.compiled
    values = ["".join(("\ud800", "held by nobody else"))]
    subject = cls(before=1, x=values, behind="")

    def take_away(*_: object) -> None:
        if armed:
            values.clear()

    thresholds = gc.get_threshold()
    armed = False
    gc.callbacks.append(take_away)
    try:
        gc.collect()
        gc.disable()
        # Whatever is allocated next makes the collector run.
        filling: list[object] = [[] for _ in range(50)]
        gc.set_threshold(10)
        armed = True
        gc.enable()
        written = encoder.encode(subject)
        armed = False
    finally:
        gc.callbacks.remove(take_away)
        gc.set_threshold(*thresholds)
        gc.enable()
    assert filling
    assert written is None
    assert values


@pytest.mark.medium
def test_an_unreferenced_payload_class_is_garbage_collected() -> None:
    def holds_all() -> weakref.ref[type]:
        annotation: Any = tuple[Any, Mode, Sparse, datetime.datetime, dict[str, Circle | Square], int | str]
        return weakref.ref(payload_type(holder(annotation)).cls)

    gone = holds_all()
    gc.collect()
    assert gone() is None


class Named(msgspec.Struct):
    name: str = "n"
    size: int = 1


class Hiding(Named):
    @property  # type: ignore[misc]
    def size(self) -> int:
        return 7


def test_a_field_that_its_class_hides_is_left_to_the_general_way() -> None:
    payload("plans.hiding")(Hiding)
    assert payload_type(Hiding).encoder.compiled is None
    assert payload_type(Hiding).encode(Hiding()) == b'{"name":"n","size":1}'


class Pair(msgspec.Struct, Generic[Item], omit_defaults=True):
    first: Item
    others: list[Item] = []


class Even(msgspec.Struct, Generic[Item]):
    items: list[Item]

    def __post_init__(self) -> None:
        if len(self.items) % 2:
            raise ValueError("odd")


def test_a_generic_struct_is_encoded_by_its_arguments() -> None:
    cls = holder(Pair[int])
    assert payload_type(cls).encode(cls(before=1, x=Pair(2), behind="")) == b'{"before":1,"behind":"","x":{"first":2}}'
    with pytest.raises(ContractError, match="/data/x/first"):
        payload_type(cls).encode(cls(before=1, x=Pair("two"), behind=""))


def test_a_generic_struct_runs_its_own_code_before_it_is_written() -> None:
    cls = holder(Even[int])
    odd = Even([1, 2])
    odd.items.append(3)
    with pytest.raises(ContractError):
        payload_type(cls).encode(cls(before=1, x=odd, behind=""))


class Tree(msgspec.Struct):
    children: list[Tree] = []


class Row(msgspec.Struct, array_like=True):
    n: int = 0


@pytest.mark.parametrize("annotation", [Tree, Row, set[str], Shouting, Huge, dict[datetime.date, str], list[set[str]]])
def test_types_with_incomplete_annotations_have_no_plan(annotation: Any) -> None:
    assert encoding_plan(holder(annotation)) is None


@pytest.mark.parametrize(
    ("annotation", "certain"),
    [
        (str, True),
        (dict[str, Any], True),
        (Mode, True),
        (int | str | None, True),
        (list[Point | Line], True),
        (Annotated[int, Meta(ge=0)], False),
        (Positive, False),
        (Square, False),
        (uuid.UUID, False),
        (Literal["a", 1], False),
        (dict[Literal["a"], int], False),
        (Options, False),
        (Level | str, False),
    ],
)
def test_the_encoding_plan_is_certain_only_for_plain_annotations(annotation: Any, certain: bool) -> None:
    found = encoding_plan(holder(annotation))
    assert found is not None
    assert found[1] is certain
