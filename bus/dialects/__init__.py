"""Dialects: pure codecs between foreign JSON formats and the canonical message.

One folder per dialect; `dialect("frameworks")` imports it when it is asked for. `decode` returns a `Foreign`, whose
claims are not verified yet. `encode` writes a sealed message in the dialect, or raises DialectError. `DIALECTS.md` is
the contract: the table of every member, there and back. `member_table` walks such a table.

    foreign = dialects.dialect("frameworks").decode(line)
    message = dialects.seal_foreign(foreign, namespace="agents")
    dialects.dialect("cloudevents").encode(message)
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, Protocol, cast

from bus.dialects.foreign import NO_ALIASES, NONE, Claims, Defaults, Foreign
from bus.protocol.sealing import Message

if TYPE_CHECKING:
    from bus.dialects.sealing import seal_foreign as seal_foreign
    from bus.dialects.type_names import TypeNames as TypeNames
    from bus.dialects.type_names import type_names_of as type_names_of
    from bus.payloads.payload_types import Registry

__all__ = ["DIALECTS", "DIALECT_ALIASES", "NONE", "Claims", "Defaults", "Dialect", "Foreign", "dialect", "open_dialect"]

_FOLDERS: Final = {
    "layered": "layered",
    "evidence": "evidence",
    "plain-ids": "plain_ids",
    "speech-acts": "speech_acts",
    "frameworks": "frameworks",
    "cloudevents": "cloudevents",
}
DIALECTS: Final = tuple(_FOLDERS)
"""The names of all dialects."""
DIALECT_ALIASES: Final = {
    "000": "layered",
    "001": "evidence",
    "002": "plain-ids",
    "003": "speech-acts",
    "004": "frameworks",
}
"""The digits by which messages are marked -> the names. A dialect may be asked for by either."""


class Dialect(Protocol):
    """The two functions of every dialect."""

    def decode(self, value: bytes | Mapping[str, Any], *, defaults: Defaults = NONE) -> Foreign:
        """Decode the foreign message; raise DialectError with the pointer of the first fault."""

    def encode(
        self, message: Message, *, aliases: Mapping[str, str] = NO_ALIASES, carry: bool = False
    ) -> dict[str, Any]:
        """Write *message* in the dialect; raise DialectError if the dialect cannot express it.

        *aliases* maps our agent ids to the ids of the foreign system; `role:<role>` and `*` stand for a role and
        for all agents. With *carry* the output embeds the whole sealed message if the dialect has a member for it
        (`x_sealbus`).
        """


def dialect(name: str) -> Dialect:
    """Return the dialect called *name*; raise KeyError for one that is neither in `DIALECTS` nor an alias."""
    return cast("Dialect", import_module(f"{__name__}.{_FOLDERS[DIALECT_ALIASES.get(name, name)]}"))


def open_dialect(name: str, *, types: Registry | None = None, names: TypeNames | None = None) -> Dialect:
    """Return the dialect called *name* for messages of *types*, by default the built-in ones, and of their *names*.

    Raises KeyError for a name that is neither in `DIALECTS` nor an alias.
    """
    from bus.dialects.opening import OpenDialect

    return OpenDialect(dialect(name), types, names)


def __getattr__(name: str) -> Any:
    """Import what needs the vocabulary when it is asked for."""
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_LATER[name]}"), name)


_LATER: Final = {
    "TypeNames": "type_names",
    "seal_foreign": "sealing",
    "type_names_of": "type_names",
}
