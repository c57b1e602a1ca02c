"""The JSON Schema of a tool's arguments, as model providers accept it.

Owns three forms of one schema. The *plain* form has an object at the root and no references, because providers refuse
both. The *strict* form is the common subset of the strict modes of OpenAI and Anthropic: every member is required, an
optional one is nullable, and what the subset lacks is text. `tool_rules` judges both. Pure.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec
from msgspec import inspect

from bus.errors import ContractError
from bus.nearest import nearest
from bus.payloads.described_types import NAMED, walk
from bus.payloads.field_docs import field_docs
from bus.payloads.no_payload import is_model
from bus.protocol.canonical import escape_pointer_token
from bus.protocol.canonical_numbers import SAFE_INTEGER
from bus.schemas.json_schema import portable

__all__ = ["first_unknown", "plain_schema", "strict_schema", "without_nulls"]

_DEFS: Final = "#/$defs/"
_DROPPED: Final = frozenset({"$comment", "$schema", "discriminator", "title"})
"""Keywords that tell a model nothing."""
_FORMATS: Final = frozenset({"date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid"})
"""The formats that both providers know in strict mode."""
_STRICT: Final = frozenset(
    {"type", "properties", "required", "additionalProperties", "items", "anyOf", "enum", "const"}
)
_NULL: Final = {"type": "null"}
_MAX_DEPTH: Final = 32


def plain_schema(cls: Any) -> dict[str, Any]:
    """Return the schema of class *cls*, an object without references. A class that contains itself is told once.

    Raises ContractError for a class that is not an object.
    """
    made = msgspec.json.schema(cls, schema_hook=_model_schema)
    plain = portable(msgspec.to_builtins(made))
    parts: dict[str, Any] = plain.pop("$defs", {})
    for described in (kind for _, kind in walk(inspect.type_info(cls)) if isinstance(kind, NAMED)):
        _add_docs(parts.get(described.cls.__name__), described)
    found: dict[str, Any] = _inlined(plain, parts, ())
    if found.get("type") != "object":
        raise ContractError("the arguments of a tool are an object")
    return found


def _model_schema(cls: Any) -> dict[str, Any]:
    """Return the schema of a Pydantic model in another class; it has its references inside."""
    if not is_model(cls):
        raise NotImplementedError
    # Only now: a program without models need not have pydantic.
    from bus.payloads.pydantic_shadows import make_shadow

    shadow, _ = make_shadow(cls)
    made = plain_schema(shadow)
    return made | {"description": made.get("description") or _first_line(cls)} if _first_line(cls) else made


def _first_line(cls: Any) -> str:
    return (cls.__dict__.get("__doc__") or "").strip().partition("\n")[0]


def _add_docs(part: dict[str, Any] | None, described: Any) -> None:
    """Add the texts below the fields of a class to its schema."""
    if part is None:
        return
    docs = field_docs(described.cls)
    for field in described.fields:
        member = part.get("properties", {}).get(field.encode_name)
        if member is not None and field.name in docs:
            member.setdefault("description", docs[field.name])


def _inlined(schema: Any, parts: Mapping[str, Any], within: tuple[str, ...]) -> Any:
    if isinstance(schema, list):
        return [_inlined(item, parts, within) for item in schema]
    if not isinstance(schema, dict):
        return schema
    if "$ref" in schema:
        name = str(schema["$ref"]).removeprefix(_DEFS)
        if name in within:
            # Without references there is an end to what can be said of a class that contains itself.
            return {"type": "object", "description": f"As {name}, which this is in."}
        beside = {key: value for key, value in schema.items() if key != "$ref"}
        return {**_inlined(parts[name], parts, (*within, name)), **_inlined(beside, parts, within)}
    found = {key: _inlined_member(key, value, parts, within) for key, value in schema.items() if key not in _DROPPED}
    if found.get("type") == "integer":
        found = {key: value for key, value in found.items() if value not in (SAFE_INTEGER, -SAFE_INTEGER)}
    if found.get("additionalProperties") is True:
        del found["additionalProperties"]
    if found.get("type") == "array" and not {"items", "prefixItems"} & found.keys():
        # A list of whatever: OpenAI refuses one that states no items.
        found["items"] = {}
    return _typed(found)


def _inlined_member(key: str, value: Any, parts: Mapping[str, Any], within: tuple[str, ...]) -> Any:
    if key == "properties":
        return {name: _inlined(below, parts, within) for name, below in value.items()}
    return value if key in ("default", "const", "enum", "examples") else _inlined(value, parts, within)


def _typed(schema: dict[str, Any]) -> dict[str, Any]:
    """Return *schema* with the type of its enumerated values, which strict modes want stated."""
    if "enum" not in schema or "type" in schema:
        return schema
    kinds = list(dict.fromkeys(_kind_of(value) for value in schema["enum"]))
    return {"type": kinds[0] if len(kinds) == 1 else kinds, **schema}


def _kind_of(value: Any) -> str:
    if isinstance(value, bool):
        return "boolean"
    if value is None:
        return "null"
    return {str: "string", int: "integer", float: "number"}.get(type(value), "object")


def strict_schema(plain: Mapping[str, Any]) -> dict[str, Any]:
    """Return *plain* in the strict form.

    Raises ContractError, with the pointer of the part, for what strict modes cannot state: objects with free keys,
    values of any kind, lists with a type for each place.
    """
    return _strict(plain, "")


def _strict(schema: Mapping[str, Any], pointer: str) -> dict[str, Any]:
    if "prefixItems" in schema:
        raise ContractError("a list with a type for each place", pointer)
    if not {"type", "anyOf", "enum", "const"} & schema.keys():
        raise ContractError("a value of any kind", pointer)
    found = {key: value for key, value in schema.items() if key in _STRICT or _is_known_format(key, value)}
    if schema.get("type") == "object":
        found |= _strict_object(schema, pointer)
    if schema.get("type") == "array":
        found["items"] = _strict(schema.get("items", {}), f"{pointer}/items")
    if "anyOf" in schema:
        found["anyOf"] = [_strict(each, f"{pointer}/anyOf/{place}") for place, each in enumerate(schema["anyOf"])]
    text = _text_of_rest(schema, found)
    return found | ({"description": text} if text else {})


def _strict_object(schema: Mapping[str, Any], pointer: str) -> dict[str, Any]:
    is_closed = schema.get("additionalProperties") is False
    if schema.get("additionalProperties") or not ("properties" in schema or is_closed):
        raise ContractError("an object with free keys", pointer)
    needed = schema.get("required", ())
    members = {}
    for name, below in schema.get("properties", {}).items():
        strict = _strict(below, f"{pointer}/properties/{escape_pointer_token(name)}")
        members[name] = strict if name in needed else _nullable(strict)
    return {"properties": members, "required": list(members), "additionalProperties": False}


def _nullable(schema: dict[str, Any]) -> dict[str, Any]:
    if _admits_null(schema):
        return schema
    text = {key: schema[key] for key in ("description",) if key in schema}
    inner = {key: value for key, value in schema.items() if key not in text}
    choices = inner["anyOf"] if inner.keys() == {"anyOf"} else [inner]
    return {"anyOf": [*choices, _NULL], **text}


def _admits_null(schema: Mapping[str, Any]) -> bool:
    """Tell whether null is a value of *schema*."""
    if "anyOf" in schema:
        return any(_admits_null(each) for each in schema["anyOf"])
    if "enum" in schema:
        return None in schema["enum"]
    if "const" in schema:
        return schema["const"] is None
    kind = schema.get("type")
    return kind is None or kind == "null" or (isinstance(kind, list) and "null" in kind)


def _is_known_format(key: str, value: Any) -> bool:
    return key == "format" and value in _FORMATS


def _text_of_rest(schema: Mapping[str, Any], found: Mapping[str, Any]) -> str:
    """Return the description with what the strict form cannot state as keywords."""
    told = (*found, "description", "examples")
    rest = [f"{key}: {_shown(value)}" for key, value in sorted(schema.items()) if key not in told and value is not None]
    described = str(schema.get("description", ""))
    return " ".join(each for each in (described, f"({'; '.join(rest)})" if rest else "") if each)


def _shown(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def without_nulls(value: Any, schema: Mapping[str, Any]) -> Any:
    """Return *value*, which a model wrote for the strict form, without the nulls that stand for what was left out."""
    if isinstance(value, list) and isinstance(schema.get("items"), Mapping):
        return [without_nulls(item, schema["items"]) for item in value]
    if not isinstance(value, dict):
        return value
    members = _members_of(schema, value)
    if members is None:
        return value
    needed = members.get("required", ())
    found = {}
    for name, below in value.items():
        kind = members["properties"].get(name)
        if kind is None:
            found[name] = below
        elif below is not None or name in needed or _admits_null(kind):
            found[name] = without_nulls(below, kind)
    return found


def first_unknown(value: Any, schema: Mapping[str, Any], pointer: str = "") -> ContractError | None:
    """Return the fault of the first member of *value* that *schema* does not have; None without one.

    A payload ignores such members. A model that invents one means something by it, and has to learn that it is lost.
    """
    return next(_unknown(value, schema, pointer, 0), None)


def _unknown(value: Any, schema: Mapping[str, Any], pointer: str, depth: int) -> Iterator[ContractError]:
    if depth > _MAX_DEPTH:
        return
    if isinstance(value, list) and isinstance(schema.get("items"), Mapping):
        for place, item in enumerate(value):
            yield from _unknown(item, schema["items"], f"{pointer}/{place}", depth + 1)
    if not isinstance(value, dict) or (members := _members_of(schema, value)) is None:
        return
    known = members["properties"]
    for name, below in value.items():
        where = f"{pointer}/{escape_pointer_token(name)}"
        if name in known:
            yield from _unknown(below, known[name], where, depth + 1)
        elif not members.get("additionalProperties"):
            yield ContractError(f"an argument that the tool lacks{nearest(name, known)}", where, "schema_violation")


def _members_of(schema: Mapping[str, Any], value: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the object's schema that *value* is judged by; None where its members are free."""
    if "properties" in schema:
        return schema
    choices: Sequence[Mapping[str, Any]] = schema.get("anyOf", ())
    objects = [each for each in choices if each.get("type") == "object"]
    if not objects or any("properties" not in each for each in objects):
        return None
    # The one that knows the most of its members; unions of classes are told apart by such members.
    return max(objects, key=lambda each: len(value.keys() & each["properties"].keys()))
