"""`critical_fields`: a pointer is understood when its name is known, whether or not it points to something."""

from __future__ import annotations

import functools
from typing import Annotated, Any

import msgspec
import pytest
from msgspec import inspect

from bus.payloads import known_fields as fields
from bus.payloads.known_fields import knows_field
from bus.protocol.envelope import Metadata, Routing, Verification


class Part(msgspec.Struct):
    name: str
    inner: dict[str, list[int]] = {}


class Whole(msgspec.Struct, rename="camel"):
    some_text: str
    part: Part | None = None
    parts: list[Part] = []
    pair: tuple[int, Part] | None = None
    anything: Any = None
    measured: Annotated[Part, msgspec.Meta(description="x")] | None = None
    slash: str = msgspec.field(name="a/b~c", default="")


class Number(msgspec.Struct, tag=True):
    value: float


class Sum(msgspec.Struct, tag=True):
    left: Number | Sum | Product
    right: Number | Sum | Product


class Product(msgspec.Struct, tag=True):
    left: Number | Sum | Product
    right: Number | Sum | Product


class Formula(msgspec.Struct):
    root: Number | Sum | Product
    rows: list[Formula] = []


@pytest.mark.parametrize(
    "pointer",
    [
        "",
        "/data",
        "/data/someText",
        "/data/part",
        "/data/part/name",
        "/data/parts",
        "/data/parts/0",
        "/data/parts/17/name",
        "/data/part/inner/any key/3",
        "/data/pair/0",
        "/data/pair/1/name",
        "/data/anything",
        "/data/anything/at/all",
        "/data/measured/name",
        "/data/a~1b~0c",
        "/metadata",
        "/metadata/sender/id",
        "/metadata/security/policy_tags/0",
        "/metadata/authority/can_read",
        "/routing/retry/base_ms",
        "/verification/proof_chain/3/statement/links",
    ],
)
def test_a_known_name_is_understood(pointer: str) -> None:
    assert knows_field(Whole, pointer)


@pytest.mark.parametrize(
    "pointer",
    [
        "/",
        "/other",
        "/data/",
        "/data/some_text",
        "/data/unknown",
        "/data/part/unknown",
        "/data/parts/name",
        "/data/parts/-",
        "/data/parts/-1",
        "/data/parts/01",
        "/data/parts/\u00b2",
        "/data/parts/\u0663",
        "/data/pair/2",
        "/data/pair/\u00b2",
        "/data/pair/" + "9" * 5_000,
        "/data/pair/00",
        "/data/someText/deeper",
        "/data/a/b~0c",
        "/metadata/unknown",
        "/metadata/hops/0",
        "/verification/proof_chain/x",
    ],
)
def test_an_unknown_name_is_not(pointer: str) -> None:
    assert not knows_field(Whole, pointer)


@pytest.mark.parametrize(
    ("layer", "cls"), [("metadata", Metadata), ("routing", Routing), ("verification", Verification)]
)
def test_every_field_of_the_envelope_is_known(layer: str, cls: type[msgspec.Struct]) -> None:
    assert all(knows_field(Whole, f"/{layer}/{name}") for name in cls.__struct_fields__)


@pytest.mark.medium
@pytest.mark.parametrize(("end", "known"), [("/value", True), ("/right", True), ("/other", False), ("/value/0", False)])
def test_a_long_pointer_into_a_type_that_contains_itself_is_judged_by_its_end(end: str, known: bool) -> None:
    assert knows_field(Formula, "/data/root" + "/left" * 100_000 + end) is known


def test_a_long_pointer_into_lists_of_a_type_that_contains_itself_is_judged() -> None:
    assert knows_field(Formula, "/data" + "/rows/0" * 100_000)


def test_a_type_is_described_once_for_tens_of_thousands_of_pointers(monkeypatch: pytest.MonkeyPatch) -> None:
    described: list[Any] = []

    def counted(cls: Any) -> inspect.Type:
        described.append(cls)
        return inspect.type_info(cls)

    monkeypatch.setattr(fields, "_described", functools.lru_cache()(counted))
    assert all(knows_field(Whole, f"/metadata/authority/can_read/{place}") for place in range(20_000))
    assert described == [Metadata]
