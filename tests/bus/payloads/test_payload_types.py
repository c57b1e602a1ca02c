"""Payload types: what is written is canonical and reads back as its type, by the quick way and the exact way alike."""

from __future__ import annotations

import dataclasses
import enum
import json
import math
import random
import sys
import uuid
from datetime import UTC, date, datetime
from types import SimpleNamespace
from typing import Annotated, Any, ClassVar, Literal, TypedDict, cast

import msgspec
import pydantic
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bus import native
from bus.errors import ContractError, UnknownTypeError
from bus.payloads.payload_types import PayloadType, Registry, encode_payload, payload, payload_type
from bus.payloads.rules import Has, Is, Rule, when
from bus.payloads.upcasters import Upcaster
from bus.protocol import canonical, sealing
from bus.protocol.envelope import Agent, Metadata, Routing
from bus.protocol.sealing import Message
from tests.twins_alone import twins_alone


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Inner(msgspec.Struct, frozen=True):
    n: int = 0
    x: float = 0.5
    note: str | None = None


class Leaf(msgspec.Struct, tag="leaf"):
    value: float


class Pair(msgspec.Struct, array_like=True):
    left: int
    right: float


@payload("kinds.scalars")
class Scalars(msgspec.Struct, kw_only=True):
    integer: int = 0
    real: float = 0.5
    text: str = ""
    flag: bool = False
    at: datetime = datetime(2026, 1, 1, tzinfo=UTC)
    identity: uuid.UUID = uuid.UUID(int=1)
    raw: bytes = b""
    word: Literal["a", "b"] = "a"


@payload("kinds.optional")
class Optional(msgspec.Struct, kw_only=True, omit_defaults=True):
    integer: int | None = None
    real: float | None = None
    text: str | None = None
    inner: Inner | None = None


@payload("kinds.nested")
class Nested(msgspec.Struct, kw_only=True, rename="camel"):
    some_inner: Inner = Inner()
    z_list: list[int] = []
    a_tuple: tuple[float, ...] = ()
    inner_list: list[Inner] = []
    list_of_lists: list[list[float]] = []
    bounded: Annotated[int, msgspec.Meta(ge=0, le=9)] = 3


@payload("kinds.tagged")
class Tagged(msgspec.Struct, tag="zzz", tag_field="kind", kw_only=True):
    after: int = 0
    zebra: float = 0.5


@payload("kinds.open")
class Open(msgspec.Struct, kw_only=True):
    anything: Any = None
    table: dict[str, float] = {}
    colour: Colour = Colour.RED
    either: Inner | int | None = None
    leaf: Leaf | None = None
    pair: Pair | None = None
    members: set[str] = set()


@payload("kinds.strict")
class Strict(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    text: str
    real: float = 0.5


TYPES = (Scalars, Optional, Nested, Tagged, Open, Strict)
REGISTRY = Registry(TYPES)

INTEGERS = st.integers(-(2**70), 2**70) | st.sampled_from(
    [0, -1, 2**53 - 1, 2**53, -(2**53) + 1, -(2**53), 2**63, 2**64, 10**15, 10**16, 10**21]
)
FLOATS = st.floats() | st.sampled_from(
    [
        0.0,
        -0.0,
        1.0,
        -1.0,
        0.1,
        1e-5,
        9.999e-6,
        1e-6,
        1e-7,
        1e15,
        1e16,
        1e20,
        1e21,
        1e22,
        0.5,
        999999999999999.9,
        1e300,
        5e-324,
        2.5e15,
        -1e-5,
        123456.789,
    ]
)
TEXTS = st.text(alphabet=st.characters(exclude_categories=[]), max_size=5) | st.sampled_from(
    ['"', "\\", "\x7f", "\u2028", "/", "\x1f", "\U0001f600", "\ud800"]
)
INNERS = st.builds(Inner, n=INTEGERS, x=FLOATS, note=st.none() | TEXTS)
WRONG = st.one_of(
    st.none(),
    st.booleans(),
    INTEGERS,
    FLOATS,
    TEXTS,
    st.binary(max_size=4),
    st.just([1, 2]),
    st.just({"a": 1}),
    st.just({1: 2}),
    st.just(Inner()),
    st.just(Leaf(1.0)),
    st.just(Pair(1, 2.0)),
    st.just(object()),
    st.just(Colour.RED),
    st.just({"b", "a"}),
    st.just((1.5, 2.0)),
    st.just(uuid.UUID(int=7)),
    st.just(datetime(2026, 1, 1, 1, 2, 3, 4)),  # noqa: DTZ001 - wrong on purpose
    st.just([[]]),
    st.just([None]),
    st.just([math.nan]),
    st.just(msgspec.UNSET),
    st.just(Strict(text="x")),
)
RIGHT: dict[type[msgspec.Struct], dict[str, st.SearchStrategy[Any]]] = {
    Scalars: {
        "integer": INTEGERS,
        "real": FLOATS | INTEGERS,
        "text": TEXTS,
        "flag": st.booleans(),
        "at": st.datetimes(timezones=st.just(UTC)),
        "identity": st.uuids(),
        "raw": st.binary(max_size=9),
        "word": st.sampled_from(["a", "b", "c"]),
    },
    Optional: {
        "integer": st.none() | INTEGERS,
        "real": st.none() | FLOATS,
        "text": st.none() | TEXTS,
        "inner": st.none() | INNERS,
    },
    Nested: {
        "some_inner": INNERS,
        "z_list": st.lists(INTEGERS, max_size=3),
        "a_tuple": st.lists(FLOATS, max_size=3).map(tuple),
        "inner_list": st.lists(INNERS, max_size=2),
        "list_of_lists": st.lists(st.lists(FLOATS, max_size=2), max_size=2),
        "bounded": st.integers(-1, 10),
    },
    Tagged: {"after": INTEGERS, "zebra": FLOATS},
    Open: {
        "anything": st.recursive(
            st.none() | FLOATS | TEXTS | INTEGERS,
            lambda inner: st.lists(inner) | st.dictionaries(TEXTS, inner),
            max_leaves=4,
        ),
        "table": st.dictionaries(TEXTS, FLOATS, max_size=3),
        "colour": st.sampled_from(Colour),
        "either": st.none() | INTEGERS | INNERS,
        "leaf": st.none() | st.builds(Leaf, FLOATS),
        "pair": st.none() | st.builds(Pair, INTEGERS, FLOATS),
        "members": st.sets(TEXTS, max_size=3),
    },
    Strict: {"text": TEXTS, "real": FLOATS},
}


@st.composite
def instances(draw: st.DrawFn) -> msgspec.Struct:
    """A payload of any of the types: mostly rightly built, in a third of the cases with one field of a wrong type."""
    cls = draw(st.sampled_from(TYPES))
    values = {name: draw(strategy) for name, strategy in RIGHT[cls].items()}
    if draw(st.integers(0, 2)) == 0:
        values[draw(st.sampled_from(sorted(values)))] = draw(WRONG)
    return cls(**values)


def exactly(subject: msgspec.Struct) -> bytes | None:
    """The exact way, written out: builtins, canonical form, read again as the type."""
    try:
        data = canonical.encode(msgspec.to_builtins(subject, order="sorted"), depth=2)
        payload_type(subject).decode(data)
    except (ContractError, TypeError, ValueError, RecursionError):
        return None
    return data


def quickly(subject: msgspec.Struct) -> bytes | None:
    try:
        return encode_payload(subject)
    except ContractError as error:
        assert error.reason == "schema_violation"  # noqa: PT017 - part of the same rule
        assert error.pointer.startswith("/data")  # noqa: PT017
        return None


@pytest.mark.slow  # thousands of cases
@settings(max_examples=3_000, deadline=None)
@given(instances())
def test_encoding_is_exact_or_both_ways_refuse(subject: msgspec.Struct) -> None:
    assert quickly(subject) == exactly(subject)


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])
def test_nan_is_refused_in_a_text_field(value: float) -> None:
    with pytest.raises(ContractError):
        encode_payload(Optional(text=value))


@pytest.mark.medium
@settings(max_examples=1_000, deadline=None)
@given(instances())
def test_the_fast_proof_agrees_with_decoding_for_written_data(subject: msgspec.Struct) -> None:
    data = quickly(subject)
    if data is not None:
        kind = payload_type(subject)
        assert kind.prove(data) in (None, kind.decode(data))


def is_canonical_object(data: bytes) -> bool:
    try:
        value = canonical.parse_canonical(data, depth=2)
    except ContractError:
        return False
    return isinstance(value, dict) and canonical.is_canonical(data, value)


@pytest.mark.skipif(native.core is None, reason="the compiled hot path is not built: make native")
def test_the_fast_proof_never_accepts_non_canonical_data() -> None:
    rng = random.Random(8)
    tokens = (
        b"1.0",
        b"-0",
        b"1e2",
        b"1e-7",
        b"0.5",
        b"null",
        b'"\\u0061"',
        b'"a"',
        b"9007199254740993",
        b"[]",
        b"{}",
        b" ",
        b",",
        b"true",
        b'"2026-01-01T00:00:00+00:00"',
        b'"\xed\xa0\x80"',
        b'"\xff"',
        b"1e15",
        b"1000000000000000.5",
        b"9007199254740992",
        b"0.00001",
        b"0.000001",
        b"\\/",
    )
    seeds = [
        encode_payload(subject)
        for subject in (
            Scalars(text='q"\\', integer=5, real=1.5),
            Scalars(raw=b"\xff\xfe"),
            Optional(integer=3, real=2.5, inner=Inner(n=1)),
            Nested(z_list=[1, 2], a_tuple=(0.5, 1.5), inner_list=[Inner()], list_of_lists=[[0.25]]),
            Tagged(),
            Strict(text="x"),
        )
    ]
    kinds = [payload_type(cls) for cls in (Scalars, Scalars, Optional, Nested, Tagged, Strict)]
    proven = 0
    for number in range(20_000):
        data, kind = seeds[number % len(seeds)], kinds[number % len(seeds)]
        at, end = sorted(rng.sample(range(len(data) + 1), 2))
        change = rng.randrange(4)
        if change == 0:
            data = data[:at] + rng.choice(tokens) + data[min(end, at + 4) :]
        elif change == 1:
            data = data[:at] + bytes([rng.randrange(256)]) + data[at + 1 :]
        elif change == 2:
            data = data[:at] + data[at + 1 :]
        else:
            members = json.loads(data)
            chosen = rng.choice(list(members))
            rest = [f'"{name}":{json.dumps(value, separators=(",", ":"))}' for name, value in members.items()]
            data = ("{" + ",".join([*rest, f'"{chosen}":{json.dumps(members[chosen])}']) + "}").encode()
        if kind.prove(data) is not None:
            proven += 1
            assert is_canonical_object(data)
    assert proven > 100


@pytest.mark.parametrize(
    "data",
    [
        b'{"n":1,"n":1}',
        b'{"text":"x","real":0.5}',
        b'{"real":0.5,"text":"x","text":"x"}',
        b'{"real":0.50,"text":"x"}',
        b'{"real":1.0,"text":"x"}',
        b'{"real":1e15,"text":"x"}',
        b'{"real":1e-6,"text":"x"}',
        b'{"real":0.5,"text":"\\u0078"}',
        b'{"real":0.5,"text":"x"} ',
        b'{"real":0.5,"text":"x","extra":1}',
        b'{"real":9007199254740993,"text":"x"}',
        b'{"real":-0.0,"text":"x"}',
        b"[]",
        b"null",
        b"",
        b"{",
        b'{"real":0.5,"text":"\\ud800"}',
        b'{"real":0.5,"text":"\xff"}',
        b'{"real":NaN,"text":"x"}',
        b'{"real":0.5,"text":"\\/"}',
    ],
)
def test_the_fast_proof_rejects_non_canonical_or_ill_typed_data(data: bytes) -> None:
    with twins_alone():
        assert payload_type(Strict).prove(data) is None
    assert payload_type(Strict).prove(data) is None


@pytest.mark.parametrize("data", [b'{"text":"x"}', b'{"extra":1,"real":0.5,"text":"x"}'])
def test_canonical_data_of_another_shape_are_read_as_ever_where_they_are_proven(data: bytes) -> None:
    with twins_alone():
        assert payload_type(Strict).prove(data) is None
    assert payload_type(Strict).prove(data) in (None, payload_type(Strict).read(data))


# --- marks and registries ---------------------------------------------------------------------------------------------


def test_a_payload_of_the_form_of_an_array_cannot_be_marked() -> None:
    with pytest.raises((TypeError, ContractError), match="array_like"):
        payload("kinds.array")(Pair)


@pytest.mark.parametrize("name", ["", "A", "a.dlq", "a" * 121, "a..b"])
def test_an_illegal_message_type_cannot_be_marked(name: str) -> None:
    with pytest.raises(ContractError):
        payload(name)


@pytest.mark.parametrize("version", ["", "1", "1.0", "01.0.0", "1.0.0-rc1"])
def test_an_illegal_version_cannot_be_marked(version: str) -> None:
    with pytest.raises(ContractError):
        payload("a.b", version=version)


def test_only_structs_can_be_marked() -> None:
    with pytest.raises(TypeError):
        payload("a.b")(dict)


def test_a_subclass_does_not_inherit_the_mark() -> None:
    class Sub(Strict):
        pass

    with pytest.raises(UnknownTypeError):
        payload_type(Sub)
    with pytest.raises(UnknownTypeError):
        encode_payload(Sub(text="x"))


def test_one_message_type_has_one_class() -> None:
    @payload("kinds.strict")
    class Other(msgspec.Struct):
        text: str

    with pytest.raises(ContractError):
        Registry([Strict, Other])
    assert Registry([Strict, Strict]).get("kinds.strict") is payload_type(Strict)


def test_labels_are_those_of_registered_types() -> None:
    assert REGISTRY.label("kinds.strict") == "kinds.strict"
    assert REGISTRY.label("from.outside") == "other"


@pytest.mark.parametrize(
    ("subject", "pointer"),
    [
        (Strict(text=5), "/data/text"),
        (Strict(text="x", real=math.nan), "/data/real"),
        (Strict(text="\ud800"), "/data/text"),
        (Scalars(integer=2**53), "/data/integer"),
        (Nested(inner_list=[Inner(), Inner(n="x")]), "/data/innerList/1/n"),
        (Nested(bounded=10), "/data/bounded"),
        (Open(anything={"a/b": [0, math.inf]}), "/data/anything/a~1b/1"),
    ],
)
def test_a_payload_that_no_receiver_could_accept_names_its_field(subject: msgspec.Struct, pointer: str) -> None:
    with pytest.raises(ContractError) as caught:
        encode_payload(subject)
    assert caught.value.pointer == pointer


def test_a_value_that_contains_itself_is_refused() -> None:
    endless: list[object] = []
    endless.append(endless)
    with pytest.raises(ContractError):
        encode_payload(Open(anything=endless))


# --- versions, the schema gate's part ---------------------------------------------------------------------------------


def to_v2(data: dict[str, Any]) -> dict[str, Any]:
    return {"name": data["title"]}


def to_v3(data: dict[str, Any]) -> dict[str, Any]:
    return {"label": data["name"]}


@payload("doc.added", version="3.1.0", upcasters={1: to_v2, 2: to_v3})
class Doc(msgspec.Struct, kw_only=True):
    label: str
    pages: int = 0


def message(data: bytes, version: str, critical: tuple[str, ...] | None = None) -> Message:
    metadata = Metadata(
        conversation_id="c",
        hops=0,
        message_id="m",
        message_type="doc.added",
        namespace="agents",
        protocol="sealbus/1",
        schema_version=version,
        sender=Agent(id="a"),
        timestamp="2026-01-01T00:00:00.000Z",
        critical_fields=critical,
    )
    return sealing.seal(data, metadata, Routing(expires_at="2026-01-01T01:00:00.000Z"))


def reason(*arguments: Any) -> tuple[str, str]:
    with pytest.raises(ContractError) as caught:
        payload_type(Doc).open(message(*arguments))
    return caught.value.reason, caught.value.pointer


@pytest.mark.parametrize("version", ["3.1.0", "3.0.0", "3.9.7"])
def test_the_same_major_is_accepted_and_unknown_fields_are_ignored(version: str) -> None:
    assert payload_type(Doc).open(message(b'{"label":"x","new":1}', version)) == Doc(label="x")


@pytest.mark.parametrize(("version", "data"), [("1.0.0", b'{"title":"x"}'), ("2.4.0", b'{"name":"x"}')])
def test_an_older_major_is_upcast_step_by_step(version: str, data: bytes) -> None:
    assert payload_type(Doc).open(message(data, version)) == Doc(label="x")


@pytest.mark.parametrize("version", ["0.9.0", "4.0.0", "9" * 64 + ".0.0", "1" + "0" * 63 + ".0.0"])
def test_a_major_without_a_way_is_unsupported(version: str) -> None:
    assert reason(b'{"label":"x"}', version) == ("unsupported_version", "/metadata/schema_version")


@payload(
    "doc.judged",
    version="1.4.0",
    required_options=("task_id",),
    rules=(Rule("a long title has pages", "/pages", when(Is("title", ("long",)), Has("pages"))),),
)
class JudgedOne(msgspec.Struct, kw_only=True):
    title: Annotated[str, msgspec.Meta(min_length=1)]
    pages: int | None = None


@payload(
    "doc.judged",
    version="2.0.0",
    required_options=("run_id",),
    upcasters={1: Upcaster(JudgedOne, lambda data: {"label": data["title"], **data})},
)
class JudgedTwo(msgspec.Struct, kw_only=True):
    label: str
    later: str = "unsaid"


def judged(data: bytes, **options: Any) -> Any:
    made = message(data, "1.0.0")
    metadata = msgspec.structs.replace(made.metadata, message_type="doc.judged", **{"task_id": "t", **options})
    return payload_type(JudgedTwo).open(sealing.seal(data, metadata, made.routing))


def test_an_older_version_is_judged_by_its_class_and_its_own_terms() -> None:
    assert judged(b'{"later":"not known to 1.x","title":"x"}') == JudgedTwo(label="x", later="unsaid")


@pytest.mark.parametrize(
    ("data", "options", "found"),
    [
        (b'{"title":5}', {}, ("schema_violation", "/data/title")),
        (b'{"title":""}', {}, ("schema_violation", "/data/title")),
        (b'{"label":"x"}', {}, ("schema_violation", "/data/title")),
        (b'{"title":"long"}', {}, ("semantic_violation", "/data/pages")),
        (b'{"title":"x"}', {"task_id": None}, ("schema_violation", "/metadata/task_id")),
        (b'{"title":"x"}', {"critical_fields": ("/data/label",)}, ("critical_field", "/metadata/critical_fields")),
    ],
)
def test_a_refusal_by_an_older_versions_class_has_its_own_pointer(
    data: bytes, options: dict[str, Any], found: tuple[str, str]
) -> None:
    with pytest.raises(ContractError) as caught:
        judged(data, **options)
    assert (caught.value.reason, caught.value.pointer) == found


def test_an_upcaster_reads_the_major_that_it_stands_for() -> None:
    with pytest.raises(ContractError, match=r"upcasters\[2\] reads doc.judged 1.4.0, not 2.x.y of doc.judged"):
        payload("doc.judged", version="3.0.0", upcasters={2: Upcaster(JudgedOne, dict)})
    with pytest.raises(ContractError, match=r"not 1.x.y of doc.other"):
        payload("doc.other", version="3.0.0", upcasters={1: Upcaster(JudgedOne, dict)})


def test_data_that_its_upcaster_cannot_read_is_a_schema_violation() -> None:
    assert reason(b'{"other":"x"}', "1.0.0") == ("schema_violation", "/data")


@pytest.mark.parametrize(
    ("data", "pointer"),
    [(b"{}", "/data/label"), (b'{"label":1}', "/data/label"), (b'{"label":"x","pages":1.5}', "/data/pages")],
)
def test_data_of_another_shape_is_a_schema_violation(data: bytes, pointer: str) -> None:
    assert reason(data, "3.1.0") == ("schema_violation", pointer)


def test_an_unknown_critical_field_is_refused() -> None:
    assert reason(b'{"label":"x"}', "3.1.0", ("/data/label", "/data/new")) == (
        "critical_field",
        "/metadata/critical_fields",
    )


def test_known_critical_fields_are_understood_though_absent() -> None:
    payload_type(Doc).open(message(b'{"label":"x"}', "3.1.0", ("/data/pages", "/routing/reply_to", "/metadata/intent")))


class PanicException(BaseException):
    """What PyO3 raises where compiled code panics."""


@pytest.mark.parametrize(
    "failure",
    [
        KeyError("k"),
        ZeroDivisionError(),
        RuntimeError("x"),
        ValueError("x"),
        AttributeError("x"),
        PanicException(),
        SystemExit(3),
    ],
)
def test_a_type_that_fails_to_build_itself_is_a_schema_violation(failure: BaseException) -> None:
    @payload("doc.added")
    class Picky(msgspec.Struct):
        label: str

        def __post_init__(self) -> None:
            if self.label == "bad":
                raise failure

    kind = payload_type(Picky)
    assert kind.prove(b'{"label":"bad"}') is None
    with pytest.raises(ContractError) as caught:
        kind.open(message(b'{"label":"bad"}', "1.0.0"))
    assert caught.value.reason == "schema_violation"


@pytest.mark.skipif(native.core is None, reason="the compiled hot path is not built: make native")
def test_a_proven_payload_is_not_decoded_again() -> None:
    proven = sealing.parse(message(b'{"label":"x","pages":1}', "3.1.0").value, Registry([Doc]).prove)
    assert payload_type(Doc).open(proven) is proven.payload


def test_a_payload_proven_under_another_version_is_judged_by_that_version() -> None:
    old = sealing.parse(message(b'{"label":"x","pages":1}', "1.0.0").value, Registry([Doc]).prove)
    with pytest.raises(ContractError):
        payload_type(Doc).open(old)


def test_types_stand_for_themselves() -> None:
    kind = payload_type(Doc)
    assert isinstance(kind, PayloadType)
    assert (kind.name, kind.version, kind.major, kind.risk) == ("doc.added", "3.1.0", 3, "medium")


@payload("payload.keyed")
class Keyed(msgspec.Struct):
    rates: dict[date, float]
    colours: set[Colour]


def test_non_string_keys_and_sets_round_trip() -> None:
    subject = Keyed({date(2026, 2, 1): 2.5, date(2026, 1, 1): 1.0}, {Colour.RED, Colour.BLUE})
    kind = payload_type(Keyed)
    data = kind.encode(subject)
    assert data.startswith(b'{"colours":[')
    assert data.endswith(b'"rates":{"2026-01-01":1,"2026-02-01":2.5}}')
    assert kind.decode(data) == subject


class Bare(msgspec.Struct, eq=False):
    number: int = 0


FIRST = date(2026, 1, 1)


@payload("payload.rows")
class Rows(msgspec.Struct, eq=False, kw_only=True):
    by_id: dict[date, str]
    rows: list[list[int]] = []
    bare: Bare = msgspec.field(default_factory=Bare)
    anything: Any = None


@pytest.mark.parametrize(
    "subject",
    [
        Rows(by_id={FIRST: "x"}),
        Rows(by_id={FIRST: "x", date(2026, 1, 2): "y"}, rows=((1, 2), [3])),
        Rows(by_id={FIRST: "x"}, bare=Bare(7), anything=(datetime(2026, 1, 1, tzinfo=UTC), {"at": (1.0, 2)})),
    ],
)
def test_non_string_keys_are_published_beside_values_that_change_on_reading(
    subject: Rows,
) -> None:
    assert encode_payload(subject) == canonical.encode(msgspec.to_builtins(subject, str_keys=True))


@payload("payload.loose")
class LooselyKeyed(msgspec.Struct, eq=False):
    whatever: dict[Any, str] = {}


@pytest.mark.parametrize("subject", [LooselyKeyed({1: "x", "1": "y"}), LooselyKeyed({1: "x"})])
def test_keys_that_would_be_lost_or_become_others_are_refused(subject: LooselyKeyed) -> None:
    with pytest.raises(ContractError, match="a key must be str, not int"):
        encode_payload(subject)


@payload("payload.tree")
class Tree(msgspec.Struct):
    name: str
    children: list[Tree] = []
    owner: Owner | None = None


class Owner(msgspec.Struct):
    name: str


@payload("payload.dangling")
class Dangling(msgspec.Struct):
    other: Nothing | None = None  # type: ignore[name-defined]  # noqa: F821 - that is the point


def test_a_type_may_refer_to_itself_and_to_classes_that_come_after_it() -> None:
    kind = payload_type(Tree)
    subject = Tree("root", [Tree("branch", [Tree("leaf", owner=Owner("bird"))])])
    data = kind.encode(subject)
    assert data == canonical.encode(msgspec.to_builtins(subject))
    assert kind.decode(data) == subject
    assert Registry([Tree]).prove("payload.tree", data) in (subject, None)
    with pytest.raises(ContractError) as raised:
        kind.encode(Tree("root", [Tree(7)]))
    assert raised.value.pointer == "/data/children/0/name"


def test_a_type_with_an_unresolved_reference_is_refused_at_registration() -> None:
    with pytest.raises(ContractError, match=r"'payload.dangling'\): other: 'Nothing' is not defined; import it"):
        Registry([Dangling])


def test_a_value_with_an_unresolved_reference_names_it_when_it_is_published() -> None:
    with pytest.raises(ContractError, match=r"other: 'Nothing' is not defined; import it at run time, not under"):
        encode_payload(Dangling())


class DanglingDict(TypedDict):
    other: Nothing  # type: ignore[name-defined]  # noqa: F821 - that is the point


class DanglingModel(pydantic.BaseModel):
    other: Nothing  # type: ignore[name-defined]  # noqa: F821 - that is the point


@dataclasses.dataclass
class DanglingDataclass:
    kind: ClassVar[str] = ""
    own: int
    other: list[Nothing]  # type: ignore[name-defined]  # noqa: F821 - that is the point


@pytest.mark.parametrize("cls", [DanglingDict, DanglingModel, DanglingDataclass])
def test_an_unresolved_reference_is_named_in_each_form(cls: Any) -> None:
    marked = payload("payload.dangling")(cls)
    with pytest.raises(ContractError, match=r"@payload\('payload.dangling'\): other: 'Nothing' is not defined"):
        Registry([marked])


def test_a_reference_to_a_class_further_down_that_cannot_be_read_is_refused_at_registration(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    space: dict[str, Any] = {"__name__": __name__}
    later = payload("payload.later")(msgspec.defstruct("Later", [("v", "Untold")], module="payload_later"))
    space["Untold"] = Inner | Leaf
    monkeypatch.setitem(sys.modules, "payload_later", cast("Any", SimpleNamespace(**space)))
    with pytest.raises(ContractError, match=r"@payload\('payload.later'\): v: "):
        Registry([later])


@pytest.mark.parametrize("annotation", ["int[", "msgspec.Nope", "1 / 0", "list[int](1, 2, 3, 4)"])
def test_an_annotation_that_cannot_be_evaluated_is_refused_with_its_field(annotation: str) -> None:
    cls = msgspec.defstruct("Wrong", [("n", int), ("v", annotation)], module=__name__)
    with pytest.raises(TypeError, match=r"^@payload\('payload.wrong'\): v: "):
        payload("payload.wrong")(cls)


def test_a_type_that_can_never_be_decoded_cannot_be_marked() -> None:
    with pytest.raises(TypeError):

        @payload("payload.impossible")
        class Impossible(msgspec.Struct):
            either: Inner | Leaf
