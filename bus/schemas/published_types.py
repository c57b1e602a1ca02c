"""Payload types read from published schemas, for tools that do not load the application that declares them.

Owns making a type from a schema that `bus.schemas.json_schema` wrote, and a registry of several. Such a type is never
stricter than the class that was published: what cannot be read from the schema is not checked (rules between fields,
instants, a part inside itself). An older major is judged by its own schema and not converted. Pure, but for reading
the folder.
"""

from __future__ import annotations

import keyword
import re
from collections.abc import Iterable, Mapping
from functools import reduce
from operator import or_
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta, inspect

from bus.errors import ContractError, text_of
from bus.payloads.built_in_names import BUILT_IN_NAMES
from bus.payloads.envelope_terms import ByField
from bus.payloads.payload_types import PayloadType, Registry, payload, payload_type
from bus.protocol.sealing import Message
from bus.schemas.schema_folder import SchemaFolder

__all__ = ["PublishedType", "registry", "registry_of_schemas", "registry_of_types", "type_of_schema"]

_LIMITS: Final = {
    "minimum": "ge",
    "exclusiveMinimum": "gt",
    "maximum": "le",
    "exclusiveMaximum": "lt",
    "multipleOf": "multiple_of",
}
_LENGTHS: Final = {
    "string": {"minLength": "min_length", "maxLength": "max_length"},
    "array": {"minItems": "min_length", "maxItems": "max_length"},
    "object": {"minProperties": "min_length", "maxProperties": "max_length"},
}
_MAX_DEPTH: Final = 100
_UNIT: Final = r"[^A-Za-z0-9_]+"
_UNREADABLE: Final = (
    *(TypeError, ValueError, LookupError, RecursionError, AttributeError, ArithmeticError),
    *(re.error, msgspec.MsgspecError),
)


class PublishedType(PayloadType):
    """A type that a schema describes; *olds* are its older majors, each by the newest of its schemas."""

    __slots__ = ("_olds",)

    def __init__(self, newest: PayloadType, olds: Mapping[str, PayloadType]) -> None:
        super().__init__(
            newest.form,
            newest.name,
            newest.version,
            newest.risk,
            sign=newest.sign,
            upcasters={},
            terms=newest.terms,
            effect=(newest.side_effect, newest.resource),
        )
        self._olds = olds

    def reads(self, version: str) -> bool:
        """Whether data of *version* can be judged."""
        return version.partition(".")[0] in self._olds or super().reads(version)

    def older(self, major: int) -> PayloadType | None:
        """Return the type of the older *major*."""
        return self._olds.get(str(major))

    def open(self, message: Message) -> Any:
        """Return the payload of *message*, of an older major as an object of that. Raises ContractError."""
        older = self._olds.get(message.metadata.schema_version.partition(".")[0])
        return super().open(message) if older is None else older.open(message)


class _Types(Registry):
    """The types that schemas describe."""

    def __init__(self, kinds: Iterable[PayloadType], below: Registry | None) -> None:
        super().__init__((), below=below)
        self._types |= {kind.name: kind for kind in kinds}


def registry(folder: str, *, below: Registry | None = None) -> Registry:
    """Return the types whose schemas are in *folder*, as `sealbus types export` writes them.

        known = registry("schemas")
        assert "order.placed" in known

    A folder that does not exist has none. Types that it lacks are looked up in *below*, and so are the built-in ones
    that no class overrides. Raises ConfigurationError for a file that cannot be read, ContractError for one that
    describes no type.
    """
    files = SchemaFolder(folder)
    schemas = [files.read(name, version) for name in files.types() for version in files.versions(name)]
    return registry_of_schemas(schemas, below=below)


def registry_of_schemas(schemas: Iterable[Mapping[str, Any]], *, below: Registry | None = None) -> Registry:
    """Return the types that *schemas* describe, each in its newest version. Raises ContractError.

    A built-in type is left to *below*, unless its schema was written of a class with `overrides=True`.
    """
    return registry_of_types((type_of_schema(schema) for schema in schemas if not _is_built_in(schema)), below=below)


def registry_of_types(kinds: Iterable[PayloadType], *, below: Registry | None = None) -> Registry:
    """Return *kinds*, types of schemas, each in its newest version."""
    by_name: dict[str, list[PayloadType]] = {}
    for kind in kinds:
        by_name.setdefault(kind.name, []).append(kind)
    return _Types((_united(kinds) for kinds in by_name.values()), below)


def type_of_schema(schema: Mapping[str, Any]) -> PayloadType:
    """Return the type that *schema* describes, a schema of `bus.schemas.json_schema`. Raises ContractError."""
    name, version = schema.get("title"), schema.get("version")
    if not isinstance(name, str) or not isinstance(version, str):
        raise ContractError("the schema has no title and version: it is none of a message type")
    terms: Any = schema.get("x-sealbus")
    try:
        cls = _Reader(schema).root(_class_name(name))
        return payload_type(_marked(cls, name, version, terms if isinstance(terms, Mapping) else {}))
    except ContractError:
        raise
    except _UNREADABLE as error:
        # Whoever wrote the schema chose what stands in it.
        raise ContractError(f"the schema of {name:.120} {version:.40} describes no type: {text_of(error)}") from None


def _is_built_in(schema: Mapping[str, Any]) -> bool:
    terms = schema.get("x-sealbus")
    return schema.get("title") in BUILT_IN_NAMES and not (isinstance(terms, Mapping) and terms.get("overrides") is True)


def _marked(cls: type[Any], name: str, version: str, terms: Mapping[str, Any]) -> type[Any]:
    spoken = terms.get("performative")
    marked = payload(
        name,
        version=version,
        risk=terms.get("risk", "medium"),
        performative=msgspec.convert(spoken, ByField) if isinstance(spoken, Mapping) else spoken,
        required_options=tuple(terms.get("needs", ())),
        ttl_s=terms.get("ttl_s"),
        must_match=dict(terms.get("same_as", {})),
        options_from=dict(terms.get("takes", {})),
        critical=tuple(terms.get("critical", ())),
        side_effect=terms.get("side_effect"),
        resource=terms.get("resource", ""),
        overrides=name in BUILT_IN_NAMES,
    )(cls)
    payload_type(marked).resolve()
    return marked


def _united(kinds: list[PayloadType]) -> PayloadType:
    """Return the newest of *kinds*, with the older majors that it judges."""
    ordered = sorted(kinds, key=lambda kind: [int(part) for part in kind.version.split(".")])
    newest = ordered[-1]
    made = PublishedType(newest, {str(kind.major): kind for kind in ordered if kind.major < newest.major})
    made.resolve()
    return made


class _Reader:
    """Reads the Python types of one schema. A part that contains itself is taken as it comes, where it does."""

    def __init__(self, schema: Mapping[str, Any]) -> None:
        self._schema = schema
        parts = schema.get("$defs")
        self._parts: Mapping[str, Any] = parts if isinstance(parts, Mapping) else {}
        self._tags: dict[str, tuple[str, str]] = {}
        """By part, the field and the value by which it is told from others."""
        self._made: dict[str, Any] = {}
        self._open: list[str] = []
        self._note_tags(schema, 0)

    def root(self, name: str) -> type[Any]:
        """Return the class of the data."""
        found = self._read(self._schema, name)
        if not (isinstance(found, type) and issubclass(found, msgspec.Struct)):
            raise TypeError("data is not an object with fields")
        return found

    def _note_tags(self, value: Any, depth: int) -> None:
        if depth > _MAX_DEPTH:
            raise RecursionError("nests too deep")
        if isinstance(value, list):
            for item in value:
                self._note_tags(item, depth + 1)
        elif isinstance(value, dict):
            told = value.get("discriminator")
            if isinstance(told, dict) and isinstance(told.get("mapping"), dict):
                for tag, reference in told["mapping"].items():
                    self._tags[_part_name(reference)] = (told["propertyName"], tag)
            for item in value.values():
                self._note_tags(item, depth + 1)

    def _read(self, schema: Any, name: str) -> Any:
        if not isinstance(schema, Mapping):
            return Any
        if "$ref" in schema:
            return self._part(_part_name(schema["$ref"]))
        if "anyOf" in schema:
            return _union([self._read(each, name) for each in schema["anyOf"]])
        if "const" in schema or "enum" in schema:
            return _choice(schema["enum"] if "enum" in schema else [schema["const"]])
        found = self._of_form(schema, name)
        return found if found is Any or not (limits := _limits(schema)) else Annotated[found, limits]

    def _of_form(self, schema: Mapping[str, Any], name: str) -> Any:
        form = schema.get("type")
        if form == "array":
            return list[self._read(schema.get("items"), name)]  # type: ignore[misc]
        if form == "object":
            return self._object(schema, name)
        return {"string": str, "integer": int, "number": float, "boolean": bool, "null": None}.get(str(form), Any)

    def _object(self, schema: Mapping[str, Any], name: str) -> Any:
        if not isinstance(schema.get("properties"), Mapping):
            return dict[str, self._read(schema.get("additionalProperties"), name)]  # type: ignore[misc]
        return self._struct(schema, name, self._tags.get(name))

    def _part(self, name: str) -> Any:
        if name in self._open:
            return Any
        if name not in self._made:
            self._open.append(name)
            self._made[name] = self._read(self._parts[name], name)
            self._open.pop()
        return self._made[name]

    def _struct(self, schema: Mapping[str, Any], name: str, tag: tuple[str, str] | None) -> type[msgspec.Struct]:
        needed = schema.get("required", ())
        fields, renamed = list[Any](), dict[str, str]()
        for number, (member, described) in enumerate(schema["properties"].items()):
            if tag is not None and member == tag[0]:
                continue
            field = member if _is_field(member) else f"field_{number}"
            renamed[field] = member
            kind = self._read(described, _class_name(f"{name}.{member}"))
            fields.append((field, kind) if member in needed else _optional(field, kind, described))
        return msgspec.defstruct(
            _class_name(name),
            fields,
            namespace={"__doc__": schema.get("description")},
            rename=renamed,
            frozen=True,
            kw_only=True,
            omit_defaults=True,  # whatever the class does: its readers fill them in
            tag_field=None if tag is None else tag[0],
            tag=None if tag is None else tag[1],
        )


def _optional(field: str, kind: Any, described: Any) -> tuple[str, Any, Any]:
    """Return a field that may be absent, with the default that its schema states."""
    if not isinstance(described, Mapping) or "default" not in described:
        return field, kind | msgspec.UnsetType if kind is not Any else Any, msgspec.UNSET
    stated = described["default"]
    try:
        default = stated if kind is Any else msgspec.convert(stated, kind)
    except msgspec.ValidationError:
        return field, Any, msgspec.field(default_factory=lambda: stated)
    if default is None or isinstance(default, str | int | float | msgspec.Struct):
        return field, kind, default
    if not default:
        return field, kind, msgspec.field(default_factory=type(default))
    return field, kind, msgspec.field(default_factory=lambda: msgspec.convert(stated, kind))


def _union(kinds: list[Any]) -> Any:
    """Return the union of *kinds*; where msgspec cannot tell them apart, whatever comes."""
    if any(kind is Any for kind in kinds):
        return Any
    try:
        union = reduce(or_, (type(None) if kind is None else kind for kind in kinds))
        inspect.type_info(union)
        msgspec.json.Decoder(union)
    except (TypeError, ValueError):
        return Any
    return union


def _choice(values: Any) -> Any:
    """Return the type of one of *values*."""
    if not all(value is None or isinstance(value, str) or type(value) is int for value in values):
        return Any
    return Literal[tuple(values)]


def _limits(schema: Mapping[str, Any]) -> Meta | None:
    form = str(schema.get("type"))
    found: dict[str, Any] = {}
    if form in ("integer", "number"):
        found = {_LIMITS[name]: schema[name] for name in _LIMITS if name in schema}
    elif form in _LENGTHS and "properties" not in schema:
        found = {word: schema[name] for name, word in _LENGTHS[form].items() if name in schema}
    if form == "string" and "pattern" in schema:
        found["pattern"] = _pattern(schema["pattern"])
    return Meta(**found) if found else None


def _pattern(pattern: str) -> str:
    r"""Return *pattern* as Python has it: `$` at the end of a schema is `\Z` here."""
    return pattern[:-1] + r"\Z" if pattern.endswith("$") and not pattern.endswith(r"\$") else pattern


def _part_name(reference: str) -> str:
    return reference.rpartition("/")[2].replace("~1", "/").replace("~0", "~")


def _is_field(member: str) -> bool:
    return member.isidentifier() and not keyword.iskeyword(member) and not member.startswith(("_", "field_"))


def _class_name(name: str) -> str:
    words = "".join(word[:1].upper() + word[1:] for word in re.split(_UNIT, name) if word)
    return words if words.isidentifier() and not keyword.iskeyword(words) else f"Part{words}"
