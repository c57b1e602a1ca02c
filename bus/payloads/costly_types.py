"""Fields that a stranger can make arbitrarily costly to read, refused when their type is declared.

Owns which those are, and what to write instead (security rules S7 and S9 of the design): members of sets and keys of
dicts whose hashes can be made to collide, for Python hashes numbers and what is made of them without a secret; and
patterns whose matching can take more than time in proportion to the text. Pure; does not own reading or sizes
(`bus.payloads.decoded_size`).
"""

from __future__ import annotations

from collections.abc import Iterator
from re import _constants as sre  # type: ignore[attr-defined]  # the only description of a pattern that there is
from re import _parser as sre_parser  # type: ignore[attr-defined]
from typing import Any, Final

import msgspec
from msgspec import inspect

__all__ = ["find_costly"]

_HASHABLE: Final = (
    inspect.StrType,
    inspect.BytesType,
    inspect.DateType,
    inspect.LiteralType,
    inspect.EnumType,
    # Without an annotation JSON gives strings as keys; of a set only what can be told is accepted.
    inspect.AnyType,
)
_MOST_TEXT: Final = 4_096
_MOST_COUNT: Final = 10_000
_ENDS: Final = (sre.AT_END, sre.AT_END_STRING)
_BEGINNINGS: Final = (sre.AT_BEGINNING, sre.AT_BEGINNING_STRING)
_PLAIN: Final = (sre.LITERAL, sre.NOT_LITERAL, sre.IN, sre.ANY)


def find_costly(cls: type[msgspec.Struct]) -> str | None:
    """What is wrong with the first costly field of *cls*, with what to write instead; None where there is none."""
    return next(_faults(inspect.type_info(cls)), None)


def _faults(root: Any) -> Iterator[str]:
    seen: set[int] = set()
    waiting: list[tuple[str, Any]] = [("", root)]
    while waiting:
        place, kind = waiting.pop()
        if id(kind) in seen:
            continue
        seen.add(id(kind))
        if isinstance(kind, inspect.SetType | inspect.FrozenSetType):
            yield from _check_hashed(f"{place}: members of a set", kind.item_type, "write list[...]")
        elif isinstance(kind, inspect.DictType):
            yield from _check_hashed(
                f"{place}: keys of a dict",
                kind.key_type,
                "write a list of pairs, list[tuple[key, value]], or keys as str",
            )
        elif isinstance(kind, inspect.StrType) and kind.pattern is not None:
            yield from _check_pattern(place, kind)
        waiting += (
            (f"{place}.{field.name}" if place else field.name, field.type) for field in getattr(kind, "fields", ())
        )
        waiting += ((place, below) for below in _below(kind))


def _below(kind: Any) -> list[Any]:
    found = [
        getattr(kind, name)
        for name in ("type", "item_type", "key_type", "value_type")
        if isinstance(getattr(kind, name, None), inspect.Type)
    ]
    return [*found, *getattr(kind, "types", ()), *getattr(kind, "item_types", ())]


def _check_hashed(what: str, kind: Any, instead: str) -> Iterator[str]:
    for member in _members(kind):
        if not isinstance(member, _HASHABLE):
            name = type(member).__name__.removesuffix("Type").lower()
            yield (
                f"{what} may be str, bytes, date, Literal or Enum, and not {name}, "
                f"whose hashes anybody can make collide: {instead}"
            )


def _members(kind: Any) -> list[Any]:
    if isinstance(kind, inspect.Metadata):
        return _members(kind.type)
    return (
        [below for member in kind.types for below in _members(member)]
        if isinstance(kind, inspect.UnionType)
        else [kind]
    )


def _check_pattern(place: str, kind: Any) -> Iterator[str]:
    if kind.max_length is None or kind.max_length > _MOST_TEXT:
        yield f"{place}: a pattern needs max_length of at most {_MOST_TEXT}, for it looks at all of a stranger's text"
        return
    items = list(sre_parser.parse(kind.pattern))
    anchored = (
        len(items) > 1
        and items[0] in [(sre.AT, at) for at in _BEGINNINGS]
        and items[-1] in [(sre.AT, at) for at in _ENDS]
    )
    if not anchored:
        yield f"{place}: a pattern is anchored at both ends: write ^...$"
    elif (fault := _pattern_fault(items[1:-1])) is not None:
        yield f"{place}: {fault}; check more in __post_init__, or with a check of your own"


def _pattern_fault(items: list[tuple[Any, Any]]) -> str | None:
    unbounded, product = 0, 1
    for kind, argument in items:
        if kind in _PLAIN:
            continue
        if kind in {sre.MAX_REPEAT, sre.MIN_REPEAT, sre.POSSESSIVE_REPEAT}:
            _, most, inner = argument
            if len(inner) != 1 or inner[0][0] not in _PLAIN:
                return "in a pattern nothing but a character or class is repeated"
            unbounded += most is sre.MAXREPEAT
            product *= 1 if most is sre.MAXREPEAT else max(1, int(most))
        elif kind in {sre.BRANCH, sre.SUBPATTERN}:
            if not _is_choice(kind, argument):
                return "in a pattern alternatives are literal texts"
        else:
            return "a pattern is made of literals, classes and repeats of these, without references or looking around"
    if unbounded > 1:
        return "a pattern repeats without a bound once at the most"
    return (
        f"the counts of a pattern multiply to {product}, at most {_MOST_COUNT} are allowed"
        if product > _MOST_COUNT
        else None
    )


def _is_choice(kind: Any, argument: Any) -> bool:
    if kind is sre.SUBPATTERN:
        return all(
            inner[0] in {sre.LITERAL, sre.IN} or (inner[0] in {sre.BRANCH, sre.SUBPATTERN} and _is_choice(*inner))
            for inner in argument[3]
        )
    return all(inner[0] in {sre.LITERAL, sre.IN} for branch in argument[1] for inner in branch)
