"""The check of schema evolution over every pair of types: what makes a reader refuse old data is a major change."""

from __future__ import annotations

import datetime as dt
import decimal
import enum
import uuid
from dataclasses import make_dataclass
from itertools import permutations
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import msgspec
import pydantic
import pytest
import typing_extensions
from msgspec import Meta

from bus.errors import ContractError
from bus.payloads.checked_json import Json
from bus.payloads.payload_types import PayloadType, encode_payload, payload, payload_type
from bus.schemas.changes import compare, needed_bump
from bus.schemas.decoder_marks import unmarked
from bus.schemas.json_schema import schema_of
from bus.schemas.review import review_types
from bus.schemas.schema_folder import SchemaFolder
from bus.schemas.versions import SchemaVersion


class Colour(enum.Enum):
    RED = "red"


class Count(enum.Enum):
    ONE = 1


class Pair(NamedTuple):
    a: int
    b: str


class Part(msgspec.Struct):
    a: int = 1


class CatPart(msgspec.Struct, tag="cat"):
    at: dt.datetime | None = None


class DogPart(msgspec.Struct, tag="dog"):
    at: dt.datetime | None = None


AT, DAY, TIME = dt.datetime(2026, 1, 31, 12, tzinfo=dt.UTC), dt.date(2026, 1, 31), dt.time(12, 30)
KINDS: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "str": (str, ("", "a", "red", "1", "2026-01-31", "2026-01-31T12:00:00Z", str(uuid.UUID(int=1)))),
    "int": (int, (0, 1, -5)),
    "float": (float, (0.5, 2.0)),
    "bool": (bool, (True, False)),
    "bytes": (bytes, (b"", b"a", b"\xff")),
    "datetime": (dt.datetime, (AT, AT.replace(tzinfo=None))),
    "aware datetime": (Annotated[dt.datetime, Meta(tz=True)], (AT,)),
    "naive datetime": (Annotated[dt.datetime, Meta(tz=False)], (AT.replace(tzinfo=None),)),
    "date": (dt.date, (DAY,)),
    "time": (dt.time, (TIME, TIME.replace(tzinfo=dt.UTC))),
    "aware time": (Annotated[dt.time, Meta(tz=True)], (TIME.replace(tzinfo=dt.UTC),)),
    "naive time": (Annotated[dt.time, Meta(tz=False)], (TIME,)),
    "timedelta": (dt.timedelta, (dt.timedelta(hours=1),)),
    "UUID": (uuid.UUID, (uuid.UUID(int=1),)),
    "Decimal": (decimal.Decimal, (decimal.Decimal("1.50"),)),
    "null": (None, (None,)),
    "Any": (Any, (None, 1, "a", [1], {"a": 1}, True)),
    "Json": (Json, (None, 1, "a", [1], {"a": 1}, True)),
    "Enum": (Colour, (Colour.RED,)),
    "int Enum": (Count, (Count.ONE,)),
    "Literal": (Literal["a"], ("a",)),
    "optional str": (str | None, (None, "a")),
    "optional datetime": (dt.datetime | None, (None, AT)),
    "int or str": (int | str, (1, "a")),
    "int or datetime": (int | dt.datetime, (1, AT)),
    "list": (list[str], ([], ["a", "a"], ["b"])),
    "list of times": (list[dt.datetime], ([AT],)),
    "list of any": (list[Any], ([1, "a"],)),
    "set": (set[str], ({"a"},)),
    "frozenset": (frozenset[str], (frozenset("ab"),)),
    "set of dates": (set[dt.date], ({DAY},)),
    "tuple": (tuple[str, ...], ((), ("a", "a"))),
    "pair": (tuple[str, str], (("a", "b"),)),
    "pair of times": (tuple[dt.datetime, dt.time], ((AT, TIME),)),
    "NamedTuple": (Pair, (Pair(1, "a"),)),
    "dict": (dict[str, str], ({}, {"a": "b"}, {"2026-01-31": "a"})),
    "dict of times": (dict[str, dt.datetime], ({"a": AT},)),
    "dict of days": (dict[dt.date, str], ({DAY: "a"},)),
    "dict of any": (dict[str, Any], ({"a": 1},)),
    "Struct": (Part, (Part(),)),
    "tagged": (CatPart | DogPart, (DogPart(at=AT),)),
}


def kind_of(annotation: Any, version: str = "1.0.0") -> PayloadType:
    return payload_type(payload("kind.of", version=version)(msgspec.defstruct("Held", [("x", annotation)])))


OLD = {name: kind_of(annotation) for name, (annotation, _) in KINDS.items()}
SCHEMAS = {name: schema_of(kind) for name, kind in OLD.items()}
DATA = {name: [encode_payload(OLD[name].cls(x=value)) for value in values] for name, (_, values) in KINDS.items()}


def is_refused(reader: PayloadType, data: bytes) -> bool:
    try:
        reader.decode(data)
    except ContractError:
        return True
    return False


@pytest.mark.parametrize("name", KINDS)
def test_a_change_that_refuses_old_data_is_major(name: str) -> None:
    for other in KINDS:
        if other == name:
            continue
        refused = any(is_refused(OLD[other], data) for data in DATA[name])
        bump = needed_bump(compare(SCHEMAS[name], SCHEMAS[other]))
        assert not refused or bump in ("review", "major"), f"{name} -> {other}: {bump}"


def test_types_that_read_other_data_have_other_schemas() -> None:
    for one, other in permutations(KINDS, 2):
        alike = not any(is_refused(OLD[other], data) for data in DATA[one]) and not any(
            is_refused(OLD[one], data) for data in DATA[other]
        )
        assert alike or SCHEMAS[one] != SCHEMAS[other], f"{one}, {other}"


def test_texts_read_as_different_types_never_share_a_schema() -> None:
    names = [name for name in KINDS if SCHEMAS[name]["properties"]["x"].get("type") == "string"]
    for one, other in permutations(names, 2):
        changes = compare(SCHEMAS[one], SCHEMAS[other])
        assert needed_bump(changes) == "major", f"{one}, {other}"
        assert changes[0].pointer == "/x"


def of_model(annotation: Any) -> PayloadType:
    return payload_type(payload("kind.of")(pydantic.create_model("Held", x=(annotation, ...))))


MODELS = {
    str(annotation): of_model(annotation)
    for annotation in (
        str,
        pydantic.AnyUrl,
        pydantic.HttpUrl,
        pydantic.IPvAnyAddress,
        pydantic.UUID4,
        pydantic.UUID1,
        uuid.UUID,
        dt.datetime,
        pydantic.AwareDatetime,
        pydantic.NaiveDatetime,
        pydantic.PastDatetime,
        pydantic.FutureDatetime,
        dt.date,
        pydantic.PastDate,
        dt.time,
        dt.timedelta,
        decimal.Decimal,
        pydantic.Base64Bytes,
        pydantic.Base64Str,
        pydantic.Base64UrlStr,
        pydantic.FilePath,
        pydantic.Json,
        dt.datetime | uuid.UUID,
        dt.date | dt.time,
        Literal["a"],
        Colour,
    )
}


def test_texts_of_models_read_as_different_types_never_share_a_schema() -> None:
    schemas = {name: schema_of(kind) for name, kind in MODELS.items()}
    for one, other in permutations(MODELS, 2):
        assert needed_bump(compare(schemas[one], schemas[other])) == "major", f"{one}, {other}"


def test_forms_of_one_type_share_a_schema() -> None:
    for name in ("datetime", "time", "dict of times", "list of times", "optional datetime"):
        model, struct = schema_of(of_model(KINDS[name][0])), SCHEMAS[name]
        assert compare(struct, model) == ()


def test_a_schema_published_without_marks_is_still_the_same(tmp_path: Path) -> None:
    folder = SchemaFolder(tmp_path)
    kind = OLD["datetime"]
    assert folder.publish("kind.of", SchemaVersion.of("1.0.0"), unmarked(schema_of(kind)))
    assert not folder.publish("kind.of", SchemaVersion.of("1.0.0"), schema_of(kind))
    (review,) = review_types([kind], folder, today=DAY)
    assert review.verdict == "ok"


def test_a_model_that_was_published_without_marks_is_unchanged() -> None:
    for kind in MODELS.values():
        schema = schema_of(kind)
        old = unmarked(schema)
        assert "format" not in old["properties"]["x"] or old["properties"]["x"]["format"] not in (
            "uri",
            "ipvanyaddress",
        )
        assert compare(old, schema) == ()


def test_fields_with_the_names_of_marks_are_compared() -> None:
    fields = ("format", "contentMediaType", "x-sealbus-type")
    cls = msgspec.defstruct(
        "Odd", [(f"f{n}", str) for n in range(3)], rename=dict(zip(("f0", "f1", "f2"), fields, strict=True))
    )
    schema = schema_of(payload_type(payload("odd.names")(cls)))
    assert set(unmarked(schema)["properties"]) == set(fields)


def test_a_field_that_becomes_a_time_is_found(tmp_path: Path) -> None:
    folder = SchemaFolder(tmp_path)
    folder.publish("kind.of", SchemaVersion.of("1.0.0"), schema_of(OLD["str"]))
    (review,) = review_types([kind_of(dt.datetime, "1.1.0")], folder, today=DAY)
    assert review.verdict == "broken"
    assert "/x" in review.reason
    assert review.changes[0].text == "was string, is datetime"


WRAPPERS: dict[str, Any] = {
    "alone": lambda kind: kind,
    "optional": lambda kind: kind | None,
    "list": list.__class_getitem__,
    "map": lambda kind: dict.__class_getitem__((str, kind)),
    "pair": lambda kind: tuple.__class_getitem__((int, kind)),
    "deep": lambda kind: list.__class_getitem__(dict.__class_getitem__((str, kind | None))),
    "either": lambda kind: kind | int | None,
    "part": lambda kind: msgspec.defstruct("Inner", [("at", kind)]),
    "parts": lambda kind: list.__class_getitem__(msgspec.defstruct("Inner", [("at", kind)])),
}


def forms_of(annotation: Any, *, with_model: bool) -> list[PayloadType]:
    classes: list[Any] = [
        msgspec.defstruct("Held", [("x", annotation)]),
        make_dataclass("Held", [("x", annotation)]),
        typing_extensions.TypedDict("Held", {"x": annotation}),  # type: ignore[operator]
    ]
    if with_model:
        classes.append(pydantic.create_model("Held", x=(annotation, ...)))
    return [payload_type(payload("kind.of")(cls)) for cls in classes]


@pytest.mark.parametrize("wrapper", WRAPPERS)
@pytest.mark.parametrize("kind", [dt.datetime, dt.time, dt.date, uuid.UUID, decimal.Decimal, dt.timedelta])
def test_a_text_that_becomes_another_type_is_found_wherever_it_is(wrapper: str, kind: Any) -> None:
    with_model = wrapper not in ("part", "parts")
    before = forms_of(WRAPPERS[wrapper](str), with_model=with_model)
    after = forms_of(WRAPPERS[wrapper](kind), with_model=with_model)
    for old, new in zip(before, after, strict=True):
        assert needed_bump(compare(schema_of(old), schema_of(new))) == "major"
        assert compare(schema_of(new), schema_of(new)) == ()
