"""Error texts for annotations that msgspec cannot read: the field, and what to write instead.

Owns these texts for Structs, dataclasses and TypedDicts. `bus.payloads.pydantic_shadows` has those of models.
"""

from __future__ import annotations

import typing
from typing import Any, Final

from msgspec import inspect

__all__ = ["unreadable"]

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
    return f"@payload({name!r}): {_field_of(cls)}{text}{cure}"


def _field_of(cls: Any) -> str:
    """Return the name of the first field that cannot be read, for the beginning of a text; empty if none is found."""
    try:
        hints = typing.get_type_hints(cls, include_extras=True)
    except (NameError, TypeError):
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
