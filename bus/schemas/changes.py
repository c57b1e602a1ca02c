"""The changes between two schemas of one type, and the version number that each requires. Pure.

Owns the table of changes (seed 000 section 4.3, with seed 001's review of new enum values):

    a new optional field, a deprecation                    minor
    a new value of an enumeration, another risk, side      review: minor, once somebody has looked at the readers
    effect or resource, a first performative, a field      or at the policies
    that is critical no more
    a new required field, a field that is gone, renamed,
    of another type, required or optional now              major
    another limit, default, rule, need or performative     major
    other words                                            patch

Old readers must read new messages, and new readers old ones: a change that makes one of them refuse or misread a
message is major.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from difflib import SequenceMatcher
from typing import Any, Final, Literal, TypeAlias

import msgspec

from bus.protocol.canonical_numbers import SAFE_INTEGER
from bus.schemas.decoder_marks import MARKED, decoder_of, unmarked
from bus.schemas.versions import SchemaVersion

__all__ = ["Bump", "SchemaChange", "compare", "needed_bump", "version_for"]

Bump: TypeAlias = Literal["patch", "minor", "review", "major"]
_ORDER: Final = ("patch", "minor", "review", "major")
_WORDS: Final = frozenset(
    {"title", "description", "$comment", "examples", "$id", "$schema", "version", "changelog", MARKED}
)
_NAMED: Final = frozenset({"properties", "required", "$defs", "x-sealbus", "enum", "const", "deprecated"})
_MARKS: Final = ("deprecated", "x-sealbus-removal", "x-sealbus-use")
_ALIKE: Final = 0.5
_TERMS: Final[Mapping[str, Bump]] = {
    "risk": "review",
    "ttl_s": "minor",
    "takes": "minor",
    "side_effect": "review",
    "resource": "review",
    "critical": "review",
    "overrides": "review",
}
_FEWER_IS_MINOR: Final = "needs"
_MORE_IS_MINOR: Final = "critical"
_INTEGERS: Final = {"minimum": -SAFE_INTEGER, "maximum": SAFE_INTEGER}
_BOUNDING: Final = frozenset({"boolean", "integer", "number"})
"""The types of flags and limits, which may narrow the effect of a message."""


class SchemaChange(msgspec.Struct, frozen=True):
    """One change at *pointer* into data; *bump* is the version increment it requires."""

    pointer: str
    kind: str
    bump: Bump
    text: str
    advice: str = ""
    """Further advice besides the version number."""


def compare(old: Mapping[str, Any], new: Mapping[str, Any]) -> tuple[SchemaChange, ...]:
    """Return the changes from schema *old* to schema *new*, the gravest first."""
    if MARKED not in old:
        # Published before exports told texts apart that are read as different types.
        new = unmarked(new)
    found = [*_terms(old.get("x-sealbus", {}), new.get("x-sealbus", {})), *_Comparison(old, new).changes()]
    if not found and _described(old) != _described(new):
        found.append(SchemaChange("", "words", "patch", "other words"))
    return tuple(sorted(dict.fromkeys(found), key=lambda change: (-_ORDER.index(change.bump), change.pointer)))


def needed_bump(changes: tuple[SchemaChange, ...], *, reviewed: bool = False) -> Bump | None:
    """Return the gravest bump that *changes* ask for; *reviewed* makes a review a minor one."""
    bumps = {"minor" if reviewed and change.bump == "review" else change.bump for change in changes}
    return max(bumps, key=_ORDER.index) if bumps else None


def version_for(old: str, bump: Bump) -> str:
    """Return the least version after *old* that *bump* allows."""
    return str(SchemaVersion.of(old).after("minor" if bump == "review" else bump))


def _terms(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[SchemaChange]:
    for name in sorted({*old, *new}):
        before, after = old.get(name), new.get(name)
        if before == after:
            continue
        bump: Bump = _TERMS.get(name, "major")
        if name == "performative" and before is None:
            # Every reader takes what its publishers wrote until now: none.
            bump = "review"
        if name == _FEWER_IS_MINOR and set(after or ()) < set(before or ()):
            bump = "minor"
        if name == _MORE_IS_MINOR and set(after or ()) > set(before or ()):
            bump = "minor"
        yield SchemaChange("", f"{name} changed", bump, f"{name} was {_shown(before)}, is {_shown(after)}")


class _Comparison:
    """Walks two schemas side by side; a part that contains itself is compared once."""

    def __init__(self, old: Mapping[str, Any], new: Mapping[str, Any]) -> None:
        self._old, self._new = old, new
        self._seen: set[tuple[str, str]] = set()

    def changes(self) -> Iterator[SchemaChange]:
        yield from self._value(self._old, self._new, "")

    def _value(self, old: Any, new: Any, pointer: str) -> Iterator[SchemaChange]:
        references = _reference(old), _reference(new)
        if any(references):
            if references in self._seen:
                return
            self._seen.add(references)
        old, new = _resolved(old, self._old), _resolved(new, self._new)
        if old.get("type") != new.get("type") or _members(old) != _members(new):
            yield SchemaChange(pointer, "type changed", "major", f"was {_kind(old)}, is {_kind(new)}")
            return
        if MARKED in self._old and decoder_of(old) != decoder_of(new):
            yield SchemaChange(pointer, "type changed", "major", f"was {_read_as(old)}, is {_read_as(new)}")
            return
        yield from _enumeration(old, new, pointer)
        if "properties" in old or "properties" in new:
            yield from self._fields(old, new, pointer)
        if old.get("type") == "array" and not (old.get("items") is new.get("items") is False):
            # Items that nothing is said of are any JSON value.
            yield from self._value(_any(old.get("items")), _any(new.get("items")), f"{pointer}/*")
        values = old.get("additionalProperties"), new.get("additionalProperties")
        if isinstance(values[0], Mapping) and isinstance(values[1], Mapping):
            yield from self._value(*values, f"{pointer}/*")
        for word in ("anyOf", "prefixItems"):
            yield from self._each(old.get(word), new.get(word), pointer)
        yield from _limits(old, new, pointer)

    def _each(self, old: Any, new: Any, pointer: str) -> Iterator[SchemaChange]:
        if old is new is None:
            return
        if not isinstance(old, list) or not isinstance(new, list):
            was, is_ = (_one_of(each) for each in (old, new))
            yield SchemaChange(pointer, "type changed", "major", f"was {was}, is {is_}")
            return
        if len(old) != len(new):
            yield SchemaChange(pointer, "type changed", "major", f"had {len(old)} alternatives, has {len(new)}")
            return
        for before, after in zip(old, new, strict=True):
            yield from self._value(before, after, pointer)

    def _fields(self, old: Mapping[str, Any], new: Mapping[str, Any], pointer: str) -> Iterator[SchemaChange]:
        before, after = old.get("properties", {}), new.get("properties", {})
        needed_before, needed = set(old.get("required", ())), set(new.get("required", ()))
        gone = [name for name in before if name not in after]
        fresh = [name for name in after if name not in before]
        for name in gone:
            successor = self._successor(name, before[name], {other: after[other] for other in fresh})
            location = f"{pointer}/{name}"
            if successor is not None:
                fresh.remove(successor)
                yield SchemaChange(location, "field renamed", "major", f"{name} is gone: most likely {successor} now")
            else:
                yield SchemaChange(location, "field deleted", "major", _deleted(name, before[name]))
        for name in fresh:
            location = f"{pointer}/{name}"
            if name in needed:
                yield SchemaChange(location, "required field added", "major", f"old messages have no {name}")
            else:
                advice = self._advice(name, after[name]) if not pointer else ""
                yield SchemaChange(location, "optional field added", "minor", "old readers ignore it", advice)
        for name in before:
            if name not in after:
                continue
            location = f"{pointer}/{name}"
            if (name in needed) != (name in needed_before):
                was, is_ = ("optional", "required") if name in needed else ("required", "optional")
                yield SchemaChange(location, f"{was} field made {is_}", "major", f"{name} was {was}, is {is_}")
            if [before[name].get(mark) for mark in _MARKS] != [after[name].get(mark) for mark in _MARKS]:
                yield SchemaChange(location, "field deprecated", "minor", _deprecation(after[name]))
            yield from self._value(before[name], after[name], location)

    def _advice(self, name: str, schema: Any) -> str:
        """Return the question that a new flag or limit of a type of high risk raises."""
        terms = self._new.get("x-sealbus", {})
        if terms.get("risk") != "high" or name in terms.get("critical", ()):
            return ""
        if _resolved(schema, self._new).get("type") not in _BOUNDING:
            return ""
        return (
            f'readers that do not know {name} ignore it: if that widens the effect, set critical=("{name}",) '
            "in @payload"
        )

    def _successor(self, name: str, schema: Any, fresh: Mapping[str, Any]) -> str | None:
        """Return which of *fresh* fields most likely is *name* under another name."""
        alike = {
            other: SequenceMatcher(None, name, other).ratio()
            for other, candidate in fresh.items()
            if _described(_resolved(schema, self._old)) == _described(_resolved(candidate, self._new))
        }
        best = max(alike, key=alike.__getitem__, default=None)
        return best if best is not None and (alike[best] >= _ALIKE or len(fresh) == 1) else None


def _enumeration(old: Mapping[str, Any], new: Mapping[str, Any], pointer: str) -> Iterator[SchemaChange]:
    before, after = _values(old), _values(new)
    if before is None or after is None:
        return
    if fewer := [value for value in before if value not in after]:
        yield SchemaChange(pointer, "enum value removed", "major", f"{_shown(fewer)} is refused now")
    if more := [value for value in after if value not in before]:
        yield SchemaChange(pointer, "enum value added", "review", f"{_shown(more)} is unknown to old readers")


def _limits(old: Mapping[str, Any], new: Mapping[str, Any], pointer: str) -> Iterator[SchemaChange]:
    skipped = {*_WORDS, *_NAMED, *_MARKS, "type", "items", "anyOf", "prefixItems", "$ref"}
    # What was published before exports wrote the limits that every integer has.
    implied = _INTEGERS if old.get("type") == "integer" else {}
    for word in sorted({*old, *new} - skipped):
        before = _described(old.get(word, implied.get(word)))
        after = _described(new.get(word, implied.get(word)))
        if before == after or (word == "additionalProperties" and isinstance(before, dict) and isinstance(after, dict)):
            continue
        if word in ("allOf", "x-sealbus-rules"):
            yield SchemaChange(pointer, "rule changed", "major", "messages that one accepts the other refuses")
        else:
            kind = "default changed" if word == "default" else "limit changed"
            yield SchemaChange(
                pointer, kind, "major", f"{word} was {_shown(old.get(word))}, is {_shown(new.get(word))}"
            )


def _any(schema: Any) -> Any:
    return {} if schema is None or schema is True else schema


def _one_of(alternatives: Any) -> str:
    return "anything" if alternatives is None else f"one of {len(alternatives)} alternatives"


def _reference(schema: Any) -> str:
    return str(schema.get("$ref", "")) if isinstance(schema, Mapping) else ""


def _resolved(schema: Any, root: Mapping[str, Any]) -> dict[str, Any]:
    """Return *schema* with its reference, and a null beside one alternative, taken away."""
    if not isinstance(schema, Mapping):
        return {"type": schema}
    found = dict(schema)
    for _ in range(8):
        name = str(found.pop("$ref", "")).rpartition("/")[2]
        if name:
            found = {**root.get("$defs", {}).get(name, {}), **found}
        alternatives = found.get("anyOf")
        if not isinstance(alternatives, list):
            break
        rest = [item for item in alternatives if item != {"type": "null"}]
        if len(rest) != 1 or len(rest) == len(alternatives):
            break
        del found["anyOf"]
        found = {**found, **rest[0], "nullable": True}
    return found


def _members(schema: Mapping[str, Any]) -> bool:
    return _values(schema) is not None


def _values(schema: Mapping[str, Any]) -> list[Any] | None:
    if "const" in schema:
        return [schema["const"]]
    values = schema.get("enum")
    return list(values) if isinstance(values, list) else None


def _kind(schema: Mapping[str, Any]) -> str:
    if _values(schema) is not None:
        return "an enumeration"
    if isinstance(schema.get("anyOf"), list):
        return "one of several"
    return str(schema.get("type", "anything"))


def _read_as(schema: Mapping[str, Any]) -> str:
    stated, keys = decoder_of(schema)
    return f"{stated or _kind(schema)} with keys of {keys or 'string'}" if keys else stated or _kind(schema)


def _described(value: Any) -> Any:
    """Return *value* without the words for people."""
    if isinstance(value, Mapping):
        return {name: _described(item) for name, item in value.items() if name not in _WORDS}
    return [_described(item) for item in value] if isinstance(value, list | tuple) else value


def _deleted(name: str, schema: Mapping[str, Any]) -> str:
    if (until := schema.get("x-sealbus-removal")) is not None:
        return f"{name} was deprecated, to be removed on {until}"
    return f"{name} was never deprecated: readers that need it break without a warning"


def _deprecation(schema: Mapping[str, Any]) -> str:
    if not schema.get("deprecated"):
        return "is not deprecated any more"
    return f"to be removed on {schema.get('x-sealbus-removal')}: {schema.get('x-sealbus-use')}"


def _shown(value: Any) -> str:
    text = msgspec.json.encode(value).decode() if value is not None else "absent"
    return text if len(text) <= 80 else text[:79] + "…"  # noqa: PLR2004 - the width of a column
