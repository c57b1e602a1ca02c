"""Adapter: the source of an upcaster that would make a dead message's data valid, for a person to review. Pure.

Owns the guesses: similar names, and values that can be converted. Where no guess is possible the generated code raises,
so that it cannot be used unreviewed. Names from the message are Python literals; its values are not shown.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec

from bus.payloads.payload_types import PayloadType

__all__ = ["Adapter", "adapter_of"]

_CONVERSIONS: Final[Mapping[Any, str]] = {
    int: "int({value})",
    float: "float({value})",
    str: "str({value})",
    bool: '{value} in (True, 1, "1", "true", "True")',
}
_ALIKE: Final = 0.5


class Adapter(msgspec.Struct, frozen=True, kw_only=True):
    """The source of the function, and the number of its lines that need a decision."""

    name: str
    source: str
    open_questions: int
    next_version: str
    """The version of the type that reads the old data with it."""


def adapter_of(kind: PayloadType, data: Mapping[str, Any], major: int) -> Adapter | None:
    """Return the upcaster from *data*, of version *major*, to what *kind* wants; None where its class tells no fields.

    Data of the own major needs a new one: within a major the old form would have to be allowed.
    """
    if not (isinstance(kind.described, type) and issubclass(kind.described, msgspec.Struct)):
        return None
    name = f"from_{major}"
    changes = list(_changes(msgspec.structs.fields(kind.described), data))
    body = [line for line, _ in changes]
    target = kind.major if major < kind.major else major + 1
    lines = [
        f"def {name}(data: dict) -> dict:",
        f'    """Read {kind.name} {major}.x as {target}.0.0. Made from one dead message: review every line."""',
        "    data = dict(data)",
        *(f"    {line}" for line in body),
        "    return data",
    ]
    unsure = sum(is_open for _, is_open in changes)
    return Adapter(name=name, source="\n".join(lines) + "\n", open_questions=unsure, next_version=f"{target}.0.0")


def _changes(fields: tuple[Any, ...], data: Mapping[str, Any]) -> Iterator[tuple[str, bool]]:
    """Yield the statements, and whether each is a question."""
    known = {field.encode_name: field for field in fields}
    strange = sorted(data.keys() - known.keys())
    missing = [name for name, field in known.items() if field.required and name not in data]
    meant = _matches(missing, strange)
    for name, field in known.items():
        old = meant.get(name, name)
        if old in data:
            yield from _of_value(name, old, field, data[old])
        elif field.required:
            yield f"raise NotImplementedError({f'{name} is required: what stands for it?'!a})", True
    for name in strange:
        if name not in meant.values():
            yield f"del data[{name!a}]  # no field has this name", False


def _of_value(name: str, old: str, field: Any, value: Any) -> Iterator[tuple[str, bool]]:
    taken = f"data.pop({old!a})" if old != name else f"data[{name!a}]"
    if _fits(value, field.type, strict=True):
        if old != name:
            yield f"data[{name!a}] = {taken}  # named alike", False
        return
    conversion = _CONVERSIONS.get(field.type)
    if conversion is not None and _fits(value, field.type, strict=False):
        yield f"data[{name!a}] = {conversion.format(value=taken)}  # was of another type", False
        return
    yield f"raise NotImplementedError({f'{name}: its value is of another form'!a})", True


def _fits(value: Any, wanted: Any, *, strict: bool) -> bool:
    try:
        msgspec.convert(str(value) if wanted is str and not strict else value, wanted, strict=strict)
    except (msgspec.ValidationError, TypeError):
        return False
    return True


def _matches(missing: list[str], strange: list[str]) -> dict[str, str]:
    """Return by missing field the strange name that was probably meant."""
    found: dict[str, str] = {}
    left = list(strange)
    for name in missing:
        alike = difflib.get_close_matches(name, left, n=1, cutoff=_ALIKE)
        if alike:
            found[name] = alike[0]
            left.remove(alike[0])
    # One of each is left: no other can have been meant, however it is spelt.
    rest = [name for name in missing if name not in found]
    if len(rest) == len(left) == 1:
        found[rest[0]] = left[0]
    return found
