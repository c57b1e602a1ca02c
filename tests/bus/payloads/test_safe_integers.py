"""Integers are at most 2^53-1 for classes, JSON Schema and TypeScript alike."""

from __future__ import annotations

import dataclasses
import json
from typing import Annotated, Any, Literal, TypedDict

import jsonschema_rs
import msgspec
import pydantic
import pytest

from bus.errors import ContractError
from bus.payloads.payload_types import PayloadType, payload, payload_type
from bus.payloads.safe_integers import has_open_integers
from bus.schemas.json_schema import schema_of
from bus.schemas.typescript import typescript_of
from bus.vocabulary import BUILT_IN

MOST = 2**53 - 1


class Part(msgspec.Struct):
    size: int = 0


class Other(msgspec.Struct, tag="other"):
    size: int = 0


class Third(msgspec.Struct, tag="third"):
    size: float = 0


@payload("safe.struct")
class Struct(msgspec.Struct):
    plain: int = 0
    least: Annotated[int, msgspec.Meta(ge=0)] = 0
    most: Annotated[int, msgspec.Meta(le=2**60)] = 0
    maybe: int | None = None
    listed: list[int] = []
    pair: tuple[str, int] = ("", 0)
    by_name: dict[str, Part] = {}
    part: Part | None = None
    tagged: Other | Third | None = None
    real: float = 0
    either: int | float = 0
    anything: Any = None
    choice: Literal[1, 2] | str = 1
    text: str = ""


@payload("safe.dataclass")
@dataclasses.dataclass
class Data:
    plain: int = 0
    part: Part | None = None


@payload("safe.dict")
class Dict(TypedDict, total=False):
    plain: int
    part: Part


class PartModel(pydantic.BaseModel):
    size: int = 0


@payload("safe.model")
class Model(pydantic.BaseModel):
    plain: int = 0
    part: PartModel | None = None


CASES: list[tuple[type[Any], str, str | None]] = [
    (Struct, '{"plain":%s}', "/data/plain"),
    (Struct, '{"least":%s}', "/data/least"),
    (Struct, '{"most":%s}', "/data/most"),
    (Struct, '{"maybe":%s}', "/data/maybe"),
    (Struct, '{"listed":[1,%s]}', "/data/listed/1"),
    (Struct, '{"pair":["a",%s]}', "/data/pair/1"),
    (Struct, '{"by_name":{"a/b":{"size":%s}}}', "/data/by_name/a~1b/size"),
    (Struct, '{"part":{"size":%s}}', "/data/part/size"),
    (Struct, '{"tagged":{"size":%s,"type":"other"}}', "/data/tagged/size"),
    (Struct, '{"tagged":{"size":%s,"type":"third"}}', None),
    (Struct, '{"real":%s}', None),
    (Struct, '{"either":%s}', None),
    (Struct, '{"anything":[%s]}', None),
    (Struct, '{"text":"%s"}', None),
    (Data, '{"part":{"size":%s}}', "/data/part/size"),
    (Dict, '{"part":{"size":%s}}', "/data/part/size"),
    (Dict, '{"plain":%s}', "/data/plain"),
    (Model, '{"plain":%s}', "/data/plain"),
    (Model, '{"part":{"size":%s}}', "/data/part/size"),
]


@pytest.mark.parametrize(("cls", "text", "pointer"), CASES, ids=lambda value: value if isinstance(value, str) else "")
def test_an_integer_beyond_53_bits_is_refused(cls: type[Any], text: str, pointer: str | None) -> None:
    kind = payload_type(cls)
    schema = jsonschema_rs.validator_for(schema_of(kind))
    for number, is_safe in ((MOST, True), (MOST + 1, False), (10**18, False), (2**64, False)):
        data = (text % number).encode()
        takes = is_safe or pointer is None
        assert schema.is_valid(json.loads(data)) == takes
        assert (kind.read(data) is not None) == takes
        if takes:
            kind.decode(data)
            continue
        with pytest.raises(ContractError) as caught:
            kind.decode(data)
        assert (caught.value.pointer, caught.value.reason) == (pointer, "schema_violation")


def test_negative_ones_have_the_same_limit() -> None:
    kind = payload_type(Struct)
    assert kind.decode(b'{"plain":-9007199254740991}').plain == -MOST
    for text in (b'{"plain":-9007199254740992}', b'{"most":-9007199254740992}'):
        with pytest.raises(ContractError):
            kind.decode(text)
        assert not jsonschema_rs.validator_for(schema_of(kind)).is_valid(json.loads(text))


def open_integers(schema: Any) -> list[Any]:
    """Every schema of an integer without limits, or with larger ones, in *schema*."""
    if isinstance(schema, list):
        return [each for item in schema for each in open_integers(item)]
    if not isinstance(schema, dict):
        return []
    found = [each for item in schema.values() for each in open_integers(item)]
    if schema.get("type") == "integer":
        least, most = (
            schema.get("minimum", schema.get("exclusiveMinimum")),
            schema.get("maximum", schema.get("exclusiveMaximum")),
        )
        found += [schema] if least is None or most is None or least < -MOST or most > MOST else []
    return found


def test_every_integer_of_the_vocabulary_has_a_maximum() -> None:
    assert {kind.name: found for kind in BUILT_IN if (found := open_integers(schema_of(kind)))} == {}


def test_no_text_of_the_vocabulary_is_looked_through_for_them() -> None:
    assert [kind.name for kind in BUILT_IN if has_open_integers(kind.described)] == []
    kind = BUILT_IN.get("blackboard.written")
    assert isinstance(kind, PayloadType)
    for number in (2**53, 10**21):
        with pytest.raises(ContractError) as caught:
            kind.decode(b'{"key":"x","version":%d}' % number)
        assert caught.value.pointer == "/data/version"


def test_typescript_has_the_same_limits() -> None:
    text = typescript_of([payload_type(Struct)])
    assert f'"plain": z.number().gte({-MOST}).lte({MOST}).refine(Number.isInteger).optional()' in text
    assert f'"least": z.number().gte(0).lte({MOST}).refine(Number.isInteger).optional()' in text
    assert '"real": z.number().optional()' in text
