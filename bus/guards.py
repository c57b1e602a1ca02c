"""Guards: per payload type, the question whether msgspec's own output of a value is its canonical form already.

Owns generating one predicate per Struct from its annotations. True means that `msgspec` with sorted fields writes RFC 8785 for this value once
the result decodes again as its type; False only means: take the exact way (`bus.canonical`). Generated code, because the check runs for every
field of every message and a table of closures costs three times as much (measure with tests/benchmarks).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import msgspec
from msgspec import inspect

from bus import numbers

__all__ = ["Guard", "make_guard"]

Guard = Callable[[Any], bool]

# Written by msgspec as RFC 8785 asks, whatever the value is, once the value decodes as this type.
_PLAIN = (
    inspect.StrType,
    inspect.BoolType,
    inspect.NoneType,
    inspect.DateTimeType,
    inspect.DateType,
    inspect.TimeType,
    inspect.UUIDType,
    inspect.BytesType,
)
_NUMBER_RANGE = "(1e-5 <= {v} < 1e15 or -1e15 < {v} <= -1e-5)"
_SAFE = f"-{numbers.SAFE_INTEGER} <= {{v}} <= {numbers.SAFE_INTEGER}"
_INT = f"{{v}}.__class__ is int and {_SAFE}"
_FLOAT = f"({{v}}.__class__ is float and {{v}} % 1.0 and {_NUMBER_RANGE} or {_INT})"


class _UnsupportedError(Exception):
    """A type for which nothing can be said from its annotations."""


def make_guard(cls: type[msgspec.Struct]) -> Guard | None:
    """The guard of *cls*; None where its annotations leave open what a value may hold (Any, dicts, sets, unions of Structs, recursion)."""
    if not numbers.ORJSON_AGREES:
        return None
    classes: dict[str, type] = {}
    try:
        body = list(_struct_lines(inspect.type_info(cls), "v0", 1, classes, ()))
    except _UnsupportedError:
        return None
    source = "\n".join(["def guard(v0):", *body, "    return True"])
    scope: dict[str, Any] = dict(classes)
    exec(compile(source, f"<guard of {cls.__qualname__}>", "exec"), scope)  # noqa: S102 - our own text: names of fields checked to be identifiers

    def guard(value: Any) -> bool:
        try:
            return bool(scope["guard"](value))
        except (AttributeError, TypeError):
            # Built with values of wrong types: the exact way names the field.
            return False

    return guard


def _struct_lines(kind: Any, value: str, depth: int, classes: dict[str, type], seen: tuple[type, ...]) -> Iterator[str]:
    if kind.cls in seen or not all(field.encode_name.isascii() and field.name.isidentifier() for field in kind.fields):
        raise _UnsupportedError
    name = f"C{len(classes)}"
    classes[name] = kind.cls
    pad = "    " * depth
    yield f"{pad}if {value}.__class__ is not {name}: return False"
    for field in kind.fields:
        inner = f"v{depth}_{len(classes)}"
        lines = list(_value_lines(field.type, inner, depth, classes, (*seen, kind.cls)))
        if lines:
            yield f"{pad}{inner} = {value}.{field.name}"
            yield from lines


def _value_lines(kind: Any, value: str, depth: int, classes: dict[str, type], seen: tuple[type, ...]) -> Iterator[str]:
    pad = "    " * depth
    if isinstance(kind, inspect.Metadata):
        yield from _value_lines(kind.type, value, depth, classes, seen)
    elif isinstance(kind, _PLAIN) or (isinstance(kind, inspect.LiteralType) and all(isinstance(v, str) for v in kind.values)):
        return
    elif isinstance(kind, inspect.IntType):
        yield f"{pad}if not ({_INT.format(v=value)}): return False"
    elif isinstance(kind, inspect.FloatType):
        yield f"{pad}if not {_FLOAT.format(v=value)}: return False"
    elif isinstance(kind, inspect.StructType) and kind.tag is None:
        yield from _struct_lines(kind, value, depth, classes, seen)
    elif isinstance(kind, inspect.ListType | inspect.VarTupleType):
        yield from _items_lines(kind.item_type, value, depth, classes, seen)
    elif isinstance(kind, inspect.UnionType):
        yield from _optional_lines(kind, value, depth, classes, seen)
    else:
        raise _UnsupportedError


def _items_lines(kind: Any, value: str, depth: int, classes: dict[str, type], seen: tuple[type, ...]) -> Iterator[str]:
    item = f"i{depth}_{len(classes)}"
    lines = list(_value_lines(kind, item, depth + 1, classes, seen))
    if lines:
        yield f"{'    ' * depth}for {item} in {value}:"
        yield from lines


def _optional_lines(kind: Any, value: str, depth: int, classes: dict[str, type], seen: tuple[type, ...]) -> Iterator[str]:
    others = [member for member in kind.types if not isinstance(member, inspect.NoneType)]
    if len(others) != 1:
        raise _UnsupportedError
    lines = list(_value_lines(others[0], value, depth + 1, classes, seen))
    if lines:
        yield f"{'    ' * depth}if {value} is not None:"
        yield from lines
