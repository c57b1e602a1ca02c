"""`critical_fields`: a pointer is understood when its name is known, whether or not it points to something."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
import pytest

from bus.envelope import Metadata, Routing, Verification
from bus.fields import knows_field


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


@pytest.mark.parametrize(("layer", "cls"), [("metadata", Metadata), ("routing", Routing), ("verification", Verification)])
def test_every_field_of_the_envelope_is_known(layer: str, cls: type[msgspec.Struct]) -> None:
    assert all(knows_field(Whole, f"/{layer}/{name}") for name in cls.__struct_fields__)
