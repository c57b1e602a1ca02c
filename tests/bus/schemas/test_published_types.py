"""A type that is read from its published schema judges as the class does, and is never stricter."""

from __future__ import annotations

import copy
import random
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, Literal, TypedDict

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from bus.errors import ConfigurationError, ContractError
from bus.payloads.examples import example_of
from bus.payloads.payload_types import PayloadType, encode_payload, payload, payload_type
from bus.protocol import sealing
from bus.protocol.envelope import Agent, Metadata, Routing
from bus.protocol.sealing import Message
from bus.schemas.json_schema import schema_of
from bus.schemas.published_types import registry_of_schemas, type_of_schema
from bus.schemas.schema_folder import SchemaFolder
from bus.schemas.versions import SchemaVersion
from bus.vocabulary import BUILT_IN
from sealbus.schemas import Upcaster, registry
from tests.bus.schemas.cases import cases_of


def carried(kind: PayloadType) -> dict[str, Any]:
    """The schema of *kind* as it comes from a file."""
    return msgspec.json.decode(msgspec.json.encode(schema_of(kind)))


@pytest.mark.parametrize("kind", list(BUILT_IN), ids=lambda kind: kind.name)
class TestVocabulary:
    def test_what_the_class_accepts_its_schema_accepts_and_writes_for_it(self, kind: PayloadType) -> None:
        read = type_of_schema(carried(kind))
        for data, accepted in [(example_of(kind), True), *cases_of(kind, 40, random.Random(kind.name))]:
            text = msgspec.json.encode(data)
            if accepted:
                assert kind.decode(read.encode(read.decode(text))) == kind.decode(text)

    def test_the_terms_are_those_of_the_class(self, kind: PayloadType) -> None:
        read = type_of_schema(carried(kind))
        assert (read.name, read.version, read.risk, read.terms) == (kind.name, kind.version, kind.risk, kind.terms)
        assert (read.side_effect, read.resource) == (kind.side_effect, kind.resource)

    def test_what_fields_say_is_checked(self, kind: PayloadType) -> None:
        read = type_of_schema(carried(kind))
        if kind.rules or "date-time" in str(schema_of(kind)) or "#/$defs" in str(schema_of(kind)):
            return  # rules and instants are not checked, and a part may have some
        for data, accepted in cases_of(kind, 40, random.Random(kind.name)):
            if not accepted:
                with pytest.raises(ContractError):
                    read.decode(msgspec.json.encode(data))


class Card(msgspec.Struct, frozen=True, kw_only=True, tag="card", tag_field="by"):
    number: Annotated[str, msgspec.Meta(pattern=r"^[0-9]{4}\Z", max_length=4)]


class Cash(msgspec.Struct, frozen=True, kw_only=True, tag="cash", tag_field="by"):
    cents: Annotated[int, msgspec.Meta(ge=0)]


class Tree(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    below: list[Tree] = []


@payload("shop.order", version="2.3.0", performative="request", required_options=("task_id",), ttl_s=60)
class Order(msgspec.Struct, frozen=True, kw_only=True, rename={"from_": "from", "item_count": "item-count"}):
    """What a customer buys."""

    from_: str
    item_count: int = 1
    pay: Card | Cash
    at: datetime | None = None
    kind: Literal["gift", "own", None] = None
    tree: Tree | None = None
    prices: dict[str, float] = {}
    pair: tuple[int, str] = (1, "a")
    photo: bytes = b""
    maybe: str | msgspec.UnsetType = msgspec.UNSET
    either: int | list[str] = 0
    card: Card = Card(number="0000")


@payload("shop.data")
@dataclass
class Data:
    sku: str
    tags: list[str] = field(default_factory=list)


@payload("shop.dict")
class Dict(TypedDict, total=False):
    sku: str


@payload("shop.model")
class Model(BaseModel):
    sku: str
    count: int = 3


ORDERS: list[tuple[dict[str, Any], str]] = [
    ({"from": "a", "pay": {"by": "card", "number": "1234"}}, ""),
    ({"from": "a", "item-count": 2, "pay": {"by": "cash", "cents": 5}, "kind": "gift", "either": ["x"]}, ""),
    ({"from": "a", "pay": {"by": "cash", "cents": 5}, "tree": {"name": "r", "below": [{"name": "b"}]}}, ""),
    ({"from": "a", "pay": {"by": "cash", "cents": 5}, "pair": [2, "b"], "prices": {"tea": 1.5}, "photo": "aGk="}, ""),
    ({"from": "a", "pay": {"by": "cash", "cents": 5}, "at": "2026-01-31T12:00:00Z", "new": 1}, ""),
    ({"pay": {"by": "cash", "cents": 5}}, "/data"),
    ({"from": 1, "pay": {"by": "cash", "cents": 5}}, "/data/from"),
    ({"from": "a", "pay": {"by": "card", "number": "12345"}}, "/data/pay/number"),
    ({"from": "a", "pay": {"by": "cash", "cents": -1}}, "/data/pay/cents"),
    ({"from": "a", "pay": {"by": "barter"}}, "/data/pay"),
    ({"from": "a", "pay": {"by": "cash", "cents": 5}, "item-count": "2"}, "/data/item-count"),
]


@pytest.mark.parametrize(("data", "pointer"), ORDERS)
def test_a_struct_of_many_forms_is_judged_as_by_its_class(data: dict[str, Any], pointer: str) -> None:
    kind, text = payload_type(Order), msgspec.json.encode(data)
    read = type_of_schema(carried(kind))
    if not pointer:
        assert kind.decode(read.encode(read.decode(text))) == kind.decode(text)
        return
    for each in (kind, read):
        with pytest.raises(ContractError) as caught:
            each.decode(text)
        assert caught.value.pointer.startswith(pointer)


@pytest.mark.parametrize("cls", [Data, Dict, Model])
def test_each_form_of_class_is_read_from_its_schema(cls: Any) -> None:
    read = type_of_schema(carried(payload_type(cls)))
    assert read.decode(b'{"sku": "tea"}').sku == "tea"
    with pytest.raises(ContractError, match="/data/sku"):
        read.decode(b'{"sku": 1}')


def test_fields_and_terms_are_shown_from_the_schema() -> None:
    read = type_of_schema(carried(payload_type(Order)))
    assert [field.encode_name for field in read.fields] == [each.encode_name for each in payload_type(Order).fields]
    assert read.terms == payload_type(Order).terms
    assert example_of(type_of_schema(carried(payload_type(New)))) == {"places": []}


@payload("shop.moved", version="1.4.0")
class Old(msgspec.Struct, frozen=True, kw_only=True):
    place: str


@payload("shop.moved", version="2.0.0", upcasters={1: Upcaster(Old, lambda old: {"places": [old["place"]]})})
class New(msgspec.Struct, frozen=True, kw_only=True):
    places: list[str]


def sealed(version: str, data: bytes) -> Message:
    metadata = Metadata(
        conversation_id="talk",
        hops=0,
        message_id="m-1",
        message_type="shop.moved",
        namespace="agents",
        protocol="sealbus/1",
        schema_version=version,
        sender=Agent(id="mover@svc"),
        timestamp="2026-01-01T00:00:00.000Z",
    )
    return sealing.seal(data, metadata, Routing(expires_at="2026-01-01T01:00:00.000Z"))


def test_an_older_major_is_judged_by_its_own_schema() -> None:
    known = registry_of_schemas([carried(payload_type(New)), carried(payload_type(Old))])
    read = known.get("shop.moved")
    assert read is not None
    assert (read.version, read.reads("1.9.0"), read.reads("3.0.0")) == ("2.0.0", True, False)
    assert read.open(sealed("2.1.0", b'{"places":["a"]}')).places == ["a"]
    assert read.open(sealed("1.4.0", b'{"place":"a"}')).place == "a"
    with pytest.raises(ContractError, match="place"):
        read.open(sealed("1.4.0", b'{"places":["a"]}'))
    with pytest.raises(ContractError) as caught:
        read.open(sealed("3.0.0", b"{}"))
    assert caught.value.reason == "unsupported_version"


def test_a_folder_of_schemas_is_a_registry(tmp_path: Path) -> None:
    files = SchemaFolder(tmp_path)
    for cls in (Order, New, Old):
        kind = payload_type(cls)
        files.publish(kind.name, SchemaVersion.of(kind.version), schema_of(kind))
    known = registry(str(tmp_path), below=BUILT_IN)
    assert {"shop.order", "shop.moved", "task.request"} <= known.names()
    assert registry(str(tmp_path / "none")).names() == frozenset()
    (tmp_path / "shop.order" / "2.4.0.json").write_text("no schema", "utf-8")
    with pytest.raises(ConfigurationError, match=r"2\.4\.0\.json"):
        registry(str(tmp_path))


@payload("research.request", overrides=True)
class Research(msgspec.Struct, frozen=True, kw_only=True):
    question: str


def test_a_built_in_type_is_read_only_where_a_class_overrides_it() -> None:
    built_in = BUILT_IN.get("research.request")
    assert built_in is not None
    assert registry_of_schemas([carried(built_in)], below=BUILT_IN).get("research.request") is built_in
    known = registry_of_schemas([carried(payload_type(Research))], below=BUILT_IN).get("research.request")
    assert known is not None
    assert known.decode(b'{"question": "why?"}').question == "why?"


def test_a_registered_type_is_published_by_its_schema() -> None:
    read = type_of_schema(carried(payload_type(Order)))
    order = read.decode(b'{"from": "a", "pay": {"by": "cash", "cents": 5}}')
    assert payload_type(order).name == "shop.order"
    assert payload_type(Order).decode(encode_payload(order)) == Order(from_="a", pay=Cash(cents=5))


SCHEMAS = [carried(payload_type(cls)) for cls in (Order, Data, New)]
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=5)
    | st.sampled_from(["object", "^(a+)+$"]),
    lambda below: st.lists(below, max_size=3) | st.dictionaries(st.text(max_size=5), below, max_size=3),
    max_leaves=5,
)


def places(value: Any) -> list[tuple[Any, Any]]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [each for key, below in items for each in [(value, key), *places(below)]]


@given(st.sampled_from(SCHEMAS), st.data())
def test_whatever_a_schema_says_it_is_read_or_refused(schema: dict[str, Any], data: st.DataObject) -> None:
    """A schema may come from a card, so from anybody who may announce an agent."""
    changed = copy.deepcopy(schema)
    for _ in range(data.draw(st.integers(1, 3))):
        value, key = data.draw(st.sampled_from(places(changed)))
        value[key] = data.draw(JSON)
    try:
        kind = type_of_schema(changed)
    except ContractError:
        return
    try:
        kind.decode(b'{"from": "a", "pay": {"by": "cash", "cents": 5}, "sku": "tea"}')
    except ContractError:
        return


def test_a_schema_that_nests_without_end_is_refused() -> None:
    deep: dict[str, Any] = {"type": "string"}
    for _ in range(5_000):
        deep = {"type": "array", "items": deep}
    with pytest.raises(ContractError):
        type_of_schema({"title": "shop.deep", "version": "1.0.0", "type": "object", "properties": {"a": deep}})
