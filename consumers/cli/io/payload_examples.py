"""Make an example payload from its type: the required fields with the plainest values its limits allow.

Owns choosing those values. A type that is too complex gets no example rather than a wrong one.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec
from msgspec import inspect

from bus.errors import ContractError
from bus.payloads.payload_types import PayloadType

__all__ = ["example_of"]

_PICKS: Final = 8
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


def example_of(kind: PayloadType) -> dict[str, Any] | None:
    """Return an example that the decoder of *kind* accepts; None if none was found."""
    # Rules between fields may need another choice than the first one.
    for pick in range(_PICKS):
        try:
            example = _Maker(pick).value(inspect.type_info(kind.cls), "")
            kind.decode(msgspec.json.encode(example))
        except (ContractError, LookupError, TypeError):
            continue
        return example if isinstance(example, dict) else None
    return None


class _Maker:
    """Makes values; *pick* selects among several choices."""

    def __init__(self, pick: int) -> None:
        self._pick = pick

    def value(self, kind: Any, name: str) -> Any:
        if isinstance(kind, inspect.Metadata):
            return self.value(kind.type, name)
        if isinstance(kind, inspect.UnionType):
            return self.value(next(member for member in kind.types if not isinstance(member, inspect.NoneType)), name)
        if isinstance(kind, inspect.StructType):
            return self._struct(kind)
        if isinstance(kind, inspect.LiteralType):
            return kind.values[self._pick % len(kind.values)]
        if isinstance(kind, inspect.EnumType):
            return next(iter(kind.cls)).value
        if isinstance(kind, inspect.StrType):
            return (name or "text").ljust(kind.min_length or 0, "x")[: kind.max_length]
        if isinstance(kind, inspect.IntType | inspect.FloatType):
            return self._number(kind)
        return _PLAIN[type(kind)] if type(kind) in _PLAIN else self._collection(kind, name)

    def _struct(self, kind: inspect.StructType) -> Any:
        fields = {
            field.encode_name: self.value(field.type, field.encode_name) for field in kind.fields if field.required
        }
        return {**({kind.tag_field: kind.tag} if kind.tag_field else {}), **fields}

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
            return [self.value(kind.item_type, name) for _ in range(kind.min_length or 0)]
        raise LookupError(f"no example for {kind}")
