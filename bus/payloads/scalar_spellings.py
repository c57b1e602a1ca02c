"""One reading of each scalar, for all forms of classes: what its text means, and which texts are refused.

Owns what msgspec's reader, which is the table, leaves open: numbers in text that are not finite are refused, and a
Pydantic model is given each scalar in msgspec's own spelling, because its library reads some spellings otherwise. Pure.
"""

from __future__ import annotations

import datetime
import decimal
import re
from collections.abc import Callable
from typing import Any, Final

import msgspec
from msgspec import inspect

from bus.errors import ContractError
from bus.payloads.described_types import NAMED, fields_of, walk
from bus.payloads.safe_integers import may_be
from bus.payloads.value_parts import find_part

__all__ = ["finite_only", "respelling"]

_SCALARS: Final[dict[type, type]] = {
    inspect.DateTimeType: datetime.datetime,
    inspect.TimeType: datetime.time,
    inspect.TimeDeltaType: datetime.timedelta,
    inspect.DecimalType: decimal.Decimal,
}
"""The scalars of which spellings are read in more than one way."""
_NOT_FINITE: Final = re.compile(rb'"\s*[+-]?(?:s?nan|inf)', re.IGNORECASE)
_decode: Final = msgspec.json.Decoder(float_hook=decimal.Decimal).decode


def finite_only(read: Callable[[bytes], Any], kinds: list[Any]) -> Callable[[bytes], Any]:
    """Return *read*, a reader of a type made of *kinds*, which refuses Decimals that are not finite."""
    if not any(isinstance(kind, inspect.DecimalType) for kind in kinds):
        return read

    def read_finite(data: bytes) -> Any:
        found = read(data)
        if _NOT_FINITE.search(data) is not None and (pointer := find_part(found, _is_endless)) is not None:
            raise ContractError("must be a finite number", f"/data{pointer}", "schema_violation")
        return found

    return read_finite


def _is_endless(value: Any) -> bool:
    return isinstance(value, decimal.Decimal) and not value.is_finite()


def respelling(described: Any) -> Callable[[bytes], bytes] | None:
    """Return what rewrites data of the *described* type, already read once, with each scalar in msgspec's spelling.

    None: the type has no scalar that needs it.
    """
    root = inspect.type_info(described)
    if not any(type(kind) in _SCALARS for _, kind in walk(root)):
        return None
    return lambda data: msgspec.json.encode(_respelt(_decode(data), root))


def _respelt(value: Any, kind: Any) -> Any:
    while isinstance(kind, inspect.Metadata):
        kind = kind.type
    if isinstance(kind, inspect.UnionType):
        is_counted = any(isinstance(member, inspect.IntType | inspect.FloatType) for member in kind.types)
        is_number = value.__class__ is not bool and isinstance(value, int | decimal.Decimal)
        members = () if is_number and is_counted else kind.types
        return _respelt(value, next((member for member in members if _is_of(value, member)), None))
    if value.__class__ is dict:
        return _respelt_object(value, kind)
    if value.__class__ is list:
        items = getattr(kind, "item_types", None) or [getattr(kind, "item_type", None)] * len(value)
        return [_respelt(item, below) for item, below in zip(value, items, strict=False)]
    if (scalar := _SCALARS.get(type(kind))) is not None and value is not None:
        # As text a Decimal keeps all its digits.
        return msgspec.to_builtins(msgspec.convert(str(value) if scalar is decimal.Decimal else value, scalar))
    return float(value) if value.__class__ is decimal.Decimal else value


def _respelt_object(value: dict[str, Any], kind: Any) -> dict[str, Any]:
    if isinstance(kind, NAMED):
        kinds = {field.encode_name: field.type for field in fields_of(kind)}
        return {name: _respelt(below, kinds.get(name)) for name, below in value.items()}
    inner = getattr(kind, "value_type", None)
    return {name: _respelt(below, inner) for name, below in value.items()}


def _is_of(value: Any, kind: Any) -> bool:
    """Return whether *value*, of JSON, is read as this member of a union."""
    while isinstance(kind, inspect.Metadata):
        kind = kind.type
    if type(kind) in _SCALARS:
        return value.__class__ in (str, int, decimal.Decimal)
    return value.__class__ in (dict, list) and may_be(value, kind)
