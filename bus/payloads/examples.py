"""Make an example payload from its type: the required fields with the plainest values its limits and rules allow.

Owns choosing those values. A type that is too complex gets no example rather than a wrong one. A class may say its own
as `__example__`. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

import msgspec
from msgspec import inspect

from bus.errors import ContractError
from bus.payloads.payload_types import PayloadType
from bus.payloads.rules import check_rules

__all__ = ["EXAMPLE_SENDER", "example_of"]

EXAMPLE_SENDER: Final = "cli@sealbus"
"""The sender in example data that repeat it: the sender of `sealbus publish`."""
_PICKS: Final = 8
_REPAIRS: Final = 6
_PLAIN: Final[dict[type[Any], Any]] = {
    inspect.AnyType: "...",
    inspect.BoolType: True,
    inspect.NoneType: None,
    inspect.DictType: {},
    inspect.DateTimeType: "2026-01-31T12:00:00Z",
    inspect.DateType: "2026-01-31",
    inspect.TimeType: "12:00:00Z",
    inspect.TimeDeltaType: "PT1H",
    inspect.UUIDType: "0190163d-8694-739b-aea5-966c26f8ad91",
    inspect.DecimalType: "1.0",
    inspect.BytesType: "aGVsbG8=",
}
_SAMPLES: Final = (
    "artifact://example/1",
    "sha256:" + "0" * 64,
    "task.result@1",
    "task.result",
    "1.0.0",
    "EUR",
    "12.50",
    "EXAMPLE",
    "error.transient",
    "notes/example",
)
"""Texts for patterns that the field's own name does not fit."""


def example_of(kind: PayloadType) -> dict[str, Any] | None:
    """Return an example that receivers of *kind* accept; None if none was found."""
    own = getattr(kind.cls, "__example__", None)
    if isinstance(own, Mapping):
        return dict(own)
    # Rules between fields may need another choice than the first one.
    for pick in range(_PICKS):
        try:
            example = _Maker(pick).value(inspect.type_info(kind.described), "")
        except (LookupError, TypeError):
            return None
        if isinstance(example, dict) and (found := _repaired(kind, example, pick)) is not None:
            return found
    return None


def _repaired(kind: PayloadType, example: dict[str, Any], pick: int) -> dict[str, Any] | None:
    """Return *example* with the optional fields that rules ask for."""
    _agree(kind, example)
    fields = {field.encode_name: field for field in kind.fields}
    for _ in range(_REPAIRS):
        try:
            data = msgspec.json.encode(example)
            check_rules(kind.rules, kind.decode(data), data)
        except ContractError as error:
            name = error.pointer.removeprefix("/data/").partition("/")[0]
            if name not in fields or name in example or error.reason != "semantic_violation":
                return None
            example[name] = _Maker(pick, min_items=1).value(fields[name].type, name)
        else:
            return example
    return None


def _agree(kind: PayloadType, example: dict[str, Any]) -> None:
    """Make the fields of *example* that repeat the envelope equal to its publisher's envelope."""
    for pointer, location in kind.terms.must_match.items():
        *path, last = pointer.split("/")[1:]
        part: Any = example
        for step in path:
            part = part.get(step, {})
        if last in part and location == "/metadata/sender/id":
            part[last] = EXAMPLE_SENDER


class _Maker:
    """Makes values; *pick* selects among several choices, *min_items* is the fewest items of a list."""

    def __init__(self, pick: int, min_items: int = 0) -> None:
        self._pick = pick
        self._min_items = min_items

    def value(self, kind: Any, name: str) -> Any:
        if isinstance(kind, inspect.Metadata):
            return self.value(kind.type, name)
        if isinstance(kind, inspect.UnionType):
            return self.value(next(member for member in kind.types if not isinstance(member, inspect.NoneType)), name)
        if isinstance(kind, inspect.StructType | inspect.DataclassType | inspect.TypedDictType):
            return self._struct(kind)
        if isinstance(kind, inspect.LiteralType):
            return kind.values[self._pick % len(kind.values)]
        if isinstance(kind, inspect.EnumType):
            return next(iter(kind.cls)).value
        if isinstance(kind, inspect.StrType):
            return self._text(kind, name)
        if isinstance(kind, inspect.IntType | inspect.FloatType):
            return self._number(kind)
        return _PLAIN[type(kind)] if type(kind) in _PLAIN else self._collection(kind, name)

    def _struct(self, kind: Any) -> Any:
        fields = {
            field.encode_name: self.value(field.type, field.encode_name) for field in kind.fields if field.required
        }
        tag = getattr(kind, "tag_field", None)
        example = {**({tag: kind.tag} if tag else {}), **fields}
        return self._with_rules(kind, example)

    def _with_rules(self, kind: Any, example: dict[str, Any]) -> dict[str, Any]:
        """Add the first optional field with which the rules of a part hold."""
        cls = getattr(kind, "cls", None)
        if not getattr(cls, "__rules__", ()) or _is_valid(cls, example):
            return example
        for field in kind.fields:
            if not field.required:
                tried = {**example, field.encode_name: self.value(field.type, field.encode_name)}
                if _is_valid(cls, tried):
                    return tried
        return example

    @staticmethod
    def _text(kind: inspect.StrType, name: str) -> str:
        plain = (name or "text").ljust(kind.min_length or 0, "x")[: kind.max_length]
        if kind.pattern is None:
            return plain
        fitting = next((text for text in (plain, *_SAMPLES, plain.upper()) if re.search(kind.pattern, text)), None)
        if fitting is None:
            raise LookupError(f"no example for {kind.pattern}")
        return fitting

    @staticmethod
    def _number(kind: inspect.IntType | inspect.FloatType) -> float:
        step = kind.multiple_of or 1
        if kind.ge is not None:
            return max(kind.ge, 0)
        if kind.gt is not None:
            return max(kind.gt + step, step)
        bound = kind.le if kind.le is not None else kind.lt
        return step if bound is None or bound > step else bound - step

    def _collection(self, kind: Any, name: str) -> list[Any]:
        if isinstance(kind, inspect.TupleType):
            return [self.value(item, name) for item in kind.item_types]
        if isinstance(kind, inspect.ListType | inspect.VarTupleType | inspect.SetType | inspect.FrozenSetType):
            return [self.value(kind.item_type, name) for _ in range(max(kind.min_length or 0, self._min_items))]
        raise LookupError(f"no example for {kind}")


def _is_valid(cls: Any, example: dict[str, Any]) -> bool:
    try:
        msgspec.convert(example, cls)
    except msgspec.ValidationError:
        return False
    return True
