"""Fields that an untrusted sender can make arbitrarily costly to read, refused when their type is declared.

Owns which fields are refused, and the replacement to suggest (security rules S7 and S9 of the design). Refused are set
members and dict keys whose hashes can be made to collide, because Python hashes numbers without a secret; patterns that
can take more than linear time (`bus.payloads.costly_patterns`); classes with very many fields, because each member name
is compared with all of them; and types that cannot be read at all. Pure; reading and sizes are in
`bus.payloads.decoded_size`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from msgspec import inspect

from bus.payloads.costly_patterns import MAX_TEXT, find_pattern_fault
from bus.payloads.described_types import NAMED, walk

__all__ = ["find_costly"]

_MEMBERS: Final = (
    inspect.StrType,
    inspect.BytesType,
    inspect.DateType,
    inspect.LiteralType,
    inspect.EnumType,
)
_KEYS: Final = (*_MEMBERS, inspect.AnyType)
"""Without an annotation JSON gives strings as keys; a set without one takes numbers."""
_MAX_FIELDS: Final = 256


def find_costly(cls: type[Any]) -> str | None:
    """Return what is wrong with the first costly field of *cls* and its replacement; None if there is none."""
    return next(_faults(cls), None)


def _faults(cls: type[Any]) -> Iterator[str]:
    for location, kind in walk(inspect.type_info(cls)):
        if isinstance(kind, inspect.SetType | inspect.FrozenSetType):
            yield from _check_hashed(f"{location}: members of a set", kind.item_type, _MEMBERS, "write list[...]")
        elif isinstance(kind, inspect.DictType):
            yield from _check_hashed(
                f"{location}: keys of a dict",
                kind.key_type,
                _KEYS,
                "write a list of pairs, list[tuple[key, value]], or keys as str",
            )
        elif isinstance(kind, inspect.StrType) and kind.pattern is not None:
            yield from _check_pattern(location, kind)
        elif isinstance(kind, NAMED) and len(kind.fields) > _MAX_FIELDS:
            yield (
                f"{location or cls.__qualname__}: a class of {len(kind.fields)} fields, at most {_MAX_FIELDS} are "
                "allowed: write a dict, or several classes"
            )
        elif isinstance(kind, inspect.CustomType) and kind.cls is not object:
            yield (
                f"{location}: {getattr(kind.cls, '__qualname__', kind.cls)} is none of the types that JSON is read as: "
                "write a Struct or a dataclass; a Pydantic model may be a part of Pydantic models alone"
            )
        elif isinstance(kind, inspect.RawType):
            yield f"{location}: msgspec.Raw is unchecked text: write Json, or Any, for any JSON value"


def _check_hashed(what: str, kind: Any, allowed: tuple[type, ...], instead: str) -> Iterator[str]:
    for member in _members(kind):
        if not isinstance(member, allowed):
            name = type(member).__name__.removesuffix("Type").lower()
            yield (
                f"{what} may be str, bytes, date, Literal or Enum, and not {name}, "
                f"whose hashes a sender can make collide: {instead}"
            )


def _members(kind: Any) -> list[Any]:
    if isinstance(kind, inspect.Metadata):
        return _members(kind.type)
    return (
        [below for member in kind.types for below in _members(member)]
        if isinstance(kind, inspect.UnionType)
        else [kind]
    )


def _check_pattern(location: str, kind: Any) -> Iterator[str]:
    if kind.max_length is None or kind.max_length > MAX_TEXT:
        yield f"{location}: a pattern needs max_length of at most {MAX_TEXT}, because it scans all of an untrusted text"
        return
    if (fault := find_pattern_fault(kind.pattern)) is not None:
        yield f"{location}: {fault}; check more in __post_init__, or with a check of your own"
