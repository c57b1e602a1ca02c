"""What is kept as JSON between runs: which types can be, and what becomes of a value that has none."""

from __future__ import annotations

import datetime
import decimal
import enum
import uuid
import zoneinfo
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, TypedDict

import msgspec
import pydantic
import pydantic.v1
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bus.errors import ContractError
from bus.payloads.kept_values import is_plain, kept_type, plain_from, plain_of
from bus.payloads.payload_types import payload
from bus.protocol import canonical


class Cat(pydantic.BaseModel):
    kind: Literal["cat"] = "cat"
    seen: datetime.datetime | None = None


class Dog(pydantic.BaseModel):
    kind: Literal["dog"] = "dog"
    weight: decimal.Decimal = decimal.Decimal(3)


Pet = Annotated[Cat | Dog, pydantic.Field(discriminator="kind")]


class Numbers(pydantic.RootModel[list[int]]):
    pass


class Home(msgspec.Struct):
    cat: Cat | None = None
    dogs: list[Dog] = []


@dataclass
class Zoo:
    pets: list[Pet]


@payload("kept.note")
class Note(TypedDict):
    text: str


class Place(NamedTuple):
    row: int
    name: str


class Colour(enum.Enum):
    RED = "red"


class Words(str):
    pass


class Open(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="allow")
    told: dict[str, Any] = {}


class Secret(pydantic.BaseModel):
    key: pydantic.SecretStr


class Blob(pydantic.BaseModel):
    data: bytes


class Puppy(Dog):
    pass


class Apart(pydantic.BaseModel):
    pet: Dog | Puppy


class Old(pydantic.v1.BaseModel):
    a: int = 1


class Custom(msgspec.Struct):
    at: Path


class Unknown(msgspec.Struct):
    later: Later  # type: ignore[name-defined]  # noqa: F821


def kept(kind: Any, value: Any) -> Any:
    """Return *value* as a later run gets it."""
    form = kept_type(kind)
    return form.read(plain_from(canonical.encode([form.plain(value)]))[0])


NOW = datetime.datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=datetime.UTC)


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (Cat, Cat(seen=NOW)),
        (list[Cat], [Cat(), Cat(seen=NOW)]),
        (dict[str, Dog], {"rex": Dog(weight=decimal.Decimal("3.50"))}),
        (Cat | None, None),
        (Cat | None, Cat()),
        (Cat | str, "none"),
        (Cat | str, Cat()),
        (Pet, Dog()),
        (list[Pet], [Cat(), Dog()]),
        (tuple[Cat, int], (Cat(), 1)),
        (Home, Home(cat=Cat(), dogs=[Dog()])),
        (Zoo, Zoo(pets=[Dog(), Cat()])),
        (dict[str, Zoo] | None, {"a": Zoo(pets=[Dog()])}),
        (Numbers, Numbers([1, 2])),
        (list[Numbers], [Numbers([1])]),
        (Open, Open(told={"a": [1]}, more=2)),  # type: ignore[call-arg]
        (Place, Place(1, "a")),
        (dict[int, str], {1: "a"}),
        (dict[float, str], {1.5: "a"}),
        (dict[Colour, int], {Colour.RED: 1}),
        (dict[datetime.date, int], {NOW.date(): 1}),
        (set[str], {"a", "b"}),
        (frozenset[int], frozenset([2, 1])),
        (bytes, b"\xff"),
        (datetime.timedelta, datetime.timedelta(days=365)),
        (uuid.UUID, uuid.UUID(int=7)),
        (int | str | None, "a"),
        (Literal["a", "b"], "a"),
        (float, 1.0),
        (type(None), None),
        (object, {"a": 1}),
        (Any, [1, "a"]),
    ],
)
def test_a_value_comes_back_as_it_was(kind: Any, value: Any) -> None:
    again = kept(kind, value)
    assert again == value
    assert type(again) is type(value)


def test_a_typed_dict_that_is_marked_comes_back_as_a_payload() -> None:
    assert type(kept(Note, Note(text="a"))) is Note


def test_plain_data_become_values_of_the_declared_type() -> None:
    assert kept(Cat, {"kind": "cat"}) == Cat()
    assert kept(Home, {"cat": {}}) == Home(cat=Cat())


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (Path, "Path is none of the types"),
        (list[Path], "Path is none of the types"),
        (Custom, "at: Path is none of the types"),
        (complex, "complex is none of the types"),
        (Callable[[], int], "is none of the types"),
        (Old, "Old is none of the types"),
        (msgspec.Raw, "write Any"),
        (dict[tuple[int, int], str], "keys of a dict are text or numbers"),
        (dict[bool, str], "keys of a dict are text or numbers"),
        (Secret, "a secret is written as asterisks"),
        (list[Secret], "a secret is written as asterisks"),
        (Blob, "Base64Bytes"),
        (Apart, "needs a member that distinguishes them"),
        (Dog | Puppy, "^type: .*: a union of several objects needs a member that distinguishes them"),
        (Home | Cat, "cannot be stored"),
        ("Home", "cannot be stored"),
        (1, "cannot be stored"),
        (Unknown, "'Later' is not defined"),
    ],
)
def test_a_type_that_cannot_be_kept_is_refused_before_there_is_a_value(kind: Any, text: str) -> None:
    with pytest.raises(ContractError, match=text):
        kept_type(kind)


@pytest.mark.parametrize(
    ("value", "plain"),
    [
        (Cat(), {"kind": "cat", "seen": None}),
        ([Home(cat=Cat())], [{"cat": {"kind": "cat", "seen": None}, "dogs": []}]),
        ({"a": (1, Numbers([2]))}, {"a": [1, [2]]}),
        (Apart(pet=Dog()), {"pet": {"kind": "dog", "weight": "3"}}),
        (Blob(data=b"\xff"), {"data": "/w=="}),
        ({1: "a", 1.5: "b"}, {"1": "a", "1.5": "b"}),
        ({Colour.RED: 1}, {"red": 1}),
        (Words("a"), "a"),
        (OrderedDict(a=1), {"a": 1}),
        ({"b", "a"}, ["a", "b"]),
    ],
)
def test_without_a_type_a_value_is_what_json_has(value: Any, plain: Any) -> None:
    assert plain_of(value) == plain
    assert kept(None, value) == plain


@pytest.mark.parametrize(
    "value", [object(), [object()], Secret(key="a"), Path("a"), {None: 1}, {(1, 2): 1}, {1: "a", "1": "b"}, {True: 1}]
)
def test_values_of_unsupported_classes_are_refused(value: Any) -> None:
    with pytest.raises(ContractError, match="has no form in JSON") as raised:
        plain_of(value)
    assert isinstance(raised.value.__cause__, TypeError)


def test_a_value_that_its_type_does_not_allow_is_refused_with_its_place() -> None:
    with pytest.raises(ContractError) as raised:
        kept(Home, Home(cat="tom"))
    assert raised.value.pointer == "/cat"


_LEAVES = st.none() | st.booleans() | st.integers(-(2**53) + 1, 2**53 - 1) | st.text() | st.floats(allow_nan=False)


@given(st.recursive(_LEAVES, lambda below: st.lists(below) | st.dictionaries(st.text(), below), max_leaves=20))
def test_json_values_are_stored_unchanged(value: Any) -> None:
    assert is_plain(value)
    assert plain_of(value) == value


@pytest.mark.parametrize("value", [(1,), Cat(), [Place(1, "a")], {1: 2}, {"a": Words("a")}, Colour.RED, b""])
def test_values_outside_json_are_not_plain(value: Any) -> None:
    assert not is_plain(value)


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_a_value_that_was_read_can_be_stored_again(number: float) -> None:
    """A float is written without a point where it has no fraction, and no int is that large."""
    text = canonical.encode([number])
    again = plain_from(text)
    assert again == [number]
    assert canonical.encode(plain_of(again)) == text


def test_a_time_that_json_cannot_carry_is_not_kept() -> None:
    class At(msgspec.Struct):
        at: datetime.time

    for kind in (At, None):
        with pytest.raises(ContractError, match="write a datetime") as caught:
            kept_type(kind).plain(At(datetime.time(12, tzinfo=zoneinfo.ZoneInfo("Europe/Berlin"))))
        assert caught.value.pointer == "/at"
