"""Deprecated fields of a type: until when they are there, and what to use instead. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date

import msgspec

from bus.errors import ContractError

__all__ = ["Deprecation", "deprecations_of"]


class Deprecation(msgspec.Struct, frozen=True):
    """A field that will be removed on *removal*; *instead* names the replacement."""

    removal: date
    instead: str


def deprecations_of(name: str, provided: Mapping[str, tuple[str, str]]) -> dict[str, Deprecation]:
    """Return the deprecations of type *name*, given as field -> (date, replacement). Raises ContractError."""
    found = {}
    for field, what in provided.items():
        try:
            removal, instead = what
            found[field] = Deprecation(date.fromisoformat(removal), instead)
        except (TypeError, ValueError) as error:
            raise ContractError(
                f"@payload({name!r}): deprecated={{{field!r}: {what!r:.80}}} must be a date and advice: "
                f'write {{{field!r}: ("2027-03-01", "use new_field")}}'
            ) from error
    return found
