"""What a stranger could make costly to read is refused when its type is declared, or before it is built."""

from __future__ import annotations

import datetime
import decimal
import enum
import time
import uuid
from typing import Annotated, Any, Literal

import msgspec
import pytest
from msgspec import Meta, defstruct, field

from bus.errors import ContractError
from bus.payloads.costly_types import find_costly
from bus.payloads.decoded_size import MAX_DECODED_BYTES
from bus.payloads.payload_types import Registry, payload, payload_type

MIB = 1_048_576


class Colour(enum.Enum):
    RED = "red"


def holder(annotation: Any) -> type[msgspec.Struct]:
    return defstruct("Holder", [("x", annotation)])


def text(pattern: str, max_length: int | None = 64) -> Any:
    return Annotated[str, Meta(pattern=pattern, max_length=max_length)]


@pytest.mark.parametrize(
    "hashed",
    [int, float, decimal.Decimal, uuid.UUID, datetime.time, datetime.datetime, datetime.timedelta, tuple[int, int]],
)
def test_types_with_predictable_hashes_cannot_be_set_members_or_keys(hashed: Any) -> None:
    for annotation in (set[hashed], frozenset[hashed], list[set[hashed]], holder(set[hashed]) | None):
        assert "write list[...]" in (find_costly(holder(annotation)) or "")
    for annotation in (dict[hashed, str], list[dict[hashed, int]], dict[str, dict[hashed, int]]):
        assert "list of pairs" in (find_costly(holder(annotation)) or "")


@pytest.mark.parametrize("hashed", [str, bytes, datetime.date, Literal["a", "b"], Colour])
def test_types_with_keyed_hashes_can_be_set_members_and_keys(hashed: Any) -> None:
    assert find_costly(holder(set[hashed])) is None
    assert find_costly(holder(dict[hashed, int])) is None


@pytest.mark.parametrize(
    "annotation", [set, frozenset, set[Any], frozenset[Any], list[set[Any]], set[str | Any], set[Any] | None]
)
def test_a_set_of_anything_is_refused_for_it_takes_numbers(annotation: Any) -> None:
    with pytest.raises(ContractError, match=r"x: members of a set .* and not any, .* write list"):
        payload("costly.set")(holder(annotation))


@pytest.mark.parametrize("annotation", [dict, dict[Any, int], dict[str, Any]])
def test_keys_without_an_annotation_are_texts_and_may_be(annotation: Any) -> None:
    assert find_costly(holder(annotation)) is None


@pytest.mark.parametrize(
    "annotation",
    [
        text("^[a-z]*$", None),
        text("^[a-z]*$", 4_097),
        text("[a-z]*"),
        text("^[a-z]*"),
        text("^(a+)+$"),
        text("^([a-z]{1,9}){1,9}$"),
        text("^a*a*$"),
        text("^" + "a?" * 30 + "b$"),
        text("^a{0,100}a{0,100}a*$", 4_096),
        text(r"^(a)\1$"),
        text("^(?=a)a$"),
    ],
)
def test_a_pattern_that_may_take_more_than_its_text_is_refused(annotation: Any) -> None:
    assert find_costly(holder(annotation)) is not None
    with pytest.raises(ContractError, match="x: "):
        payload("costly.text")(holder(annotation))


@pytest.mark.parametrize(
    "pattern", ["^[a-z]*$", r"^\d{4}-\d{2}$", "^(red|green|blue)$", r"^[^/]{1,63}\Z", "^x?y{0,3}[a-f0-9]+$"]
)
def test_an_ordinary_pattern_is_not(pattern: str) -> None:
    assert find_costly(holder(text(pattern))) is None


def test_it_is_refused_where_the_type_is_declared_and_named_when_it_can_be() -> None:
    with pytest.raises(ContractError, match=r"costly\.scores.*scores: keys of a dict"):

        @payload("costly.scores")
        class Scores(msgspec.Struct):
            scores: dict[int, str]


HEAVY = {
    "structs with lists of their own": list[  # type: ignore[misc]
        defstruct("Lists", [(f"f{n}", list[int], field(default_factory=list)) for n in range(30)])
    ],
    "structs of thirty fields": list[defstruct("Wide", [(f"f{n}", int | None, None) for n in range(30)])],  # type: ignore[misc]
}


@pytest.mark.parametrize("annotation", HEAVY.values(), ids=HEAVY)
def test_oversized_payloads_are_refused_before_decoding(annotation: Any) -> None:
    cls = payload("costly.heavy")(holder(annotation))
    data = b'{"x":[' + b",".join([b"{}"] * (MIB // 3 - 10)) + b"]}"
    started_s = time.process_time()
    with pytest.raises(ContractError, match="large content travels by reference"):
        payload_type(cls).decode(data)
    assert payload_type(cls).read(data) is None
    assert Registry([cls]).prove("costly.heavy", data) is None
    assert time.process_time() - started_s < 0.1


def test_publish_refuses_payloads_that_are_too_large_for_receivers() -> None:
    wide = defstruct("Wide", [(f"f{n}", int | None, None) for n in range(30)], omit_defaults=True)
    cls = payload("costly.wide")(defstruct("Holder", [("x", list[wide])]))  # type: ignore[valid-type]
    with pytest.raises(ContractError, match="large content travels by reference"):
        payload_type(cls).encode(cls([wide()] * 340_000))


WORST = {
    "subnormal numbers": (list[float], b"5e-324"),
    "the largest number": (list[float], b"1.7976931348623157e+308"),
    "large numbers of few digits": (list[float], b"1e+289"),
    "small numbers of many digits": (list[float], b"1.7976931348623157e-292"),
    "the largest whole numbers": (list[int], b"9007199254740991"),
    "whole numbers beyond 64 bits": (list[float], b"900719925474099200000"),
    "such and subnormal ones": (list[float], b"900719925474099200000" + b",5e-324" * 50),
    "the smallest normal number": (list[float], b"2.2250738585072014e-308"),
    "any subnormal numbers": (Any, b"5e-324"),
    "objects": (Any, b'{"a":1}'),
    "lists": (Any, b"[]"),
    "numbers": (list[float], b"0.1"),
    "decimals": (list[decimal.Decimal], b'"0.1"'),
    "patterns": (list[text("^[a-z]*$")], b'"a"'),  # type: ignore[misc]
    "choices": (list[Literal["a", "b"]], b'"a"'),
    "structs": (list[defstruct("Some", [(f"f{n}", int | None, None) for n in range(5)])], b"{}"),  # type: ignore[misc]
}


@pytest.mark.medium
@pytest.mark.parametrize("name", WORST)
def test_a_megabyte_of_any_kind_is_read_in_a_moment(name: str) -> None:
    annotation, item = WORST[name]
    cls = payload("costly.worst")(holder(annotation))
    weight = payload_type(cls).weight
    # A megabyte, or the most that is not refused as too heavy before it is built.
    count = min(MIB // (len(item) + 1), MAX_DECODED_BYTES // weight.of(item + b",")) - 10
    data = b'{"x":[' + b",".join([item] * count) + b"]}"
    taken_s = []
    for _ in range(3):
        started_s = time.process_time()
        opened = payload_type(cls).decode(data)
        taken_s.append(time.process_time() - started_s)
        del opened
    # A tenth of a second is what a record may take at most; a busy machine is slower by its caches.
    assert min(taken_s) < 0.2
    assert weight.of(data) <= MAX_DECODED_BYTES


def test_many_small_numbers_are_read_as_the_same_numbers() -> None:
    cls = payload("costly.floats")(holder(list[float]))
    values = [5e-324, 1.5e-310, 0.1, 1e300, -0.25, 3] * 1_500
    data = payload_type(cls).encode(cls(values))
    assert data.count(b"e-3") > 1_000
    assert payload_type(cls).decode(data) == cls(values)
