"""Rules: conditions between the fields of a payload, as data that can be checked, shown and exported.

A type limits the values of one field; a rule limits combinations of fields ("failed needs an error"). A rule is a
sentence for people, the pointer of the field to blame, and a condition. Conditions are values: `holds` evaluates them
for a payload, `bus.schemas.json_schema` writes them as JSON Schema, `bus.schemas.typescript` as an expression. Pure.

    @payload("ticket.closed", rules=(
        Rule("fixed needs a fix", "/fix", when(Is("status", ("fixed",)), Has("fix"))),
    ))

Fields have their names in the data. A field that is absent, None or `msgspec.UNSET` counts as not given.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import msgspec

from bus.errors import ContractError
from bus.payloads.field_names import attribute_of

__all__ = [
    "All",
    "Among",
    "AtMost",
    "Begins",
    "Bytes",
    "Computed",
    "Condition",
    "Either",
    "Every",
    "Has",
    "Is",
    "IsText",
    "Least",
    "Not",
    "RangeOf",
    "Rule",
    "Size",
    "Some",
    "check_rules",
    "exactly_one",
    "holds",
    "value_at",
    "value_of",
    "when",
]


class _Condition(msgspec.Struct, frozen=True):
    """A condition on the fields of one object."""


class Has(_Condition, frozen=True):
    """*field* is there. *null* True: null is a value, too, as in fields of any JSON value."""

    field: str
    null: bool = False


class Is(_Condition, frozen=True):
    """*field* has one of *values*."""

    field: str
    values: tuple[str | int | bool, ...]


class Least(_Condition, frozen=True):
    """The number in *field* is at least *minimum*."""

    field: str
    minimum: float


class Size(_Condition, frozen=True):
    """The list or text in *field* has *minimum* to *maximum* items or code points. Absent counts as 0."""

    field: str
    minimum: int = 1
    maximum: int | None = None


class All(_Condition, frozen=True):
    """True if each of *parts* is true."""

    parts: tuple[_Condition, ...]


class Either(_Condition, frozen=True):
    """True if at least one of *parts* is true."""

    parts: tuple[_Condition, ...]


class Not(_Condition, frozen=True):
    """*part* does not hold."""

    part: _Condition


class Every(_Condition, frozen=True):
    """True if *part* is true for each item of the list in *field*, also for an absent list. A single object is a list
    of one."""

    field: str
    part: _Condition


class Some(_Condition, frozen=True):
    """True if *part* is true for an item of the list in *field*."""

    field: str
    part: _Condition


class Among(_Condition, frozen=True):
    """True if the value of *field* is an item of the list in *others*."""

    field: str
    others: str


class Begins(_Condition, frozen=True):
    """The text in *field* begins with *beginning*."""

    field: str
    beginning: str


class AtMost(_Condition, frozen=True):
    """The number in *field* is at most the one in *other*."""

    field: str
    other: str


class Bytes(_Condition, frozen=True):
    """True if the value of *field* takes at most *maximum* bytes as JSON."""

    field: str
    maximum: int


class IsText(_Condition, frozen=True):
    """*field* has a text."""

    field: str


class RangeOf(_Condition, frozen=True):
    """True if the version range in *field*, such as `x@1`, is one of the type in *other*, or is absent."""

    field: str
    other: str


class Computed(_Condition, frozen=True):
    """A condition that only code can check: *test* gets the whole data as decoded JSON, unknown members included.

    JSON Schema cannot express it; *typescript* is the same condition as an expression of `d`, using the functions of an
    export.
    """

    test: Callable[[dict[str, Any]], bool]
    typescript: str = ""


Condition: TypeAlias = _Condition


class Rule(msgspec.Struct, frozen=True):
    """*text* describes the rule; *pointer* names, within data, the field to blame if *condition* is false."""

    text: str
    pointer: str
    condition: _Condition


def when(condition: Condition, then: Condition) -> Condition:
    """Make a condition: *then* must be true whenever *condition* is."""
    return Either((Not(condition), then))


def exactly_one(*parts: Condition | str) -> Condition:
    """Make a condition: exactly one of *parts*, conditions or names of fields, must be true."""
    conditions = tuple(Has(part) if isinstance(part, str) else part for part in parts)
    pairs = [
        Not(All((first, second))) for location, first in enumerate(conditions) for second in conditions[location + 1 :]
    ]
    return All((Either(conditions), *pairs))


def check_rules(rules: Sequence[Rule], subject: Any, data: bytes) -> None:
    """Raise ContractError (`semantic_violation`) for the first of *rules* that *subject*, read from *data*, breaks."""
    for rule in rules:
        computed = isinstance(rule.condition, Computed)
        if not holds(rule.condition, msgspec.json.decode(data) if computed else subject):
            raise ContractError(rule.text, f"/data{rule.pointer}", "semantic_violation")


def holds(condition: Condition, subject: Any) -> bool:
    """Return whether *condition* is true for *subject*, a payload or a part of one."""
    return _TESTS[type(condition)](condition, subject)


def value_of(subject: Any, field: str) -> Any:
    """Return the value of *field* in *subject*; UNSET if there is no such field."""
    if isinstance(subject, dict):
        return subject.get(field, msgspec.UNSET)
    value = getattr(subject, field, msgspec.UNSET)
    if value is msgspec.UNSET:
        value = getattr(subject, attribute_of(type(subject), field), msgspec.UNSET)
    if getattr(type(subject), "__pydantic_root_model__", False):
        return value_of(subject.root, field)
    return value


def value_at(subject: Any, pointer: str) -> Any:
    """Return the value at *pointer* below *subject*; None if there is none."""
    for field in pointer.split("/")[1:]:
        subject = value_of(subject, field)
        if subject is None or subject is msgspec.UNSET:
            return None
    return subject


def _is_present(condition: Any, subject: Any) -> bool:
    value = value_of(subject, condition.field)
    return value is not msgspec.UNSET and (value is not None or condition.null)


def _is(condition: Any, subject: Any) -> bool:
    value = value_of(subject, condition.field)
    # A bool equals an integer and is another JSON value.
    return any(value == known and isinstance(value, bool) == isinstance(known, bool) for known in condition.values)


def _minimum(condition: Any, subject: Any) -> bool:
    value = value_of(subject, condition.field)
    return isinstance(value, int | float) and value >= condition.minimum


def _size(condition: Any, subject: Any) -> bool:
    value = value_of(subject, condition.field)
    size = 0 if value is None or value is msgspec.UNSET else len(value)
    return size >= condition.minimum and (condition.maximum is None or size <= condition.maximum)


def _items(subject: Any, field: str) -> Sequence[Any]:
    value = value_of(subject, field)
    if value is None or value is msgspec.UNSET:
        return ()
    return value if isinstance(value, list | tuple) else (value,)


def _among(condition: Any, subject: Any) -> bool:
    return value_of(subject, condition.field) in _items(subject, condition.others)


def _begins(condition: Any, subject: Any) -> bool:
    value = value_of(subject, condition.field)
    return isinstance(value, str) and value.startswith(condition.beginning)


def _at_most(condition: Any, subject: Any) -> bool:
    value, other = value_of(subject, condition.field), value_of(subject, condition.other)
    return isinstance(value, int | float) and isinstance(other, int | float) and value <= other


def _bytes(condition: Any, subject: Any) -> bool:
    value = value_of(subject, condition.field)
    return value is msgspec.UNSET or len(msgspec.json.encode(value, enc_hook=_dumped)) <= condition.maximum


def _dumped(value: Any) -> Any:
    """Return the plain form of *value*, a Pydantic model, which msgspec does not know."""
    return value.model_dump(mode="json", by_alias=True, round_trip=True)


def _range_of(condition: Any, subject: Any) -> bool:
    value = value_of(subject, condition.field)
    return not isinstance(value, str) or value.partition("@")[0] == value_of(subject, condition.other)


_TESTS: dict[type, Callable[[Any, Any], bool]] = {
    Has: _is_present,
    Is: _is,
    Least: _minimum,
    Size: _size,
    Among: _among,
    AtMost: _at_most,
    Begins: _begins,
    Bytes: _bytes,
    IsText: lambda condition, subject: isinstance(value_of(subject, condition.field), str),
    RangeOf: _range_of,
    All: lambda condition, subject: all(holds(part, subject) for part in condition.parts),
    Either: lambda condition, subject: any(holds(part, subject) for part in condition.parts),
    Not: lambda condition, subject: not holds(condition.part, subject),
    Every: lambda condition, subject: all(holds(condition.part, item) for item in _items(subject, condition.field)),
    Some: lambda condition, subject: any(holds(condition.part, item) for item in _items(subject, condition.field)),
    Computed: lambda condition, subject: condition.test(subject),
}
