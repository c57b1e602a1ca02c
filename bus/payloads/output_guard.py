"""Guards: per payload type, the question whether msgspec's own output of a value is its canonical form already.

Owns generating predicates per Struct from its annotations. True means that `msgspec` with sorted fields writes RFC 8785
for this value once the result decodes again as its type; False only means: take the exact way
(`bus.protocol.canonical`). A value that was just decoded as its type needs no look at the classes of what it holds, so
there is a shorter predicate for those; and a longer one whose True means also that the result does decode again.
Generated code, because the check runs for every field of every message and a table of closures costs three times as
much (measure with tests/benchmarks).
"""

from __future__ import annotations

import keyword
import unicodedata
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
from msgspec import inspect

from bus.protocol import canonical_numbers

__all__ = ["Guard", "make_decoded_guard", "make_full_guard", "make_guard"]

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
_SAFE = f"-{canonical_numbers.SAFE_INTEGER} <= {{v}} <= {canonical_numbers.SAFE_INTEGER}"
_INT = f"{{v}}.__class__ is int and {_SAFE}"
_FLOAT = f"({{v}}.__class__ is float and {{v}} % 1.0 and {_NUMBER_RANGE} or {_INT})"
# An integer is there when a default that was left out is one.
_DECODED_FLOAT = f"({_NUMBER_RANGE} and {{v}} % 1.0 or {_INT})"


_CONSTRAINTS = ("gt", "ge", "lt", "le", "multiple_of", "min_length", "max_length", "pattern")


class _UnsupportedError(Exception):
    """A type for which nothing can be said from its annotations."""


def make_guard(cls: type[msgspec.Struct]) -> Guard | None:
    """The guard of *cls*; None where its annotations leave open what a value may hold (Any, dicts, sets, unions of
    Structs, recursion)."""
    generated = _generate(_Writer(decoded=False), cls)
    return None if generated is None else _tolerant(generated)


def make_decoded_guard(cls: type[msgspec.Struct]) -> Guard | None:
    """The guard of *cls* for values that were just decoded as *cls* and are written as what they were decoded from."""
    writer = _Writer(decoded=True)
    guard = _generate(writer, cls)
    # What a __post_init__ puts into fields need not be of their types.
    return make_guard(cls) if any(hasattr(kind, "__post_init__") for kind in writer.classes.values()) else guard


def make_full_guard(cls: type[msgspec.Struct]) -> Guard | None:
    """The guard of *cls* whose True needs no decoding to be sure of; None where types have constraints or code of their
    own."""
    writer = _Writer(decoded=False, full=True)
    generated = _generate(writer, cls)
    if generated is None or any(hasattr(kind, "__post_init__") for kind in writer.classes.values()):
        return None
    return _tolerant(generated)


def _tolerant(generated: Guard) -> Guard:
    """*generated* for values of any kind: built with values of wrong types they are not plain, and the exact way names
    the field."""

    def guard(value: Any) -> bool:
        try:
            return bool(generated(value))
        except (AttributeError, TypeError):
            return False

    return guard


def _generate(writer: _Writer, cls: type[msgspec.Struct]) -> Guard | None:
    if not canonical_numbers.ORJSON_AGREES:
        return None
    scope: dict[str, Any] = writer.classes
    try:
        body = list(writer.struct(inspect.type_info(cls), "v0", 1, ()))
        source = "\n".join(["def guard(v0):", *body, "    return True"])
        scope = dict(writer.classes)
        # Our own text: names of fields checked to be identifiers.
        exec(compile(source, f"<guard of {cls.__qualname__}>", "exec"), scope)  # noqa: S102
    except (_UnsupportedError, SyntaxError, RecursionError):
        # Python nests no more than twenty loops, nor a hundred blocks: deeper types go the exact way.
        return None
    guard: Guard = scope["guard"]
    return guard


class _Writer:
    """Writes the lines of one guard; *decoded* leaves out what decoding has checked, *full* checks all that decoding
    would."""

    def __init__(self, *, decoded: bool, full: bool = False) -> None:
        self.classes: dict[str, type] = {}
        self._decoded = decoded
        self._full = full
        self._int, self._float = (_SAFE, _DECODED_FLOAT) if decoded else (_INT, _FLOAT)

    def struct(self, kind: Any, value: str, depth: int, seen: tuple[type, ...]) -> Iterator[str]:
        if kind.cls in seen or not all(
            field.encode_name.isascii() and _can_be_written(field.name) for field in kind.fields
        ):
            raise _UnsupportedError
        name = f"C{len(self.classes)}"
        self.classes[name] = kind.cls
        pad = "    " * depth
        if not self._decoded:
            yield f"{pad}if {value}.__class__ is not {name}: return False"
        for field in kind.fields:
            inner = f"v{depth}_{len(self.classes)}"
            lines = list(self.value(field.type, inner, depth, (*seen, kind.cls)))
            if lines:
                yield f"{pad}{inner} = {value}.{field.name}"
                yield from lines

    def value(self, kind: Any, value: str, depth: int, seen: tuple[type, ...]) -> Iterator[str]:
        pad = "    " * depth
        if self._full and (check := _full_check(kind, value)):
            yield f"{pad}if not ({check}): return False"
        if isinstance(kind, inspect.Metadata):
            yield from self.value(kind.type, value, depth, seen)
        elif isinstance(kind, _PLAIN) or (
            isinstance(kind, inspect.LiteralType) and all(isinstance(v, str) for v in kind.values)
        ):
            return
        elif isinstance(kind, inspect.IntType):
            yield f"{pad}if not ({self._int.format(v=value)}): return False"
        elif isinstance(kind, inspect.FloatType):
            yield f"{pad}if not {self._float.format(v=value)}: return False"
        elif isinstance(kind, inspect.StructType) and kind.tag is None:
            yield from self.struct(kind, value, depth, seen)
        elif isinstance(kind, inspect.ListType | inspect.VarTupleType):
            yield from self.items(kind.item_type, value, depth, seen)
        elif isinstance(kind, inspect.UnionType):
            yield from self.optional(kind, value, depth, seen)
        else:
            raise _UnsupportedError

    def items(self, kind: Any, value: str, depth: int, seen: tuple[type, ...]) -> Iterator[str]:
        item = f"i{depth}_{len(self.classes)}"
        lines = list(self.value(kind, item, depth + 1, seen))
        if lines:
            yield f"{'    ' * depth}for {item} in {value}:"
            yield from lines

    def optional(self, kind: Any, value: str, depth: int, seen: tuple[type, ...]) -> Iterator[str]:
        others = [member for member in kind.types if not isinstance(member, inspect.NoneType)]
        if len(others) != 1:
            raise _UnsupportedError
        lines = list(self.value(others[0], value, depth + 1, seen))
        if lines:
            yield f"{'    ' * depth}if {value} is not None:"
            yield from lines


def _can_be_written(name: str) -> bool:
    """Whether *name* may stand behind a dot: `defstruct` takes keywords as well."""
    # Python reads `\ufb01` in a program as `fi`, and in a name that `getattr` is given as itself.
    return name.isidentifier() and not keyword.iskeyword(name) and unicodedata.normalize("NFKC", name) == name


def _full_check(kind: Any, value: str) -> str:
    """What *value* must be, besides canonical, to decode as *kind*; raises _UnsupportedError where that takes more than
    a class."""
    if any(getattr(kind, name, None) is not None for name in _CONSTRAINTS):
        raise _UnsupportedError
    match kind:
        case inspect.StrType():
            return f"{value}.__class__ is str"
        case inspect.BoolType():
            return f"{value}.__class__ is bool"
        case inspect.LiteralType():
            return f"{value}.__class__ is str and {value} in {tuple(kind.values)!r}"
        case inspect.ListType() | inspect.VarTupleType():
            return f"{value}.__class__ is list or {value}.__class__ is tuple"
        case inspect.NoneType():
            return f"{value} is None"
        case inspect.IntType() | inspect.FloatType() | inspect.UnionType() | inspect.StructType() | inspect.Metadata():
            return ""
    raise _UnsupportedError
