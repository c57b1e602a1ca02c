"""Dataclasses and TypedDicts as payloads: what is particular to each, and what cannot be marked."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import KW_ONLY, InitVar, dataclass, field
from typing import Any, ClassVar, NotRequired, Required, TypedDict

import msgspec
import pydantic
import pytest
import typing_extensions

from bus.errors import ConfigurationError, ContractError, UnknownTypeError
from bus.payloads.payload_types import encode_payload, payload, payload_type
from sealbus import App, Context


@payload("form.order")
@dataclass(frozen=True, slots=True)
class Order:
    sku: str
    _: KW_ONLY
    count: int = 1
    lines: list[str] = field(default_factory=list)
    total: int = field(init=False, default=0)
    limit: ClassVar[int] = 9

    def __post_init__(self) -> None:
        if self.count > self.limit:
            raise ValueError("more than there are")


@payload("form.line")
class Line(TypedDict, total=False):
    sku: Required[str]
    count: int
    parts: list[Line]


class Longer(Line, total=False):
    note: Required[str]
    count: Required[int]  # type: ignore[misc]


@payload("form.place")
class Place(typing_extensions.TypedDict):
    town: str
    street: NotRequired[str]


class Model(pydantic.BaseModel):
    a: int = 1


class Mapped:
    pass


class Holder(msgspec.Struct):
    line: Line


# --- dataclasses ------------------------------------------------------------------------------------------------------


def test_a_frozen_dataclass_with_slots_is_written_and_read_back() -> None:
    order = Order("tea", count=2, lines=["a"])
    assert encode_payload(order) == b'{"count":2,"lines":["a"],"sku":"tea","total":0}'
    assert payload_type(Order).decode(encode_payload(order)) == order


def test_an_error_in_post_init_is_a_schema_violation() -> None:
    with pytest.raises(ContractError, match="more than there are") as caught:
        payload_type(Order).decode(b'{"count":10,"sku":"tea"}')
    assert caught.value.reason == "schema_violation"


def test_a_dataclass_with_init_only_fields_cannot_be_marked() -> None:
    @dataclass
    class Initial:
        a: int
        b: InitVar[int] = 0

    with pytest.raises(TypeError, match="InitVar"):
        payload("form.initial")(Initial)


def test_a_dataclass_that_is_a_list_cannot_be_marked() -> None:
    @dataclass
    class Listed(list[int]):
        a: int

    with pytest.raises(TypeError, match="not dataclass"):
        payload("form.listed")(Listed)


def test_a_mark_below_the_dataclass_decorator_gets_a_helpful_error() -> None:
    with pytest.raises(TypeError, match=r"write `@dataclass` between @payload\(\.\.\.\) and the class"):

        @dataclass
        @payload("form.turned")
        class Turned:
            a: int


# --- TypedDicts -------------------------------------------------------------------------------------------------------


def test_a_marked_typed_dict_makes_dicts() -> None:
    line = Line(sku="tea")
    assert isinstance(line, dict)
    assert line == {"sku": "tea"}
    assert type(payload_type(Line).decode(b'{"sku":"tea"}')) is Line


def test_a_payload_made_from_another_is_one() -> None:
    line = Line(sku="tea", parts=[{"sku": "leaf"}])
    for other in (line.copy(), line | {"count": 2}, copy.copy(line), copy.deepcopy(line), Line(**line), Line(line)):  # type: ignore[misc]
        assert type(other) is Line
        assert other["sku"] == "tea"


def test_a_plain_dict_has_no_message_type() -> None:
    with pytest.raises(UnknownTypeError, match=r"write MyPayload\(\.\.\.\), or MyPayload\(the_dict\)"):
        encode_payload({"sku": "tea"})


def test_unknown_members_of_a_typed_dict_are_refused_by_publish() -> None:
    with pytest.raises(ContractError, match="Line has no field 'a/b'") as caught:
        encode_payload(Line(sku="tea", **{"a/b": 1}))  # type: ignore[typeddict-item]
    assert caught.value.pointer == "/data/a~1b"
    assert encode_payload(Line(sku="tea", x_own=1)) == b'{"sku":"tea","x_own":1}'  # type: ignore[typeddict-unknown-key]


@pytest.mark.parametrize(
    ("data", "pointer"),
    [(b"{}", "/data/sku"), (b'{"parts":[{"sku":"a"},{}],"sku":"a"}', "/data/parts/1/sku")],
)
def test_required_members_are_required_at_any_depth(data: bytes, pointer: str) -> None:
    with pytest.raises(ContractError) as caught:
        payload_type(Line).decode(data)
    assert caught.value.pointer == pointer


def test_a_subclass_of_a_marked_typed_dict_has_all_fields_and_no_mark() -> None:
    with pytest.raises(UnknownTypeError, match="that of Line is not inherited"):
        encode_payload(Longer(sku="a", note="n", count=1))
    marked = payload("form.longer")(Longer)
    assert marked is Longer
    assert encode_payload(Longer(sku="a", note="n", count=1)) == b'{"count":1,"note":"n","sku":"a"}'
    for missing in ("sku", "note", "count"):
        data = {name: value for name, value in Longer(sku="a", note="n", count=1).items() if name != missing}
        with pytest.raises(ContractError) as caught:
            payload_type(Longer).decode(msgspec.json.encode(data))
        assert caught.value.pointer == f"/data/{missing}"


def test_a_typed_dict_of_typing_extensions_is_one() -> None:
    assert encode_payload(Place(town="Ulm")) == b'{"town":"Ulm"}'


def test_a_marked_typed_dict_may_be_a_part_of_another_payload() -> None:
    assert msgspec.json.decode(b'{"line":{"sku":"a"}}', type=Holder) == Holder(line={"sku": "a"})
    with pytest.raises(msgspec.ValidationError, match=r"required field `sku` - at `\$\.line`"):
        msgspec.json.decode(b'{"line":{}}', type=Holder)


@pytest.mark.parametrize("part", [Model, Mapped, type])
def test_a_part_that_could_never_be_read_is_refused_when_it_is_marked(part: Any) -> None:
    for cls in (
        msgspec.defstruct("Whole", [("part", list[part])]),
        dataclass(type("Whole", (), {"__annotations__": {"part": part | None}})),
        TypedDict("Whole", {"part": part}),  # type: ignore[operator]
    ):
        with pytest.raises(ContractError, match=f"part: {part.__qualname__} is none of the types"):
            payload("form.whole")(cls)


# --- handlers ---------------------------------------------------------------------------------------------------------


class Unmarked(TypedDict):
    sku: str


@dataclass
class UnmarkedData:
    sku: str


def test_a_handler_takes_a_typed_dict_by_its_name_or_as_a_mapping() -> None:
    @App("a@svc").on(Line)
    async def by_name(line: Line, context: Context) -> Line | None: ...

    @App("a@svc").on(Line)
    async def as_mapping(line: Mapping[str, Any]) -> list[Place]: ...  # type: ignore[empty-body]


@pytest.mark.parametrize("hint", [Unmarked, UnmarkedData, Order, Place, int])
def test_a_handler_of_another_payload_is_refused(hint: Any) -> None:
    async def handle(line: Any) -> None: ...

    handle.__annotations__["line"] = hint
    with pytest.raises(ConfigurationError, match=f"handles Line .* annotated as {hint.__name__}"):
        App("a@svc").on(Line)(handle)


@pytest.mark.parametrize(
    ("hint", "words"),
    [
        (dict, "returns dict: a handler returns a payload"),
        (dict[str, int], "a handler returns a payload"),
        (Unmarked, "returns Unmarked, which is not marked"),
        (UnmarkedData, "returns UnmarkedData, which is not marked"),
        (str, "returns str: a handler returns a payload"),
    ],
)
def test_a_handler_that_returns_no_payload_is_refused(hint: Any, words: str) -> None:
    async def handle(line: Line) -> Any: ...

    handle.__annotations__["return"] = hint
    with pytest.raises(ConfigurationError) as caught:
        App("a@svc").on(Line)(handle)
    assert words in str(caught.value)
