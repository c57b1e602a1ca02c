"""Reading a payload runs code of its type's author only where its class, or a class below it, has some."""

from __future__ import annotations

import enum
from typing import Any

import msgspec
import pytest

from bus.payloads.code_of_users import runs_code_of_users


class Plain(msgspec.Struct, frozen=True, order=True):
    count: int
    names: list[str] = []
    beside: Plain | None = None


class Colour(enum.Enum):
    RED = "red"


class Lenient(enum.Enum):
    RED = "red"

    @classmethod
    def _missing_(cls, value: object) -> Lenient:  # noqa: ARG003 - the form of an Enum
        return cls.RED


class Checked(msgspec.Struct):
    count: int

    def __post_init__(self) -> None:
        self.count += 1


class HoldsChecked(msgspec.Struct):
    inner: dict[str, list[Checked]]


class HoldsLenient(msgspec.Struct):
    colour: Lenient


class HoldsColour(msgspec.Struct):
    colour: Colour


class Made(msgspec.Struct):
    names: list[str] = msgspec.field(default_factory=lambda: ["a"])


class Hashed(msgspec.Struct, frozen=True):
    name: str

    def __hash__(self) -> int:
        return 1


class Watched(msgspec.Struct, frozen=True):
    count: int

    def __getattribute__(self, name: str) -> Any:
        return super().__getattribute__(name)


class Shown(msgspec.Struct, frozen=True):
    count: int

    def __repr__(self) -> str:
        return "shown"


class HoldsHashed(msgspec.Struct):
    names: set[Hashed]


@pytest.mark.parametrize("cls", [Plain, Shown, HoldsColour])
def test_plain_structs_run_none(cls: type[Any]) -> None:
    assert not runs_code_of_users(cls)


@pytest.mark.parametrize("cls", [Checked, HoldsChecked, HoldsLenient, Made, HoldsHashed, Watched])
def test_a_hook_anywhere_below_runs_code(cls: type[Any]) -> None:
    assert runs_code_of_users(cls)
