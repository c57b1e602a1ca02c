"""Error texts for annotations that have no value, or that msgspec cannot read: the field, and what to write instead.

Owns these texts for Structs, dataclasses and TypedDicts. `bus.payloads.pydantic_shadows` has those of models.
"""

from __future__ import annotations

import inspect as signatures
import sys
import typing
from types import SimpleNamespace
from typing import Any, Final

from msgspec import inspect

__all__ = ["unreadable", "unresolved"]

_CURES: Final = (
    (
        "multiple Struct types",
        "write each Struct of the union as class A(msgspec.Struct, tag_field='kind', tag='a'), without a field `kind`",
    ),
    (
        "more than one",
        "JSON does not tell the members of this union apart: write tagged Structs, one of the members, or Json",
    ),
    ("Literal may only contain", "write the values of the members, such as Literal['a'], or the Enum itself"),
)


def unreadable(cls: Any, name: str, error: TypeError) -> str:
    """Return the text for *cls*, marked as *name*, of which msgspec reports *error*."""
    text = str(error)
    cure = next((f"; {cure}" for words, cure in _CURES if words in text), "")
    return f"@payload({name!r}): {_field_of(cls) or _unresolved_field(cls)}{text}{cure}"


def unresolved(cls: Any, name: str, error: Exception) -> str:
    """Return the text for *cls*, marked as *name*, of whose annotations one raises *error*."""
    place = f"@payload({name!r}): {_unresolved_field(cls)}"
    if isinstance(error, NameError) and error.name:
        return (
            f"{place}{error.name!r} is not defined; import it at run time, not under TYPE_CHECKING, or define it in "
            "the module, not in a function"
        )
    return f"{place}its annotation cannot be evaluated: {type(error).__name__}: {error}"


def _unresolved_field(cls: Any) -> str:
    """Return the name of the first field that cannot be evaluated, for the beginning of a text; empty if none is."""
    for base in cls.__mro__:
        known = vars(sys.modules.get(base.__module__, SimpleNamespace()))
        for field, hint in _annotations(base).items():
            try:
                alone = type(base.__name__, (), {"__annotations__": {field: hint}})
                typing.get_type_hints(alone, known, dict(vars(base)), include_extras=True)
            except Exception:  # noqa: BLE001 - whatever an annotation raises, it is the one
                return f"{field}: "
    return ""


def _annotations(cls: Any) -> dict[str, Any]:
    if sys.version_info >= (3, 14):
        from annotationlib import Format, get_annotations

        return get_annotations(cls, format=Format.FORWARDREF)
    return signatures.get_annotations(cls)


def _field_of(cls: Any) -> str:
    """Return the name of the first field that cannot be read, for the beginning of a text; empty if none is found."""
    try:
        hints = typing.get_type_hints(cls, include_extras=True)
    except Exception:  # noqa: BLE001 - an annotation in quotes is code of its author
        return ""
    for field, hint in hints.items():
        while "Required" in str(typing.get_origin(hint)) or "ReadOnly" in str(typing.get_origin(hint)):
            hint = typing.get_args(hint)[0]  # noqa: PLW2901 - what it stands for
        try:
            inspect.type_info(hint)
        except TypeError:
            return f"{field}: "
        except NameError:
            continue
    return ""
