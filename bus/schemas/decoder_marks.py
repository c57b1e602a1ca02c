"""Marks by which the schemas of types that read the same JSON type differently are told apart.

Owns them: `x-sealbus-type` for texts that JSON Schema has no format for, and `x-sealbus-keys` for keys that are not any
text. Without them a field that changes from `str` to `datetime` keeps its schema. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import product
from typing import Any, Final

from msgspec import inspect

from bus.payloads.described_types import NAMED, fields_of

__all__ = ["KEYS_MARK", "MARKED", "TYPE_MARK", "decoder_of", "mark_decoders", "unmarked"]

MARKED: Final = "x-sealbus-marked"
"""The member of a schema whose types are marked; those published by older versions lack it."""
TYPE_MARK: Final = "x-sealbus-type"
KEYS_MARK: Final = "x-sealbus-keys"
_MARKS: Final = frozenset({MARKED, TYPE_MARK, KEYS_MARK})
_NAMES: Final[dict[type, str]] = {
    inspect.BytesType: "bytes",
    inspect.ByteArrayType: "bytes",
    inspect.MemoryViewType: "bytes",
    inspect.DateTimeType: "datetime",
    inspect.DateType: "date",
    inspect.TimeType: "time",
    inspect.TimeDeltaType: "duration",
    inspect.UUIDType: "uuid",
    inspect.DecimalType: "decimal",
}
_OLD_FORMATS: Final = ("date", "date-time", "decimal", "duration", "time", "uuid")
"""The formats that schemas had before those of Pydantic's own types were written."""
_ZONED: Final = {None: "", True: " with offset", False: " without offset"}


def decoder_of(schema: Mapping[str, Any]) -> tuple[str, str]:
    """Return what *schema* says of how a value, and the keys of an object, are read beside their JSON type."""
    stated = schema.get(TYPE_MARK) or schema.get("format") or schema.get("contentEncoding") or ""
    return str(stated), str(schema.get(KEYS_MARK) or "")


def unmarked(schema: Any) -> Any:
    """Return *schema* without marks, as older versions have published it."""
    if isinstance(schema, Mapping):
        return {name: unmarked(value) for name, value in schema.items() if not _is_new(name, value)}
    return [unmarked(item) for item in schema] if isinstance(schema, list | tuple) else schema


def _is_new(name: str, value: Any) -> bool:
    if not isinstance(value, str):  # a field of that name
        return name == MARKED
    return name in _MARKS or name == "contentMediaType" or (name == "format" and value not in _OLD_FORMATS)


def mark_decoders(schema: dict[str, Any], kind: Any, parts: Mapping[str, dict[str, Any]]) -> None:
    """Add the marks to *schema*, of the described type *kind*, and to those of *parts* that it refers to."""
    _mark(schema, kind, parts, set())


def _mark(schema: dict[str, Any], kind: Any, parts: Mapping[str, dict[str, Any]], seen: set[str]) -> None:
    while isinstance(kind, inspect.Metadata):
        kind = kind.type
    if isinstance(kind, inspect.UnionType):
        for option, member in product(_options(schema), kind.types):
            if _is_of(option, member, parts):
                _mark(option, member, parts, seen)
        return
    if (name := str(schema.get("$ref", "")).rpartition("/")[2]) in parts:
        if name in seen:
            return
        seen.add(name)
        schema = parts[name]
    if (stated := _name_of(kind)) is not None and not ("format" in schema or "contentEncoding" in schema):
        schema.setdefault(TYPE_MARK, stated)
    if isinstance(kind, inspect.DictType) and (keys := _name_of(kind.key_type)) is not None:
        schema.setdefault(KEYS_MARK, keys)
    for below, inner in _below(schema, kind):
        _mark(below, inner, parts, seen)


def _name_of(kind: Any) -> str | None:
    while isinstance(kind, inspect.Metadata):
        kind = kind.type
    name = _NAMES.get(type(kind))
    return name if name is None else name + _ZONED.get(getattr(kind, "tz", None), "")


def _below(schema: Mapping[str, Any], kind: Any) -> Iterator[tuple[dict[str, Any], Any]]:
    """Yield the schema and the type of each part of *kind*."""
    yield from ((below, inner) for below, inner in _parts_of(schema, kind) if isinstance(below, dict))


def _parts_of(schema: Mapping[str, Any], kind: Any) -> Iterator[tuple[Any, Any]]:
    if isinstance(kind, NAMED):
        properties = schema.get("properties", {})
        yield from ((properties.get(field.encode_name), field.type) for field in fields_of(kind))
    if isinstance(kind, (*NAMED, inspect.NamedTupleType)):
        yield from zip(schema.get("prefixItems", ()), (field.type for field in fields_of(kind)), strict=False)
    elif isinstance(kind, inspect.TupleType):
        yield from zip(schema.get("prefixItems", ()), kind.item_types, strict=False)
    elif isinstance(kind, inspect.DictType):
        yield schema.get("additionalProperties"), kind.value_type
    elif isinstance(kind, inspect.CollectionType):
        yield schema.get("items"), getattr(kind, "item_type", None)


def _options(schema: dict[str, Any]) -> Iterator[dict[str, Any]]:
    options = schema.get("anyOf")
    if not isinstance(options, list):
        yield schema
        return
    for option in options:
        yield from _options(option)


_JSON_TYPES: Final = (
    ((*NAMED, inspect.DictType), "object"),
    ((inspect.CollectionType, inspect.TupleType, inspect.NamedTupleType), "array"),
)


def _is_of(option: dict[str, Any], member: Any, parts: Mapping[str, dict[str, Any]]) -> bool:
    """Return whether *option* is the schema of *member*: of each JSON type a union has one member, but for classes."""
    while isinstance(member, inspect.Metadata):
        member = member.type
    schema = parts.get(str(option.get("$ref", "")).rpartition("/")[2], option)
    if isinstance(member, NAMED) and (tag := getattr(member, "tag", None)) is not None:
        stated = schema.get("properties", {}).get(getattr(member, "tag_field", None), {})
        return tag in stated.get("enum", [stated.get("const")])
    if type(member) in _NAMES:
        return schema.get("type") == "string" and "enum" not in schema
    return any(isinstance(member, kinds) and schema.get("type") == name for kinds, name in _JSON_TYPES)
