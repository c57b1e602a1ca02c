"""A tool's schema is one that OpenAI and Anthropic accept, and has the verdict of whoever reads the arguments."""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import enum
import json
from typing import Annotated, Any, Literal, NotRequired, TypedDict

import jsonschema_rs
import msgspec
import pydantic
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bus.payloads.kept_values import kept_type
from bus.schemas.tool_rules import strict_budget, strict_faults, tool_faults
from bus.schemas.tool_schemas import first_unknown, plain_schema, strict_schema, without_nulls
from sealbus.errors import ContractError


class Size(enum.Enum):
    SMALL = "small"
    LARGE = "large"


class Part(msgspec.Struct):
    text: str
    count: int | None = None
    size: Size = Size.SMALL


class AsStruct(msgspec.Struct):
    name: str
    limit: Annotated[int, msgspec.Meta(ge=1, le=9)] = 3
    parts: list[Part] = []
    mode: Literal["fast", "slow"] = "fast"
    first: Part | None = None


@dataclasses.dataclass
class AsDataclass:
    name: str
    limit: Annotated[int, msgspec.Meta(ge=1, le=9)] = 3
    parts: list[Part] = dataclasses.field(default_factory=list)
    mode: Literal["fast", "slow"] = "fast"
    first: Part | None = None


class AsDict(TypedDict):
    name: str
    limit: NotRequired[Annotated[int, msgspec.Meta(ge=1, le=9)]]
    parts: NotRequired[list[Part]]
    mode: NotRequired[Literal["fast", "slow"]]
    first: NotRequired[Part | None]


class PartModel(pydantic.BaseModel):
    text: str
    count: int | None = None
    size: Size = Size.SMALL


class AsModel(pydantic.BaseModel):
    name: str
    limit: Annotated[int, pydantic.Field(ge=1, le=9)] = 3
    parts: list[PartModel] = []
    mode: Literal["fast", "slow"] = "fast"
    first: PartModel | None = None


class OfModel(msgspec.Struct):
    """A model in a Struct, as a parameter of a tool is."""

    inner: AsModel


FORMS: tuple[Any, ...] = (AsStruct, AsDataclass, AsDict)
SCALARS = st.none() | st.booleans() | st.integers(-3, 12) | st.sampled_from(["", "a", "fast", "large", "slow"])
PARTS = st.dictionaries(st.sampled_from(["text", "count", "size", "other"]), SCALARS, max_size=4)
ARGUMENTS = st.fixed_dictionaries(
    {"name": st.just("x") | SCALARS},
    optional={
        "limit": SCALARS,
        "parts": st.lists(PARTS, max_size=2) | SCALARS,
        "mode": SCALARS,
        "first": PARTS | SCALARS,
        "nmae": SCALARS,
    },
)


def described(cls: Any) -> dict[str, Any]:
    return plain_schema(OfModel)["properties"]["inner"] if cls is AsModel else plain_schema(cls)


def is_read(cls: Any, value: Any, schema: Any) -> bool:
    if first_unknown(value, schema) is not None:
        return False
    try:
        kept_type(cls).read(value)
    except ContractError:
        return False
    return True


def is_strictly_read(cls: Any, value: Any) -> bool:
    schema = described(cls)
    return is_read(cls, without_nulls(value, schema), schema)


@pytest.mark.parametrize("cls", [*FORMS, AsModel])
def test_every_form_of_class_has_a_schema_that_both_providers_accept(cls: Any) -> None:
    schema = described(cls)
    assert schema["type"] == "object"
    assert tool_faults("search", "Searches.", schema) == []
    assert strict_faults(strict_schema(schema)) == []
    jsonschema_rs.meta.validate(schema)
    jsonschema_rs.meta.validate(strict_schema(schema))


@given(st.sampled_from([*FORMS, AsModel]), ARGUMENTS)
@settings(deadline=None, max_examples=400)
def test_the_schema_has_the_verdict_of_the_reader_but_for_unknown_members(cls: Any, value: Any) -> None:
    schema = described(cls)
    fits = jsonschema_rs.validator_for(schema).is_valid(value)
    assert fits == (is_read(cls, value, schema) or is_read_without_unknown(cls, value))


def is_read_without_unknown(cls: Any, value: Any) -> bool:
    try:
        kept_type(cls).read(value)
    except ContractError:
        return False
    return True


@given(st.sampled_from([*FORMS, AsModel]), ARGUMENTS)
@settings(deadline=None, max_examples=400)
def test_what_the_strict_schema_allows_is_read_unless_a_text_forbids_it(cls: Any, value: Any) -> None:
    if not jsonschema_rs.validator_for(strict_schema(described(cls))).is_valid(value):
        return
    limit = value["limit"]
    assert is_strictly_read(cls, value) == (limit is None or 1 <= limit <= 9)


def test_a_null_for_what_was_left_out_is_left_out() -> None:
    schema = plain_schema(AsStruct)
    value = {"name": "x", "limit": None, "mode": None, "parts": [{"text": "t", "size": None}], "first": None}
    assert without_nulls(value, schema) == {"name": "x", "parts": [{"text": "t"}], "first": None}


def test_what_the_strict_form_cannot_state_is_text() -> None:
    members = strict_schema(plain_schema(AsStruct))["properties"]
    assert members["limit"]["description"] == "(default: 3; maximum: 9; minimum: 1)"


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        (dict[str, int], "an object with free keys"),
        (Any, "a value of any kind"),
        (tuple[int, str], "a type for each place"),
        (list[Any], "a value of any kind"),
        (list[dict[str, Any]], "an object with free keys"),
    ],
)
def test_what_has_no_strict_form_says_where(kind: Any, why: str) -> None:
    cls = msgspec.defstruct("Free", [("part", kind)])
    schema = plain_schema(cls)
    assert tool_faults("search", "", schema) == []
    with pytest.raises(ContractError, match=f"^/properties/part.*{why}"):
        strict_schema(schema)


class Lists(pydantic.BaseModel):
    some: list[Any] = []
    more: dict[str, list[Any]] = {}


@pytest.mark.parametrize(
    "kind",
    [list, tuple, set, list[Any], tuple[Any, ...], dict[str, list[Any]], list[list[Any]], Lists],
)
def test_a_list_of_whatever_states_its_items_and_has_no_strict_form(kind: Any) -> None:
    schema = plain_schema(msgspec.defstruct("Lists", [("part", kind)]))
    assert tool_faults("search", "", schema) == []
    assert '"items": {}' in json.dumps(schema)
    jsonschema_rs.meta.validate(schema)
    with pytest.raises(ContractError):
        strict_schema(schema)


@pytest.mark.parametrize(
    "kind", [datetime.datetime, datetime.date, decimal.Decimal, bytes, set[int], float, bool, Size, list[str], None]
)
def test_every_scalar_has_a_strict_form(kind: Any) -> None:
    schema = plain_schema(msgspec.defstruct("Scalar", [("part", kind), ("other", kind, None)]))
    assert strict_faults(strict_schema(schema)) == []


class Node(msgspec.Struct):
    children: list[Node] = []


def test_a_class_that_contains_itself_is_told_once_and_has_no_strict_form() -> None:
    schema = plain_schema(Node)
    assert tool_faults("plant", "", schema) == []
    assert kept_type(Node).read({"children": [{"children": [{}]}]}) == Node(children=[Node(children=[Node()])])
    with pytest.raises(ContractError, match="free keys"):
        strict_schema(schema)


@pytest.mark.parametrize(
    ("name", "description", "schema", "fault"),
    [
        ("", "", {"type": "object"}, "its name is ''"),
        ("a b", "", {"type": "object"}, "its name is 'a b'"),
        ("ä", "", {"type": "object"}, "its name is 'ä'"),
        ("x" * 65, "", {"type": "object"}, "its name is"),
        ("x\n", "", {"type": "object"}, "its name is"),
        ("x", "d" * 1025, {"type": "object"}, "its description has 1025 characters"),
        ("x", "", {"$ref": "#/$defs/A"}, "the root of its schema is not an object"),
        ("x", "", {"type": "object", "anyOf": [{}]}, "its schema has anyOf at the root"),
        ("x", "", {"type": "object", "properties": {"a": {"$ref": "#"}}}, "its schema has $ref at /properties/a"),
        ("x", "", {"type": "object", "properties": {"größe": {}}}, "the argument /properties/größe"),
        ("x", "", {"type": "object", "properties": {"a": {"properties": {"$b": {}}}}}, "/properties/a/properties/$b"),
        ("x", "", {"type": "object", "properties": {"a": {"type": "array"}}}, "the list at /properties/a states no"),
    ],
)
def test_what_a_provider_refuses_in_every_mode_is_a_fault(
    name: str, description: str, schema: dict[str, Any], fault: str
) -> None:
    assert any(fault in each for each in tool_faults(name, description, schema))


def nested(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "object", "properties": {}, "required": [], "additionalProperties": False}
    for _ in range(depth - 1):
        schema = {**schema, "properties": {"a": schema}, "required": ["a"]}
    return schema


def closed(properties: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": [*properties], "additionalProperties": False}


@pytest.mark.parametrize(
    ("schema", "fault"),
    [
        (nested(11), "11 levels of nesting"),
        (closed({f"p{number}": {"type": "string"} for number in range(5001)}), "5001 properties"),
        (closed({"a": {"type": "string", "enum": [str(number) for number in range(1001)]}}), "1001 enumerated values"),
        (closed({"a": {"type": "string", "enum": ["x" * 60 + str(n) for n in range(251)]}}), "more than 250 values"),
        (closed({"a": {"type": "string", "minLength": 1}}), "has minLength, which strict mode lacks"),
        (closed({"a": {}}), "states no type"),
        ({**closed({"a": {"type": "string"}}), "required": []}, "does not require every property"),
        ({"type": "object", "properties": {}, "required": []}, "does not forbid additional properties"),
        (closed({"a": {"type": "array"}}), "states no items"),
    ],
)
def test_what_strict_mode_refuses_is_a_fault(schema: dict[str, Any], fault: str) -> None:
    assert any(fault in each for each in strict_faults(schema))


def test_ten_levels_are_accepted() -> None:
    assert strict_faults(nested(10)) == []


def test_arguments_with_several_types_are_counted() -> None:
    assert strict_budget(strict_schema(plain_schema(AsStruct))) == 8


@pytest.mark.parametrize(
    ("value", "pointer"),
    [
        ({"name": "x", "nmae": 1}, "/nmae"),
        ({"name": "x", "parts": [{"text": "t"}, {"text": "t", "txet": "t"}]}, "/parts/1/txet"),
        ({"name": "x", "first": {"text": "t", "a/b": 1}}, "/first/a~1b"),
    ],
)
def test_an_argument_that_does_not_exist_is_found_at_any_depth(value: Any, pointer: str) -> None:
    fault = first_unknown(value, plain_schema(AsStruct))
    assert fault is not None
    assert fault.pointer == pointer
