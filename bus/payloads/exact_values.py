"""Values that JSON cannot carry exactly: they are refused where they are written, with what to write instead.

Owns which ones: times whose offset has seconds, times of day whose offset depends on the day, and other objects than
JSON values in a field of `Json`. Without it a receiver would read another value. Pure.
"""

from __future__ import annotations

import datetime
import math
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Final

import msgspec
from msgspec import inspect

from bus.errors import ContractError
from bus.payloads.checked_json import JSON_MARK
from bus.payloads.described_types import NAMED, walk
from bus.payloads.safe_integers import may_be, parts_of
from bus.payloads.value_parts import find_part, parts_in, unwrapped
from bus.protocol.canonical import MAX_DEPTH, escape_pointer_token

__all__ = ["exactness_check"]

_OPEN: Final = (inspect.AnyType, inspect.CustomType)
_TIMES: Final = (inspect.DateTimeType, inspect.TimeType, *_OPEN)
_SCALARS: Final = frozenset((str, int, float, bool, bytes, type(None)))
_CLOCKS: Final = (datetime.datetime, datetime.time)
_EXACT, _DOUBTFUL, _TOO_DEEP = 0, 1, 2
_MINUTE: Final = datetime.timedelta(minutes=1)
_NOTHING: Final = datetime.timedelta()


def exactness_check(described: Any) -> Callable[[Any], None] | None:
    """Return what raises ContractError for values of the *described* type that cannot be carried exactly.

    None: all of its values can.
    """
    root = inspect.type_info(described)
    kinds = [kind for _, kind in walk(root)]
    has_times = any(isinstance(kind, _TIMES) for kind in kinds)
    has_json = any(map(_is_json, kinds))
    if not has_times:
        return None

    def check(subject: Any) -> None:
        judgement = _judge((subject,), MAX_DEPTH)
        if judgement == _TOO_DEEP:
            # The writer refuses it. A further look at values that hold themselves twice would not end.
            return
        faults: list[str] = []
        if judgement == _DOUBTFUL and (pointer := find_part(subject, partial(_is_inexact, faults))) is not None:
            raise ContractError(faults[0], f"/data{pointer}", "schema_violation")
        if has_json and (found := _find_other(subject, root)) is not None:
            raise ContractError(found[1], f"/data{found[0]}", "schema_violation")

    return check


def _is_json(kind: Any) -> bool:
    return isinstance(kind, inspect.Metadata) and (kind.extra or {}).get(JSON_MARK) is True


def _judge(values: Iterable[Any], room: int) -> int:
    """Tell whether a part of *values*, with at most *room* nested levels, is a time that needs a closer look.

    One loop with everything inline, as in `bus.protocol.canonical`: without the compiled core it runs for each value of
    each message.
    """
    judgement = _EXACT
    for value in values:
        kind = value.__class__
        if kind in _SCALARS:
            continue
        if kind is dict:
            parts: Iterable[Any] = value.values()
        elif kind is list or kind is tuple:
            parts = value
        elif isinstance(value, _CLOCKS):
            if value.tzinfo is not None and value.tzinfo is not datetime.UTC:
                judgement = _DOUBTFUL
            continue
        else:
            parts = [part for _, part in parts_in(value)]
        if not room:
            return _TOO_DEEP
        inner = _judge(parts, room - 1)
        if inner == _TOO_DEEP:
            return _TOO_DEEP
        judgement = judgement or inner
    return judgement


def _is_inexact(faults: list[str], value: Any) -> bool:
    """Return whether *value* is a time that cannot be carried; the text about it is added to *faults*."""
    if not isinstance(value, _CLOCKS) or value.tzinfo is None:
        return False
    fault = _time_fault(value)
    faults += [] if fault is None else [fault]
    return fault is not None


def _time_fault(value: datetime.datetime | datetime.time) -> str | None:
    try:
        offset = value.utcoffset()
    except Exception as error:  # noqa: BLE001 - a zone's own code may raise anything
        return f"the offset of its time zone cannot be found: {type(error).__name__}"
    if offset is None:
        if isinstance(value, datetime.datetime):
            return f"its time zone {value.tzinfo} has no offset then: write value.astimezone(datetime.UTC)"
        return (
            f"a time of day has no fixed offset in {value.tzinfo}: write a datetime, or the time without its zone "
            "and the name of the zone in a field of its own"
        )
    if offset % _MINUTE == _NOTHING:
        return None
    if isinstance(value, datetime.datetime):
        return f"its offset {offset} is not in whole minutes: write value.astimezone(datetime.UTC)"
    return f"its offset {offset} is not in whole minutes: write the time in UTC"


def _find_other(value: Any, kind: Any) -> tuple[str, str] | None:
    """Return the pointer of the first part of *value*, of type *kind*, that is not JSON and in a field of `Json`."""
    if isinstance(kind, inspect.Metadata):
        return _not_json(value, 0) if _is_json(kind) else _find_other(value, kind.type)
    value = unwrapped(value)
    if isinstance(kind, inspect.UnionType):
        found = [_find_other(value, member) for member in kind.types if may_be(value, member)]
        return None if not found or None in found else found[0]
    if not isinstance(kind, (*NAMED, inspect.CollectionType, inspect.TupleType, inspect.DictType)):
        return None
    for name, part, below in parts_of(value, kind):
        if part is not msgspec.UNSET and (below_found := _find_other(part, below)) is not None:
            return f"/{escape_pointer_token(str(name))}{below_found[0]}", below_found[1]
    return None


def _not_json(value: Any, level: int) -> tuple[str, str] | None:
    kind = value.__class__
    if value is None or kind in (str, int, bool) or (kind is float and math.isfinite(value)) or level > MAX_DEPTH:
        return None
    if kind is dict:
        if (other := next((name for name in value if name.__class__ is not str), None)) is not None:
            return "", f"a key is {type(other).__name__}, no text"
    elif kind is not list and kind is not tuple:
        text = f"{value} is not a JSON number" if kind is float else f"{kind.__qualname__} is not a JSON value"
        return "", text
    for name, part in parts_in(value):
        if (found := _not_json(part, level + 1)) is not None:
            return f"/{escape_pointer_token(str(name))}{found[0]}", found[1]
    return None
