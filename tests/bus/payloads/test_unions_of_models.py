"""Unions and Literals of Pydantic models as protocols of agents write them: A2A, MCP and AG-UI.

A union whose members differ by a Literal, or by their required fields, is carried; what would be read as another class
than it was is refused where it is published.
"""

from __future__ import annotations

import enum
import uuid
from datetime import UTC, datetime
from decimal import Decimal
from typing import Annotated, Any, Generic, Literal, TypeVar

import msgspec
import pydantic
import pytest
import typing_extensions
from pydantic import BaseModel, Field, RootModel

from bus.errors import ContractError, UnknownTypeError
from bus.payloads.checked_json import CheckedJson, Json
from bus.payloads.payload_types import PayloadType, encode_payload, payload, payload_type
from bus.schemas.json_schema import schema_of
from sealbus import App

T = TypeVar("T")


class Event(enum.StrEnum):
    STARTED = "STARTED"
    ENDED = "ENDED"


class Code(enum.IntEnum):
    PARSE = -32700
    METHOD = -32601


class Text(BaseModel):
    kind: Literal["text"] = "text"
    text: str


class Bytes(BaseModel):
    data: str
    mime_type: str | None = None


class Uri(BaseModel):
    mime_type: str | None = None
    uri: str


class File(BaseModel):
    kind: Literal["file"] = "file"
    file: Bytes | Uri


class Part(RootModel[Text | File]):
    root: Text | File


class Started(BaseModel):
    type: Literal[Event.STARTED] = Event.STARTED
    run: str


class Ended(BaseModel):
    type: Literal[Event.ENDED] = Event.ENDED
    run: str


class Parse(BaseModel):
    code: Literal[Code.PARSE] = Code.PARSE
    message: str | None = None


class Method(BaseModel):
    code: Literal[-32601] = -32601
    message: str | None = None


class On(BaseModel):
    on: Literal[True] = True
    level: int


class Off(BaseModel):
    on: Literal[False] = False
    level: int


class Short(BaseModel):
    id: str


class Long(BaseModel):
    id: str
    page: int


class Plain(BaseModel):
    role: str
    content: str | None = None


class Tooled(BaseModel):
    role: str
    content: str | list[str] | None = None


class Loud(BaseModel):
    kind: Literal["sound"] = "sound"
    volume: Literal["loud"] = "loud"


class Quiet(BaseModel):
    kind: Literal["sound"] = "sound"
    volume: Literal["quiet"] = "quiet"


class Told(typing_extensions.TypedDict):
    told: Literal["yes"]


class Untold(typing_extensions.TypedDict):
    told: Literal["no"]


def marked(annotation: Any, **options: Any) -> PayloadType:
    cls = pydantic.create_model("Holder", x=(annotation, Field(**options)))
    return payload_type(payload("holder.of")(cls))


@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        (Text | File, File(file=Uri(uri="file:///a"))),
        (list[Part], [Part(Text(text="a")), Part(File(file=Bytes(data="aGk=")))]),
        (Part | None, Part(Text(text="a"))),
        (Part | str, Part(Text(text="a"))),
        (dict[str, Bytes | Uri], {"a": Uri(uri="x"), "b": Bytes(data="y")}),
        (Started | Ended, Ended(run="r")),
        (Started | Ended | None, None),
        (Annotated[Started | Ended, Field(discriminator="type")], Started(run="r")),
        (Literal[Event.STARTED, "other"], Event.STARTED),
        (Literal[Code.PARSE, 5], Code.PARSE),
        (Parse | Method, Method()),
        (On | Off, Off(level=1)),
        (Short | Long, Long(id="a", page=1)),
        (Long | Short, Short(id="a")),
        (Plain | Tooled, Tooled(role="a", content=["b"])),
        (Told | Untold, {"told": "no"}),
        (str | Text | File, "a"),
        (Part | Text, Part(File(file=Uri(uri="x")))),
        (Annotated[On | Off, Field(discriminator="on")], On(level=2)),
        (Annotated[Text | Annotated[Loud | Quiet, Field(discriminator="volume")], Field(discriminator="kind")], Loud()),
        (
            Annotated[
                Annotated[Text, pydantic.Tag("t")] | Annotated[Uri, pydantic.Tag("u")],
                pydantic.Discriminator(lambda value: "u" if "uri" in dict(value) else "t"),
            ],
            Uri(uri="x"),
        ),
        (str | Text | File | list[Text | File], [Text(text="a")]),
    ],
)
def test_a_union_is_read_as_what_was_written(annotation: Any, value: Any) -> None:
    kind = marked(annotation)
    subject = kind.cls(x=value)
    assert kind.decode(encode_payload(subject)) == subject
    assert "properties" in schema_of(kind)


@pytest.mark.parametrize(
    ("annotation", "data"),
    [
        (Text | File, b'{"x":{"kind":"text"}}'),
        (Bytes | Uri, b'{"x":{"mime_type":"text/plain"}}'),
        (Bytes | Uri, b'{"x":{"data":1}}'),
        (Started | Ended, b'{"x":{"run":"r","type":"GONE"}}'),
        (Literal[Event.STARTED], b'{"x":"ENDED"}'),
        (Literal[Code.PARSE], b'{"x":"-32700"}'),
        (On | Off, b'{"x":{"level":1,"on":1}}'),
    ],
)
def test_data_of_no_member_are_refused(annotation: Any, data: bytes) -> None:
    with pytest.raises(ContractError) as caught:
        marked(annotation).decode(data)
    assert caught.value.reason == "schema_violation"
    assert caught.value.pointer.startswith("/data/x")


def test_what_would_be_read_as_another_class_is_refused_when_it_is_published() -> None:
    kind = marked(Plain | Tooled)
    with pytest.raises(ContractError, match="would be read as Plain, not as Tooled") as caught:
        encode_payload(kind.cls(x=Tooled(role="a", content="b")))
    assert caught.value.pointer == "/data/x"
    assert kind.decode(encode_payload(kind.cls(x=Plain(role="a")))).x == Plain(role="a")


@pytest.mark.parametrize("annotation", [datetime | str, str | datetime, uuid.UUID | str, Decimal | str | int])
@pytest.mark.parametrize(
    "value",
    ["a", "1", "2026-01-31T12:00:00Z", str(uuid.UUID(int=1)), datetime(2026, 1, 31, tzinfo=UTC), uuid.UUID(int=1)],
)
def test_a_text_is_read_as_what_it_was_or_refused_when_it_is_published(annotation: Any, value: Any) -> None:
    kind = marked(annotation)
    try:
        subject = kind.cls(x=value)
    except pydantic.ValidationError:
        return
    try:
        data = encode_payload(subject)
    except ContractError as error:
        refused = error.text
    else:
        assert kind.decode(data) == subject
        return
    assert "would be read as" in refused


def test_members_with_the_same_fields_are_refused_when_they_are_marked() -> None:
    class Dog(BaseModel):
        name: str

    class Cow(BaseModel):
        name: str

    with pytest.raises(TypeError, match=r"distinguishes them.*CheckedJson"):
        marked(Dog | Cow)


def test_a_marked_union_is_any_json_and_its_model_decides() -> None:
    kind = marked(Annotated[Text | dict[str, Any], CheckedJson()])
    assert kind.decode(b'{"x":{"a":1}}').x == {"a": 1}
    assert kind.decode(encode_payload(kind.cls(x=Text(text="a")))).x == Text(text="a")


def test_a_root_model_of_objects_is_a_payload() -> None:
    kind = payload_type(payload("part.sent", performative="inform")(Part))
    for part in (Part(Text(text="a")), Part(File(file=Uri(uri="x")))):
        assert kind.decode(encode_payload(part)) == part
    assert set(schema_of(kind)["properties"]) == {"kind", "text", "file"}
    with pytest.raises(TypeError, match="data is an object"):
        payload_type(payload("numbers.sent")(RootModel[list[int]])).resolve()


async def test_a_root_model_reaches_its_handler() -> None:
    @payload("answer.part", performative="inform", resource="/kind")
    class Answer(RootModel[Text | File]):
        pass

    app, seen = App("reader@svc"), []

    @app.on(Answer)
    async def read(answer: Answer) -> None:
        seen.append(answer)

    async with app.test() as bus:
        await bus.publish(Answer(Text(text="a")))
        await bus.settle()
        bus.assert_all_handled()
    assert seen == [Answer(Text(text="a"))]
    assert payload_type(Answer).resource_of(seen[0]) == "text"


def test_a_pattern_of_a_model_is_checked_by_the_model() -> None:
    kind = marked(str, pattern=r"^(/([^~/]|~[01])*)*$")
    assert kind.decode(b'{"x":"/a/b"}').x == "/a/b"
    with pytest.raises(ContractError, match="pattern"):
        kind.decode(b'{"x":"a"}')
    assert schema_of(kind)["properties"]["x"]["pattern"] == r"^(/([^~/]|~[01])*)*$"


def test_a_pattern_that_python_matches_must_be_cheap() -> None:
    class Slow(BaseModel):
        model_config = pydantic.ConfigDict(regex_engine="python-re")
        x: str = Field(pattern="^(a+)+$", max_length=64)

    with pytest.raises(ContractError, match="check more"):
        payload("slow.of")(Slow)


class JsonStruct(msgspec.Struct):
    x: Json


class JsonDict(typing_extensions.TypedDict):
    x: Json


class JsonModel(BaseModel):
    x: Json


@pytest.mark.parametrize("cls", [JsonStruct, JsonDict, JsonModel])
@pytest.mark.parametrize("value", [None, 1, 1.5, "a", True, [1, [None]], {"a": {"b": []}}])
def test_json_is_any_json_value_in_every_form(cls: Any, value: Any) -> None:
    kind = payload_type(payload("json.of")(cls))
    data = encode_payload(kind.cls(x=value))
    assert data == msgspec.json.encode({"x": value})
    assert kind.decode(data) == kind.cls(x=value)


@pytest.mark.parametrize("cls", [JsonStruct, JsonDict, JsonModel])
@pytest.mark.parametrize("value", [float("nan"), 2**60, {1: "a"}, datetime(2026, 1, 31, tzinfo=UTC), Text(text="a")])
def test_json_refuses_what_json_does_not_have(cls: Any, value: Any) -> None:
    kind = payload_type(payload("json.of")(cls))
    with pytest.raises(ContractError) as caught:
        encode_payload(kind.cls(x=value))
    assert caught.value.pointer.startswith("/data")


def test_raw_text_is_refused_when_it_is_marked() -> None:
    with pytest.raises(ContractError, match="write Json"):
        payload("raw.of")(msgspec.defstruct("RawText", [("x", msgspec.Raw)]))


def test_a_generic_struct_with_arguments_is_a_class_of_its_own() -> None:
    numbers, words = payload("box.of-numbers")(Box[int]), payload("box.of-words")(Box[str])
    assert encode_payload(numbers(x=1)) == b'{"x":1}'
    assert payload_type(words).decode(b'{"x":"a"}') == words(x="a")
    assert schema_of(payload_type(words))["properties"]["x"] == {"type": "string"}
    with pytest.raises(ContractError, match="expected `int`"):
        payload_type(numbers).decode(b'{"x":"a"}')
    with pytest.raises(UnknownTypeError, match="not a payload type"):
        encode_payload(Box(x=1))


def test_a_generic_struct_without_its_arguments_is_refused_with_the_class_to_write() -> None:
    with pytest.raises(TypeError, match=r"write `class BoxOf...\(Box\[T\]\)"):
        payload("box.of")(Box[T])  # type: ignore[valid-type]


class Box(msgspec.Struct, Generic[T]):
    x: T
