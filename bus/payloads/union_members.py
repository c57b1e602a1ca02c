"""How the members of a union of objects are told apart by their data, where the union names no discriminator.

Owns that decision, over the fields of each member as data name them. Pure. `bus.payloads.pydantic_shadows` describes
such a union.
"""

from __future__ import annotations

import enum
import typing
from collections.abc import Mapping, Sequence
from itertools import combinations
from types import NoneType
from typing import Annotated, Any, Literal, NamedTuple

__all__ = ["MemberFields", "are_apart", "find_tag", "fixed_values"]


class MemberFields(NamedTuple):
    """The fields of one member of a union, by their names in data."""

    annotations: Mapping[str, Any]
    required: frozenset[str]
    keeps_others: bool = False
    """Whether it takes fields of other members, too, and writes them again."""


def fixed_values(annotation: Any) -> frozenset[tuple[bool, Any]] | None:
    """Return the values that *annotation* allows, as JSON has them; None where they cannot be counted.

    Counted are Literals, also of members of enumerations, and enumerations. Beside each value: whether it is a flag,
    because Python takes True for 1.
    """
    while True:
        origin = typing.get_origin(annotation)
        if origin is Annotated or "Required" in str(origin) or "ReadOnly" in str(origin) or origin is typing.Final:
            annotation = typing.get_args(annotation)[0]
        elif (alias := getattr(annotation, "__value__", None)) is not None and not isinstance(annotation, type):
            annotation = alias
        else:
            break
    if origin is Literal:
        values = [value.value if isinstance(value, enum.Enum) else value for value in typing.get_args(annotation)]
    elif isinstance(annotation, type) and issubclass(annotation, enum.Enum):
        values = [member.value for member in annotation]
    else:
        return None
    if not all(isinstance(value, str | int | bool | NoneType) for value in values):
        return None
    return frozenset((type(value) is bool, value) for value in values)


def find_tag(members: Sequence[MemberFields]) -> str | None:
    """Return the field that every one of *members* has, with values of its own in each; None if there is none."""
    first, *others = members
    for name in first.annotations:
        values = [fixed_values(member.annotations.get(name)) for member in (first, *others)]
        known = [each for each in values if each is not None]
        if len(known) == len(values) and all(one.isdisjoint(two) for one, two in combinations(known, 2)):
            return name
    return None


def are_apart(members: Sequence[MemberFields]) -> bool:
    """Return whether data of one of *members* never fit another one.

    Data hold every field of their member, so they do not fit a member with another required field, or with other
    values for a field. Of two members of which one holds all fields of the other, the larger is meant where it fits.
    """
    return all(_are_two_apart(one, two) for one, two in combinations(members, 2))


def _are_two_apart(one: MemberFields, two: MemberFields) -> bool:
    if _differ_in_values(one, two):
        return True
    if one.keeps_others or two.keeps_others:
        return False
    lacks_in_one, lacks_in_two = two.required - one.annotations.keys(), one.required - two.annotations.keys()
    if lacks_in_one and lacks_in_two:
        return True
    # The data of the smaller lack a required field of the larger; those of the larger name more fields.
    return bool(
        (lacks_in_one and two.annotations.keys() > one.annotations.keys())
        or (lacks_in_two and one.annotations.keys() > two.annotations.keys())
    )


def _differ_in_values(one: MemberFields, two: MemberFields) -> bool:
    for name in one.annotations.keys() & two.annotations.keys():
        values = fixed_values(one.annotations[name]), fixed_values(two.annotations[name])
        if values[0] is not None and values[1] is not None and values[0].isdisjoint(values[1]):
            return True
    return False
