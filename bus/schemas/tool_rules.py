"""What model providers document about tools, as checks without a network.

Owns the rules of OpenAI (function calling and structured outputs) and of Anthropic (tool use and strict tool use), and
the faults of a tool or a list of tools by them. A tool that any of the two refuses in every mode is refused where it is
declared; what only strict mode refuses leaves the tool without a strict form. Pure.

Sources: OpenAI's guides "Function calling" and "Structured Outputs" (supported schemas), Anthropic's pages "Tool use"
and "Structured outputs", and the errors that both APIs give, as of 2026-11.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

__all__ = ["MAX_DESCRIPTION", "MAX_TOOLS", "strict_budget", "strict_faults", "tool_faults"]

MAX_DESCRIPTION: Final = 1024
"""Characters of a tool's description (OpenAI)."""
MAX_TOOLS: Final = 128
"""Tools in one request (OpenAI)."""
_NAME: Final = re.compile(r"[a-zA-Z0-9_-]{1,64}", re.ASCII)
_MEMBER: Final = re.compile(r"[a-zA-Z0-9_.-]{1,64}", re.ASCII)
_COMBINED: Final = ("allOf", "anyOf", "oneOf", "not", "enum")
_REFERENCES: Final = ("$ref", "$defs", "definitions", "$dynamicRef")
_MAX_DEPTH: Final = 10
_MAX_MEMBERS: Final = 5000
_MAX_TEXT: Final = 120_000
_MAX_VALUES: Final = 1000
_MANY_VALUES: Final = 250
_MAX_VALUE_TEXT: Final = 15_000
_STRICT: Final = frozenset(
    {"type", "properties", "required", "additionalProperties", "items", "anyOf", "enum", "const", "format"}
    | {"description"}
)
_SCALARS: Final = (str, int, float, bool, type(None))


def tool_faults(name: str, description: str, schema: Mapping[str, Any]) -> list[str]:
    """Return why OpenAI or Anthropic would refuse the tool in every mode, each fault with its rule; [] if neither."""
    found = []
    if not _NAME.fullmatch(name):
        found.append(f"its name is {name!r:.80}: 1 to 64 of a-z, A-Z, 0-9, _ and -")
    if len(description) > MAX_DESCRIPTION:
        found.append(
            f"its description has {len(description)} characters, at most {MAX_DESCRIPTION} are accepted: give a "
            "shorter description=..."
        )
    if schema.get("type") != "object":
        found.append("the root of its schema is not an object")
    found += [f"its schema has {word} at the root" for word in _COMBINED if word in schema]
    for pointer, part in _parts(schema, ""):
        found += [f"its schema has {word} at {pointer or '/'}" for word in _REFERENCES if word in part]
        found += [
            f"the argument {pointer}/properties/{key} is not 1 to 64 of a-z, A-Z, 0-9, _, . and -"
            for key in part.get("properties", {})
            if not _MEMBER.fullmatch(key)
        ]
        if part.get("type") == "array" and not {"items", "prefixItems"} & part.keys():
            found.append(f"the list at {pointer or '/'} states no items: write list[str]")
    return found


def strict_faults(schema: Mapping[str, Any]) -> list[str]:
    """Return why the strict mode of OpenAI or Anthropic would refuse *schema*; [] if neither does."""
    parts = list(_parts(schema, ""))
    found = [] if schema.get("type") == "object" else ["the root is not an object"]
    found += [f"{pointer or '/'} {fault}" for pointer, part in parts for fault in _part_faults(part)]
    return found + _size_faults(schema, [part for _, part in parts])


def strict_budget(schema: Mapping[str, Any]) -> int:
    """Return the number of arguments with several types, of which Anthropic takes 16 in all strict tools of a call."""
    return sum("anyOf" in part or isinstance(part.get("type"), list) for _, part in _parts(schema, ""))


def _part_faults(part: Mapping[str, Any]) -> Iterator[str]:
    if unknown := sorted(part.keys() - _STRICT):
        yield f"has {', '.join(unknown)}, which strict mode lacks"
    if not {"type", "anyOf", "enum", "const"} & part.keys():
        yield "states no type"
    if part.get("type") == "object":
        if part.get("additionalProperties") is not False:
            yield "does not forbid additional properties"
        if set(part.get("required", ())) != part.get("properties", {}).keys():
            yield "does not require every property"
    if part.get("type") == "array" and "items" not in part:
        yield "states no items"
    if not all(isinstance(value, _SCALARS) for value in part.get("enum", ())):
        yield "enumerates values that are not scalars"


def _size_faults(schema: Mapping[str, Any], parts: Sequence[Mapping[str, Any]]) -> list[str]:
    members = [name for part in parts for name in part.get("properties", {})]
    values = [part.get("enum", ()) for part in parts]
    text = sum(map(len, members)) + sum(len(_shown(value)) for each in values for value in each)
    text += sum(len(_shown(part["const"])) for part in parts if "const" in part)
    limits = (
        (_depth(schema), _MAX_DEPTH, "levels of nesting"),
        (len(members), _MAX_MEMBERS, "properties"),
        (text, _MAX_TEXT, "characters of names and values"),
        (sum(map(len, values)), _MAX_VALUES, "enumerated values"),
        (
            max((sum(map(len, map(_shown, each))) for each in values if len(each) > _MANY_VALUES), default=0),
            _MAX_VALUE_TEXT,
            f"characters in an enumeration of more than {_MANY_VALUES} values",
        ),
    )
    return [f"it has {count} {what}, at most {limit} are accepted" for count, limit, what in limits if count > limit]


def _depth(schema: Mapping[str, Any]) -> int:
    below = max((_depth(each) for _, each in _children(schema, "")), default=0)
    return below + (schema.get("type") == "object")


def _parts(schema: Mapping[str, Any], pointer: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield *schema* and every schema in it, with its pointer."""
    yield pointer, schema
    for where, each in _children(schema, pointer):
        yield from _parts(each, where)


def _children(schema: Mapping[str, Any], pointer: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for name, each in schema.get("properties", {}).items():
        yield f"{pointer}/properties/{name}", each
    for word in ("items", "additionalProperties", "not"):
        if isinstance(schema.get(word), Mapping):
            yield f"{pointer}/{word}", schema[word]
    for word in ("anyOf", "oneOf", "allOf", "prefixItems"):
        for place, each in enumerate(schema.get(word, ())):
            yield f"{pointer}/{word}/{place}", each


def _shown(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
