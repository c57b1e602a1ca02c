"""The contract of payloads, held by every kind of class: a Struct, a dataclass, a TypedDict and a Pydantic model.

The same fields and values give the same bytes, and the same faults the same words and pointers.
"""

from __future__ import annotations

import base64
import enum
import uuid
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Annotated, Any, Literal, NamedTuple, NotRequired, TypedDict

import msgspec
import pydantic
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Meta

from bus.errors import ContractError
from bus.payloads.envelope_terms import ByField
from bus.payloads.payload_types import PayloadType, Registry, encode_payload, payload, payload_type
from bus.payloads.rules import All, AtMost, Every, Has, Is, Rule, when
from bus.payloads.upcasters import Upcaster
from bus.protocol import canonical, sealing
from bus.protocol.envelope import Agent, Metadata, Routing
from sealbus import App, Context, Outgoing, PublishRejected, Receipt, Reject, Retry, connect
from sealbus.outbox import Outbox

NOBODY = uuid.UUID(int=1)


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


TERMS: dict[str, Any] = {
    "version": "2.0.0",
    "risk": "low",
    "upcasters": {1: lambda data: {**data, "sku": data["article"], "state": "open"}},
    "performative": ByField("state", {"open": "request"}, otherwise="inform"),
    "required_options": ("task_id",),
    "must_match": {"/task": "/metadata/task_id"},
    "options_from": {"priority": "urgency", "task_id": "task"},
    "rules": (
        Rule("a closed order has a note", "/note", when(Is("state", ("closed",)), Has("note"))),
        Rule("within its limit", "/count", when(All((Has("count"), Has("most"))), AtMost("count", "most"))),
        Rule("every line is named", "/lines", Every("lines", Has("name"))),
    ),
}


class CardStruct(msgspec.Struct, tag_field="by", tag="card", kw_only=True):
    number: str


class CashStruct(msgspec.Struct, tag_field="by", tag="cash", kw_only=True):
    coins: int = 0


class LineStruct(msgspec.Struct, kw_only=True):
    amount: Annotated[int, Meta(ge=0)]
    name: str | None = None


@payload("shop.order", **TERMS)
class OrderStruct(msgspec.Struct, kw_only=True):
    sku: Annotated[str, Meta(min_length=1, max_length=40)]
    count: Annotated[int, Meta(ge=1)] = 1
    most: int = 100
    ratio: float = 0.5
    state: Literal["open", "closed"] = "open"
    urgency: int | None = None
    task: str | None = None
    note: str | None = None
    lines: list[LineStruct] = []
    main: LineStruct | None = None
    pay: CardStruct | CashStruct | None = None
    value: int | str | None = None
    colour: Colour = Colour.RED
    at: datetime = datetime(2026, 1, 31, 12, tzinfo=UTC)
    day: date = date(2026, 1, 31)
    took: timedelta = timedelta(hours=1)
    identity: uuid.UUID = NOBODY
    price: Decimal = Decimal("1.50")
    raw: bytes = b""
    tags: set[str] = set()
    counts: dict[str, int] = {}
    pair: tuple[int, str] = (1, "a")
    anything: Any = None


@dataclass(kw_only=True)
class LineData:
    amount: Annotated[int, Meta(ge=0)]
    name: str | None = None


@payload("shop.order", **TERMS)
@dataclass(kw_only=True)
class OrderData:
    sku: Annotated[str, Meta(min_length=1, max_length=40)]
    count: Annotated[int, Meta(ge=1)] = 1
    most: int = 100
    ratio: float = 0.5
    state: Literal["open", "closed"] = "open"
    urgency: int | None = None
    task: str | None = None
    note: str | None = None
    lines: list[LineData] = field(default_factory=list)
    main: LineData | None = None
    pay: CardStruct | CashStruct | None = None
    value: int | str | None = None
    colour: Colour = Colour.RED
    at: datetime = datetime(2026, 1, 31, 12, tzinfo=UTC)
    day: date = date(2026, 1, 31)
    took: timedelta = timedelta(hours=1)
    identity: uuid.UUID = NOBODY
    price: Decimal = Decimal("1.50")
    raw: bytes = b""
    tags: set[str] = field(default_factory=set)
    counts: dict[str, int] = field(default_factory=dict)
    pair: tuple[int, str] = (1, "a")
    anything: Any = None


class LineDict(TypedDict):
    amount: Annotated[int, Meta(ge=0)]
    name: NotRequired[str | None]


@payload("shop.order", **TERMS)
class OrderDict(TypedDict):
    sku: Annotated[str, Meta(min_length=1, max_length=40)]
    count: NotRequired[Annotated[int, Meta(ge=1)]]
    most: NotRequired[int]
    ratio: NotRequired[float]
    state: NotRequired[Literal["open", "closed"]]
    urgency: NotRequired[int | None]
    task: NotRequired[str | None]
    note: NotRequired[str | None]
    lines: NotRequired[list[LineDict]]
    main: NotRequired[LineDict | None]
    pay: NotRequired[CardStruct | CashStruct | None]
    value: NotRequired[int | str | None]
    colour: NotRequired[Colour]
    at: NotRequired[datetime]
    day: NotRequired[date]
    took: NotRequired[timedelta]
    identity: NotRequired[uuid.UUID]
    price: NotRequired[Decimal]
    raw: NotRequired[bytes]
    tags: NotRequired[set[str]]
    counts: NotRequired[dict[str, int]]
    pair: NotRequired[tuple[int, str]]
    anything: NotRequired[Any]


class CardModel(pydantic.BaseModel):
    by: Literal["card"] = "card"
    number: str


class CashModel(pydantic.BaseModel):
    by: Literal["cash"] = "cash"
    coins: int = 0


class LineModel(pydantic.BaseModel):
    amount: int = pydantic.Field(ge=0)
    name: str | None = None


@payload("shop.order", **TERMS)
class OrderModel(pydantic.BaseModel):
    sku: Annotated[str, pydantic.Field(min_length=1, max_length=40)]
    count: int = pydantic.Field(1, ge=1)
    most: int = 100
    ratio: float = 0.5
    state: Literal["open", "closed"] = "open"
    urgency: int | None = None
    task: str | None = None
    note: str | None = None
    lines: list[LineModel] = []
    main: LineModel | None = None
    pay: Annotated[CardModel | CashModel, pydantic.Field(discriminator="by")] | None = None
    value: int | str | None = None
    colour: Colour = Colour.RED
    at: datetime = datetime(2026, 1, 31, 12, tzinfo=UTC)
    day: date = date(2026, 1, 31)
    took: timedelta = timedelta(hours=1)
    identity: uuid.UUID = NOBODY
    price: Decimal = Decimal("1.50")
    raw: pydantic.Base64Bytes = b""
    tags: set[str] = set()
    counts: dict[str, int] = {}
    pair: tuple[int, str] = (1, "a")
    anything: Any = None


class Kind(NamedTuple):
    """The classes of one kind."""

    name: str
    order: Any
    line: Any
    card: Any = CardStruct
    cash: Any = CashStruct

    @property
    def type(self) -> PayloadType:
        return payload_type(self.order)

    def make(self, **values: Any) -> Any:
        """Return an order with *values*, in which parts are dicts."""
        return self.order(**self._made(values))

    def make_whole(self, **values: Any) -> Any:
        """Return an order that has every member, *values* or their defaults, also as a TypedDict."""
        whole = msgspec.structs.asdict(OrderStruct(sku="tea")) | values
        return self.make(**whole)

    def _made(self, values: dict[str, Any]) -> dict[str, Any]:
        made = dict(values)
        if "lines" in made:
            made["lines"] = [self.line(**line) for line in made["lines"]]
        if made.get("main") is not None:
            made["main"] = self.line(**made["main"])
        if made.get("pay") is not None:
            pay = dict(made["pay"])
            made["pay"] = {"card": self.card, "cash": self.cash}[pay.pop("by")](**pay)
        if self.name == "model" and "raw" in made:
            made["raw"] = base64.b64encode(made["raw"])
        return made


KINDS = {
    kind.name: kind
    for kind in (
        Kind("struct", OrderStruct, LineStruct),
        Kind("dataclass", OrderData, LineData),
        Kind("typed dict", OrderDict, LineDict),
        Kind("model", OrderModel, LineModel, CardModel, CashModel),
    )
}


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> Kind:
    return KINDS[request.param]


def value_of(subject: Any, name: str) -> Any:
    return subject[name] if isinstance(subject, dict) else getattr(subject, name)


def refusal(kind: Kind, data: bytes) -> ContractError:
    with pytest.raises(ContractError) as caught:
        kind.type.decode(data)
    return caught.value


WHOLE: dict[str, Any] = {
    "sku": "tëa",
    "count": 3,
    "ratio": 1e-7,
    "note": "soon",
    "lines": [{"amount": 1, "name": "a"}, {"amount": 0, "name": "b"}],
    "main": {"amount": 2, "name": None},
    "pay": {"by": "card", "number": "12"},
    "value": "x",
    "colour": Colour.BLUE,
    "at": datetime(2026, 1, 31, 12, 0, 0, 500_000, tzinfo=UTC),
    "took": timedelta(days=1, seconds=1),
    "raw": b"\xff\x00\xfe",
    "tags": {"b", "a", "c"},
    "counts": {"b": 1, "a": 2},
    "pair": (7, "seven"),
    "anything": {"deep": [1, None, {"x": 0.5}]},
}

# --- bytes ------------------------------------------------------------------------------------------------------------


def test_a_payload_reads_back_as_an_equal_one_of_its_class(kind: Kind) -> None:
    order = kind.make(**WHOLE)
    read = kind.type.decode(encode_payload(order))
    assert type(read) is kind.order
    assert read == order


def test_the_same_values_give_the_bytes_of_a_struct(kind: Kind) -> None:
    assert encode_payload(kind.make_whole(**WHOLE)) == encode_payload(KINDS["struct"].make_whole(**WHOLE))


def test_defaults_are_written_and_none_is_null(kind: Kind) -> None:
    data = encode_payload(kind.make_whole())
    assert b'"note":null' in data
    assert b'"took":"PT3600S"' in data
    assert data == encode_payload(OrderStruct(sku="tea"))


TEXTS = st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=8)
LINES = st.fixed_dictionaries({"amount": st.integers(0, 2**53 - 1), "name": st.none() | TEXTS})
VALUES = st.fixed_dictionaries(
    {
        "sku": TEXTS.filter(lambda text: 1 <= len(text) <= 40),
        "count": st.integers(1, 2**53 - 1),
        "ratio": st.floats(allow_nan=False, allow_infinity=False),
        "state": st.sampled_from(["open", "closed"]),
        "note": st.none() | TEXTS,
        "lines": st.lists(LINES, max_size=3),
        "main": st.none() | LINES,
        "pay": st.none()
        | st.fixed_dictionaries({"by": st.just("card"), "number": TEXTS})
        | st.fixed_dictionaries({"by": st.just("cash"), "coins": st.integers(-9, 9)}),
        "value": st.none() | st.integers(-(2**53) + 1, 2**53 - 1) | TEXTS,
        "colour": st.sampled_from(Colour),
        "at": st.datetimes(min_value=datetime(1, 1, 3), timezones=st.just(UTC)),  # noqa: DTZ001 - a bound
        "day": st.dates(),
        "took": st.timedeltas(timedelta(days=-999), timedelta(days=999)),
        "identity": st.uuids(),
        "price": st.decimals(allow_nan=False, allow_infinity=False, min_value=-1000, max_value=1000, places=3),
        "raw": st.binary(max_size=9),
        "tags": st.sets(TEXTS, max_size=4),
        "counts": st.dictionaries(TEXTS, st.integers(-9, 9), max_size=3),
        "pair": st.tuples(st.integers(-9, 9), TEXTS),
        "anything": st.recursive(
            st.none() | st.booleans() | TEXTS | st.floats(-1e6, 1e6),
            lambda inner: st.lists(inner, max_size=2) | st.dictionaries(TEXTS, inner, max_size=2),
            max_leaves=4,
        ),
    }
)


@pytest.mark.medium
@settings(max_examples=300, deadline=None)
@given(VALUES)
def test_any_values_give_the_same_bytes_and_read_back_equal(values: dict[str, Any]) -> None:
    wanted = encode_payload(KINDS["struct"].make_whole(**values))
    for kind in KINDS.values():
        order = kind.make_whole(**values)
        assert encode_payload(order) == wanted
        assert kind.type.decode(wanted) == order


MEMBERS = st.dictionaries(
    st.sampled_from([*WHOLE, "by", "unknown"]),
    st.none()
    | st.booleans()
    | st.integers(-5, 5)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.sampled_from(["open", "red", "2026-01-31T12:00:00Z", "2026-01-31", "PT1H", "AA==", "x", "1", ""])
    | st.just([])
    | st.just([{"amount": 1}])
    | st.just([{"amount": -1}, 5])
    | st.just({"by": "card", "number": "1"})
    | st.just({"by": "coin"})
    | st.just({"amount": 1})
    | st.just([1, "a"]),
    max_size=5,
)


@pytest.mark.medium
@settings(max_examples=600, deadline=None)
@given(MEMBERS)
def test_every_kind_judges_any_object_alike(members: dict[str, Any]) -> None:
    data = msgspec.json.encode({"sku": "tea", **members})
    verdicts = set()
    for kind in KINDS.values():
        try:
            kind.type.decode(data)
        except ContractError as error:
            verdicts.add((error.pointer, error.text, error.reason))
        else:
            verdicts.add(None)
    assert len(verdicts) == 1, (data, verdicts)


# --- faults -----------------------------------------------------------------------------------------------------------

FAULTS = {
    "no object": (b"[]", "/data"),
    "a missing field": (b"{}", "/data/sku"),
    "a number for a text": (b'{"sku":1}', "/data/sku"),
    "a text for a number": (b'{"count":"1","sku":"a"}', "/data/count"),
    "a fraction for an integer": (b'{"count":1.5,"sku":"a"}', "/data/count"),
    "a bool for an integer": (b'{"count":true,"sku":"a"}', "/data/count"),
    "null": (b'{"count":null,"sku":"a"}', "/data/count"),
    "below a limit": (b'{"count":0,"sku":"a"}', "/data/count"),
    "too short": (b'{"sku":""}', "/data/sku"),
    "too long": (b'{"sku":"' + b"a" * 41 + b'"}', "/data/sku"),
    "no member of the Literal": (b'{"sku":"a","state":"lost"}', "/data/state"),
    "no member of the Enum": (b'{"colour":"green","sku":"a"}', "/data/colour"),
    "no datetime": (b'{"at":"yesterday","sku":"a"}', "/data/at"),
    "no date": (b'{"day":"2026-13-01","sku":"a"}', "/data/day"),
    "no UUID": (b'{"identity":"1","sku":"a"}', "/data/identity"),
    "no base64": (b'{"raw":"\xc3\xa4","sku":"a"}', "/data/raw"),
    "a fault in a list": (b'{"lines":[{"amount":1},{"amount":"2"}],"sku":"a"}', "/data/lines/1/amount"),
    "a missing field in a list": (b'{"lines":[{"amount":1},{}],"sku":"a"}', "/data/lines/1/amount"),
    "a fault in an optional part": (b'{"main":{"amount":-1},"sku":"a"}', "/data/main/amount"),
    "a fault in a dict": (b'{"counts":{"a":1,"b":"2"},"sku":"a"}', "/data/counts"),
    "a fault in a tuple": (b'{"pair":[1,2],"sku":"a"}', "/data/pair/1"),
    "a fault in a member of a union": (b'{"pay":{"by":"card","number":1},"sku":"a"}', "/data/pay/number"),
    "an unknown tag": (b'{"pay":{"by":"coin"},"sku":"a"}', "/data/pay/by"),
    "of no type of a union": (b'{"sku":"a","value":0.5}', "/data/value"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_has_the_pointer_and_the_words_of_a_struct(kind: Kind, fault: str) -> None:
    data, pointer = FAULTS[fault]
    found, wanted = refusal(kind, data), refusal(KINDS["struct"], data)
    assert found.reason == "schema_violation"
    assert found.pointer.startswith(pointer)
    assert (found.pointer, found.text) == (wanted.pointer, wanted.text)


@pytest.mark.parametrize(
    ("values", "pointer"),
    [
        ({"count": "1"}, "/data/count"),
        ({"count": 0}, "/data/count"),
        ({"sku": None}, "/data/sku"),
        ({"ratio": float("nan")}, "/data/ratio"),
        ({"most": 2**53}, "/data/most"),
        ({"anything": float("inf")}, "/data/anything"),
        ({"anything": {"a": {1: 2}}}, "/data/anything/a"),
        ({"anything": object()}, "/data"),
        ({"sku": "\ud800"}, "/data/sku"),
    ],
)
def test_what_receivers_would_refuse_is_refused_when_it_is_published(
    kind: Kind, values: dict[str, Any], pointer: str
) -> None:
    order = kind.make_whole()
    for name, value in values.items():
        # As in a program: constructors of models check, and what is set afterwards nobody has checked.
        if isinstance(order, dict):
            order[name] = value
        else:
            setattr(order, name, value)
    with pytest.raises(ContractError) as caught:
        encode_payload(order)
    assert caught.value.reason == "schema_violation"
    assert caught.value.pointer.startswith(pointer)


def test_a_class_instead_of_a_payload_is_refused(kind: Kind) -> None:
    with pytest.raises(ContractError, match="is a class: give an instance of it"):
        encode_payload(kind.order)


def test_unknown_members_are_ignored(kind: Kind) -> None:
    assert kind.type.decode(b'{"sku":"a","unknown":1}') == kind.type.decode(b'{"sku":"a"}')


def test_a_missing_optional_field_has_its_default(kind: Kind) -> None:
    read = kind.type.decode(b'{"sku":"a"}')
    if kind.name == "typed dict":
        assert read == {"sku": "a"}
    else:
        assert (value_of(read, "count"), value_of(read, "lines"), value_of(read, "note")) == (1, [], None)
        assert value_of(kind.type.decode(b'{"sku":"a"}'), "lines") is not value_of(read, "lines")


def test_the_mark_is_not_inherited(kind: Kind) -> None:
    class Other(kind.order):  # type: ignore[name-defined, misc]
        pass

    with pytest.raises(Exception, match=r"@payload\(.*is not inherited"):
        payload_type(Other)


def test_a_payload_without_compiled_code_is_the_same(kind: Kind, monkeypatch: pytest.MonkeyPatch) -> None:
    written = encode_payload(kind.make(**WHOLE))
    monkeypatch.setattr(payload_type(kind.order).encoder, "compiled", None)
    assert encode_payload(kind.make(**WHOLE)) == written


# --- what is costly ---------------------------------------------------------------------------------------------------


def made_of(kind: str, annotation: Any) -> Any:
    """Return a class of *kind* with one field of *annotation*, unmarked."""
    hints = {"x": annotation}
    match kind:
        case "struct":
            return msgspec.defstruct("Made", list(hints.items()))
        case "dataclass":
            return dataclass(type("Made", (), {"__annotations__": hints}))
        case "typed dict":
            return TypedDict("Made", hints)  # type: ignore[operator]
        case _:
            return pydantic.create_model("Made", x=(annotation, ...))


def limited(kind: str, **limits: Any) -> Any:
    return Annotated[str, pydantic.Field(**limits) if kind == "model" else Meta(**limits)]


@pytest.mark.parametrize(
    ("annotation", "advice"),
    [
        (set[int], "list"),
        (frozenset[uuid.UUID], "list"),
        (dict[int, str], "list of pairs"),
        (list[dict[float, str]], "list of pairs"),
    ],
)
def test_types_with_predictable_hashes_are_refused_when_marked(kind: Kind, annotation: Any, advice: str) -> None:
    with pytest.raises(ContractError, match=advice):
        payload("made.type")(made_of(kind.name, annotation))


@pytest.mark.parametrize(
    ("limits", "advice"),
    [({"pattern": "^(a+)+$", "max_length": 64}, "check more"), ({"pattern": "^[a-z]*$"}, "needs max_length")],
)
def test_a_costly_pattern_is_refused_when_it_is_marked(kind: Kind, limits: dict[str, Any], advice: str) -> None:
    if kind.name == "model":
        return  # pydantic matches patterns in linear time: test_unions_of_models.py
    with pytest.raises(ContractError, match=advice):
        payload("made.type")(made_of(kind.name, limited(kind.name, **limits)))


def test_data_that_would_take_too_much_memory_are_refused_before_they_are_built(kind: Kind) -> None:
    data = b'{"lines":[' + b",".join([b"{}"] * 340_000) + b'],"sku":"a"}'
    error = refusal(kind, data)
    assert "large content travels by reference" in error.text


# --- rules and terms --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "pointer"),
    [
        ({"state": "closed"}, "/data/note"),
        ({"count": 5, "most": 4}, "/data/count"),
        ({"lines": [{"amount": 1}]}, "/data/lines"),
    ],
)
async def test_a_broken_rule_is_refused_by_its_publisher(kind: Kind, values: dict[str, Any], pointer: str) -> None:
    async with connect("memory://", agent="a@svc", env={}) as bus:
        with pytest.raises(PublishRejected) as caught:
            await bus.publish(kind.make_whole(**values), task_id="t-1")
    assert (caught.value.pointer, caught.value.reason) == (pointer, "semantic_violation")


async def test_the_envelope_is_completed_from_the_payload(kind: Kind) -> None:
    app, _ = shop(kind)
    async with app.test() as bus:
        await bus.publish(kind.make_whole(task="t-7", urgency=9))
        await bus.settle()
    (context,) = app.contexts
    metadata, routing = context.message.metadata, context.message.routing
    assert (metadata.task_id, routing.priority, metadata.performative) == ("t-7", 9, "request")


async def test_required_and_repeated_members_are_checked(kind: Kind) -> None:
    async with connect("memory://", agent="a@svc", env={}) as bus:
        with pytest.raises(PublishRejected) as missing:
            await bus.publish(kind.make_whole())
        with pytest.raises(PublishRejected) as differing:
            await bus.publish(kind.make_whole(task="t-1"), task_id="t-2")
    assert missing.value.pointer == "/metadata/task_id"
    assert differing.value.pointer == "/data/task"


# --- end to end -------------------------------------------------------------------------------------------------------


@payload("shop.booked", risk="low")
class Booked(msgspec.Struct, frozen=True):
    sku: str


class Shop(App):
    """An app that keeps what it was given."""

    contexts: list[Context]


def shop(kind: Kind, **options: Any) -> tuple[Shop, list[Any]]:
    app, seen = Shop("shop@svc"), []
    app.contexts = []

    async def book(order, context: Context) -> Booked:
        app.contexts.append(context)
        seen.append(order)
        return Booked(sku=value_of(order, "sku"))

    book.__annotations__["order"] = kind.order
    app.on(kind.order, **options)(book)
    return app, seen


async def test_a_handler_receives_the_published_payload(kind: Kind) -> None:
    app, seen = shop(kind)
    order = kind.make_whole(**WHOLE)
    async with app.test() as bus:
        await bus.publish(order, task_id="t-1")
        await bus.settle()
        bus.assert_all_handled()
        assert bus.sent(Booked) == [Booked(sku="tëa")]
    assert seen == [order]
    assert type(seen[0]) is kind.order


async def test_a_stream_of_payloads_and_drafts_is_published(kind: Kind) -> None:
    app, seen = shop(kind)
    orders = [kind.make_whole(count=number, task="t") for number in (1, 2, 3)]
    async with app.test() as bus:
        source = [orders[0], orders[1], Outgoing(orders[2], key="k")]
        results = [result async for result in published(bus, source)]
        await bus.settle()
    assert all(isinstance(result, Receipt) for result in results)
    assert sorted(value_of(order, "count") for order in seen) == [1, 2, 3]


async def published(bus: Any, source: Any) -> Any:
    from producers.stream import publish_stream

    async for result in publish_stream(bus.publisher, source, timeout_s=5):
        yield result


async def test_a_single_payload_is_not_a_stream(kind: Kind) -> None:
    async with connect("memory://", agent="a@svc", env={}) as bus:
        with pytest.raises(TypeError, match="one payload is for publish"):
            bus.publish_many(kind.make(sku="a"))


def test_an_outbox_takes_it(kind: Kind) -> None:
    row = Outbox("shop@svc", env={}).seal(kind.make_whole(task="t"))
    assert row.message_id


async def test_requests_are_answered_with_it(kind: Kind) -> None:
    app = App("clerk@svc")

    async def repeat(order):
        return order

    repeat.__annotations__ |= {"order": kind.order, "return": kind.order}
    app.on(kind.order)(repeat)
    order = kind.make_whole(**WHOLE, task="t")
    async with app.test() as bus:
        assert await bus.request(order, kind.order, timeout_s=5) == order
        assert bus.sent(kind.order) == [order]


async def test_a_handler_sends_drafts_lists_and_queued_payloads_of_it(kind: Kind) -> None:
    app = App("clerk@svc", types=[kind.order])

    @app.on(Booked)
    async def ask(booked: Booked, context: Context) -> list[Outgoing]:
        context.send(kind.make_whole(sku="queued", task="t"))
        await context.send_now(kind.make_whole(sku="now", task="t"))
        return [Outgoing(kind.make_whole(sku="drafted", task="t"))]

    async with app.test() as bus:
        await bus.publish(Booked(sku="x"))
        await bus.settle()
        bus.assert_all_handled()
        assert sorted(value_of(order, "sku") for order in bus.sent(kind.order)) == ["drafted", "now", "queued"]


async def test_a_queued_payload_is_sent_as_it_was_when_queued(kind: Kind) -> None:
    app = App("clerk@svc", types=[kind.order])

    @app.on(Booked)
    async def ask(booked: Booked, context: Context) -> None:
        order = kind.make_whole(counts={"a": 1}, task="t")
        context.send(order)
        value_of(order, "counts")["a"] = 2

    async with app.test() as bus:
        await bus.publish(Booked(sku="x"))
        await bus.settle()
        (order,) = bus.sent(kind.order)
    assert value_of(order, "counts") == {"a": 1}


async def test_a_repeated_run_starts_from_what_was_sent(kind: Kind) -> None:
    app, seen = App("shop@svc"), []

    async def book(order) -> None:
        seen.append(dict(value_of(order, "counts")))
        value_of(order, "counts")["a"] = 99
        if len(seen) == 1:
            raise ConnectionError

    book.__annotations__["order"] = kind.order
    app.on(kind.order, retry=Retry(attempts=3))(book)
    async with app.test() as bus:
        await bus.publish(kind.make_whole(counts={"a": 1}, task="t"))
        await bus.advance(600)
    assert seen == [{"a": 1}, {"a": 1}]


async def test_a_rejected_payload_is_dead_lettered(kind: Kind) -> None:
    app = App("shop@svc")

    async def book(order) -> None:
        raise Reject("no such thing")

    book.__annotations__["order"] = kind.order
    app.on(kind.order)(book)
    async with app.test() as bus:
        await bus.publish(kind.make_whole(task="t"))
        await bus.settle()
        (letter,) = bus.dead_letters
    assert letter.message is not None
    assert kind.type.open(letter.message) == kind.make_whole(task="t")


async def test_an_older_version_is_upcast(kind: Kind) -> None:
    @payload("shop.order", version="1.0.0", risk="low")
    class Old(msgspec.Struct):
        article: str

    app, seen = shop(kind)
    async with app.test() as bus:
        await bus.publish(Old(article="tea"), task_id="t", performative="request")
        await bus.settle()
        bus.assert_all_handled()
    assert [value_of(order, "sku") for order in seen] == ["tea"]


def test_a_class_of_any_kind_judges_the_older_version(kind: Kind) -> None:
    @payload("shop.order", version="3.0.0", upcasters={2: Upcaster(kind.order, lambda data: {"sku": data["sku"]})})
    class Later(msgspec.Struct):
        sku: str
        lines: int = 7

    def opened(data: dict[str, Any]) -> Any:
        metadata = Metadata(
            protocol="sealbus/1",
            namespace="agents",
            message_id="m",
            message_type="shop.order",
            schema_version="2.0.0",
            timestamp="2026-01-01T00:00:00.000Z",
            sender=Agent(id="a"),
            conversation_id="c",
            hops=0,
            task_id="t",
            performative="request",
        )
        routing = Routing(expires_at="2026-01-01T01:00:00.000Z")
        data = {"state": "open", **data}
        return payload_type(Later).open(sealing.seal(canonical.encode(data), metadata, routing))

    assert opened({"sku": "tea", "task": "t", "later": 1}) == Later(sku="tea")
    for data, pointer in (
        ({"sku": "tea", "task": "t", "lines": "no list"}, "/data/lines"),
        ({"sku": "", "task": "t"}, "/data/sku"),
        ({"sku": "tea", "task": "another"}, "/data/task"),
    ):
        with pytest.raises(ContractError) as caught:
            opened(data)
        assert (caught.value.reason, caught.value.pointer) == ("schema_violation", pointer)


@pytest.mark.parametrize(
    ("pointer", "is_known"),
    [("/data/lines/0/amount", True), ("/data/pay/number", True), ("/data/lines/0/weight", False), ("/data/x", False)],
)
async def test_critical_fields_are_those_of_the_class(kind: Kind, pointer: str, is_known: bool) -> None:
    async with connect("memory://", agent="a@svc", env={}) as bus:
        publishing = bus.publish(kind.make_whole(task="t"), critical_fields=(pointer,))
        if is_known:
            assert isinstance(await publishing, Receipt)
        else:
            with pytest.raises(PublishRejected, match="must be understood"):
                await publishing


async def test_a_played_agent_is_given_it(kind: Kind) -> None:
    app = App("shop@svc", types=[kind.order])

    @app.on(Booked)
    async def ask(booked: Booked, context: Context) -> None:
        await context.request(kind.make_whole(task="t"), kind.order, timeout_s=5)

    async with app.test() as bus:
        clerk = bus.fake(kind.order, returns=kind.make_whole(sku="answer", task="t"))
        await bus.publish(Booked(sku="x"))
        await bus.settle()
        bus.assert_all_handled()
    assert clerk.received == [kind.make_whole(task="t")]


def test_a_registry_knows_it_by_its_name(kind: Kind) -> None:
    assert Registry([kind.order]).get("shop.order") is kind.type
