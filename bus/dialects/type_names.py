"""Names of types as foreign systems write them, and ours: what the settings map. Pure.

Owns the mapping in both directions. Reading: a mapped name is our type, and of other names a known prefix is removed.
Writing: a type that has a foreign name is written with it. Of several foreign names of one type the first is written.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Final

from bus.errors import ConfigurationError
from bus.nearest import nearest
from bus.protocol.identifiers import is_message_type, is_text_id
from bus.settings.schema import Settings

__all__ = ["NO_TYPE_NAMES", "TypeNames", "type_names_of"]

_NAMES: Final = "dialects.type_names"
_PREFIXES: Final = "dialects.type_prefixes"


class TypeNames:
    """*prefixes* are removed from foreign names, longest first; *names* maps foreign names to types."""

    __slots__ = ("_names", "_prefixes", "_written")

    def __init__(self, prefixes: Collection[str] = (), names: Mapping[str, str] | None = None) -> None:
        self._prefixes = sorted(prefixes, key=len, reverse=True)
        self._names = dict(names or {})
        self._written: dict[str, str] = {}
        for foreign, own in self._names.items():
            self._written.setdefault(own, foreign)

    def read(self, name: str) -> str:
        """Return the type that the foreign *name* stands for."""
        own = self._names.get(name)
        if own is not None:
            return own
        return name.removeprefix(next((prefix for prefix in self._prefixes if name.startswith(prefix)), ""))

    def written(self, message_type: str) -> str:
        """Return how *message_type* is written for foreign systems."""
        return self._written.get(message_type, message_type)

    def with_prefixes(self, prefixes: Collection[str]) -> TypeNames:
        """Return these names with further *prefixes*."""
        return TypeNames((*self._prefixes, *prefixes), self._names)

    def check(self, known: Iterable[str]) -> None:
        """Raise ConfigurationError if a name is mapped to a type that is not among those *known*."""
        known = frozenset(known)
        for foreign, own in self._names.items():
            if own not in known:
                raise ConfigurationError(
                    f"{_NAMES}: {foreign} is mapped to {own}, which is not known here{nearest(own, known)}"
                )


NO_TYPE_NAMES: Final = TypeNames()
"""Every type has the same name there."""


def type_names_of(settings: Settings) -> TypeNames:
    """Return the names of the settings. Raises ConfigurationError for an entry that is not FOREIGN=TYPE."""
    names: dict[str, str] = {}
    for entry in settings.dialects.type_names:
        foreign, _, own = entry.rpartition("=")
        if not is_text_id(foreign) or not is_message_type(own):
            raise ConfigurationError(
                f"{_NAMES}: {entry!r} is not FOREIGN=TYPE, such as com.github.push=github.push; a type is lower-case "
                "segments joined by dots"
            )
        if names.setdefault(foreign, own) != own:
            raise ConfigurationError(f"{_NAMES}: {foreign} is mapped to {names[foreign]} and to {own}")
    for prefix in settings.dialects.type_prefixes:
        if not is_text_id(prefix):
            raise ConfigurationError(f"{_PREFIXES}: {prefix!r} is not the beginning of a name")
    return TypeNames(settings.dialects.type_prefixes, names)
