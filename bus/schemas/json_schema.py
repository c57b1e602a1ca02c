"""The JSON Schema (2020-12) of a payload type, for other languages and registries.

Owns writing a type, its shared parts and its rules as one schema with the same verdict as gate `schema`. Rules that
JSON Schema cannot express are text under `x-sealbus-rules`. Unknown members are allowed, because receivers ignore them.
Pure.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import msgspec
from msgspec import inspect

from bus.payloads import rules
from bus.payloads.built_in_names import is_override
from bus.payloads.described_types import NAMED, default_of, fields_of, walk
from bus.payloads.payload_types import PayloadType
from bus.protocol.canonical_numbers import SAFE_INTEGER
from bus.schemas.decoder_marks import MARKED, mark_decoders

__all__ = ["SCHEMA_DIALECT", "Shape", "portable", "schema_id", "schema_of", "shape_of"]

SCHEMA_DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"


def schema_id(name: str, version: str) -> str:
    """Return the `$id` of the schema of type *name* in *version*."""
    return f"urn:sealbus:schema:{name}:{version}"


def schema_of(kind: PayloadType) -> dict[str, Any]:
    """Return the schema of *kind*, with its terms of the envelope under `x-sealbus`."""
    plain = portable(msgspec.to_builtins(msgspec.json.schema(kind.described)))
    parts: dict[str, Any] = plain.pop("$defs", {})
    mark_decoders(plain, inspect.type_info(kind.described), parts)
    root_name = str(plain.get("$ref", "")).rpartition("/")[2]
    for described in _structs(kind.described):
        own = getattr(described.cls, "__rules__", ())
        if own and described.cls.__name__ in parts:
            _add_rules(parts[described.cls.__name__], own, Shape(described))
    root = parts.get(root_name, plain)
    # A type that contains itself keeps its name among the parts; its rules are those of the payload alone.
    if root_name and _mentions(parts, f"#/$defs/{root_name}"):
        root = {"$ref": f"#/$defs/{root_name}"}
    elif root_name:
        del parts[root_name]
    for field, deprecation in kind.deprecated.items():
        marked = root.get("properties", {}).get(field)
        if marked is not None:
            marked["deprecated"] = True
            marked["x-sealbus-removal"] = deprecation.removal.isoformat()
            marked["x-sealbus-use"] = deprecation.instead
    if kind.rules:
        _add_rules(root, kind.rules, shape_of(kind.described))
    return {
        "$schema": SCHEMA_DIALECT,
        "$id": schema_id(kind.name, kind.version),
        **{key: root[key] for key in root if key != "title"},
        "title": kind.name,
        "version": kind.version,
        MARKED: True,
        "x-sealbus": _terms(kind),
        **({"$defs": parts} if parts else {}),
    }


def _terms(kind: PayloadType) -> dict[str, Any]:
    terms = kind.terms
    spoken = terms.performative
    stated: Any = msgspec.to_builtins(spoken) if isinstance(spoken, msgspec.Struct) else spoken
    found = {
        "risk": kind.risk,
        "performative": stated,
        "needs": list(terms.required_options),
        "ttl_s": terms.ttl_s,
        "same_as": terms.must_match,
        "takes": terms.options_from,
        "critical": list(terms.critical),
        "side_effect": kind.side_effect,
        "resource": kind.resource,
        "overrides": is_override(kind.name, kind.cls),
    }
    return {name: value for name, value in found.items() if value}


class Shape:
    """The facts about an object's class that rules need: defaults, and the classes of its fields."""

    def __init__(self, described: Any) -> None:
        self._fields = {field.encode_name: field for field in fields_of(described)}

    def default(self, field: str) -> Any:
        """Return the default of *field*; UNSET if it has none."""
        found = self._fields.get(field)
        return msgspec.UNSET if found is None or found.required else default_of(found)

    def below(self, field: str) -> Shape:
        """Return the shape of the object, or of the items of the list, in *field*."""
        found = self._fields.get(field)
        objects = [kind for _, kind in walk(found.type) if isinstance(kind, NAMED)] if found else []
        return Shape(objects[0] if objects else None)


def shape_of(cls: Any) -> Shape:
    """Return the shape of payload class *cls*."""
    return Shape(inspect.type_info(cls))


def _structs(cls: Any) -> list[inspect.StructType]:
    return [kind for _, kind in walk(inspect.type_info(cls)) if isinstance(kind, inspect.StructType)]


def portable(value: Any) -> Any:
    r"""Return schema *value* as other languages read it.

    Patterns end as theirs do: `$` there means `\Z` here. Every integer has limits, of its own or those of a double.
    """
    if isinstance(value, list | tuple):
        return [portable(item) for item in value]
    if not isinstance(value, dict):
        return value
    made = {key: _portable_member(key, item) for key, item in value.items()}
    return made | _limits_of(made) if made.get("type") == "integer" else made


def _portable_member(key: str, item: Any) -> Any:
    if key in _NAMED:
        return {name: portable(schema) for name, schema in item.items()}
    if key == "pattern" and item.endswith(r"\Z"):
        return item.removesuffix(r"\Z") + "$"
    return item if key in _VALUES else portable(item)


_NAMED: Final = frozenset({"properties", "$defs"})
"""The members of a schema that hold schemas by name."""
_VALUES: Final = frozenset({"default", "const", "enum", "examples"})
"""The members of a schema that hold values of the type, and no schemas."""


def _limits_of(schema: dict[str, Any]) -> dict[str, int]:
    found = {}
    if "exclusiveMinimum" not in schema:
        found["minimum"] = max(schema.get("minimum", -SAFE_INTEGER), -SAFE_INTEGER)
    if "exclusiveMaximum" not in schema:
        found["maximum"] = min(schema.get("maximum", SAFE_INTEGER), SAFE_INTEGER)
    return found


def _mentions(value: Any, reference: str) -> bool:
    if isinstance(value, dict):
        return value.get("$ref") == reference or any(_mentions(item, reference) for item in value.values())
    return isinstance(value, list) and any(_mentions(item, reference) for item in value)


def _add_rules(schema: dict[str, Any], own: tuple[rules.Rule, ...], shape: Shape) -> None:
    expressible, untold = [], []
    for rule in own:
        fragment = _fragment(rule.condition, shape)
        if fragment is None:
            untold.append(rule.text)
        else:
            expressible.append({"$comment": rule.text, **fragment})
    if expressible:
        schema["allOf"] = expressible
    if untold:
        schema["x-sealbus-rules"] = untold


_NOT_NULL: Final = {"not": {"type": "null"}}


def _fragment(condition: rules.Condition, shape: Shape) -> dict[str, Any] | None:
    """Return a schema that accepts an object exactly if *condition* is true; None if no schema can."""
    return _FRAGMENTS[type(condition)](condition, shape) if type(condition) in _FRAGMENTS else None


def _has(condition: rules.Has, shape: Shape) -> dict[str, Any]:
    if shape.default(condition.field) not in (None, msgspec.UNSET):
        return {}
    required: dict[str, Any] = {"required": [condition.field]}
    return required if condition.null else {**required, "properties": {condition.field: _NOT_NULL}}


def _is(condition: rules.Is, shape: Shape) -> dict[str, Any]:
    values = list(condition.values)
    by_default = any(
        shape.default(condition.field) == value
        and isinstance(value, bool) == isinstance(shape.default(condition.field), bool)
        for value in values
    )
    return {
        "properties": {condition.field: {"enum": values}},
        **({} if by_default else {"required": [condition.field]}),
    }


def _minimum(condition: rules.Least, shape: Shape) -> dict[str, Any]:  # noqa: ARG001 - the table's form
    field = {"type": "number", "minimum": condition.minimum}
    return {"properties": {condition.field: field}, "required": [condition.field]}


def _size(condition: rules.Size, shape: Shape) -> dict[str, Any]:
    default = shape.default(condition.field)
    size = len(default) if isinstance(default, str | tuple | list) else 0
    field: dict[str, Any] = {}
    if condition.minimum:
        field |= {"minItems": condition.minimum, "minLength": condition.minimum, **_NOT_NULL}
    if condition.maximum is not None:
        field |= {"maxItems": condition.maximum, "maxLength": condition.maximum}
    found: dict[str, Any] = {"properties": {condition.field: field}}
    return found if size >= condition.minimum else {**found, "required": [condition.field]}


def _parts_of(word: str) -> Callable[[Any, Shape], dict[str, Any] | None]:
    def fragment(condition: Any, shape: Shape) -> dict[str, Any] | None:
        parts = [_fragment(part, shape) for part in condition.parts]
        return None if None in parts else {word: parts}

    return fragment


def _not(condition: rules.Not, shape: Shape) -> dict[str, Any] | None:
    part = _fragment(condition.part, shape)
    return None if part is None else {"not": part}


def _every(condition: rules.Every, shape: Shape) -> dict[str, Any] | None:
    part = _fragment(condition.part, shape.below(condition.field))
    if part is None:
        return None
    # `items` looks at arrays alone; a single object is a list of it.
    field = {"items": part, "if": {"type": "object"}, "then": part}
    return {"properties": {condition.field: field}}


def _some(condition: rules.Some, shape: Shape) -> dict[str, Any] | None:
    part = _fragment(condition.part, shape.below(condition.field))
    if part is None:
        return None
    field = {"type": "array", "contains": part}
    return {"properties": {condition.field: field}, "required": [condition.field]}


def _begins(condition: rules.Begins, shape: Shape) -> dict[str, Any]:  # noqa: ARG001 - the table's form
    pattern = "^" + "".join(sign if sign.isalnum() or sign in ":/-_" else f"\\{sign}" for sign in condition.beginning)
    return {"properties": {condition.field: {"type": "string", "pattern": pattern}}, "required": [condition.field]}


def _is_text(condition: rules.IsText, shape: Shape) -> dict[str, Any]:  # noqa: ARG001 - the table's form
    return {"properties": {condition.field: {"type": "string"}}, "required": [condition.field]}


_FRAGMENTS: Final[dict[type, Callable[[Any, Shape], dict[str, Any] | None]]] = {
    rules.Has: _has,
    rules.Is: _is,
    rules.Least: _minimum,
    rules.Size: _size,
    rules.All: _parts_of("allOf"),
    rules.Either: _parts_of("anyOf"),
    rules.Not: _not,
    rules.Every: _every,
    rules.Some: _some,
    rules.Begins: _begins,
    rules.IsText: _is_text,
}
