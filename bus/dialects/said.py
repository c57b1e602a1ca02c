"""What a message says by the names of the envelope, while a dialect reads or writes it by its tables. Pure.

Owns making a `Foreign` of it, and making it of a sealed message.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from bus.dialects.carried_message import CARRIED, check_same, foreign_of, read_carried
from bus.dialects.foreign import Claims, Defaults, Foreign, ForeignOptions
from bus.dialects.forms import LAST_MS
from bus.dialects.keeping import Notes
from bus.dialects.member_table import Said
from bus.dialects.opened_message import OpenedMessage
from bus.errors import DialectError
from bus.payloads.payload_types import PayloadType
from bus.protocol.envelope import Metadata, Routing

__all__ = ["carried_in_metadata", "foreign_that_says", "said_by", "said_with", "set_end"]

_OPTIONS: Final = ForeignOptions.__struct_fields__
_CLAIMS: Final = Claims.__struct_fields__
_ENVELOPE: Final = ((Metadata.__struct_fields__, "metadata"), (Routing.__struct_fields__, "routing"))


def said_with(defaults: Defaults, notes: Notes) -> Said:
    """Return what is said before anything is read."""
    return {"defaults": defaults, "notes": notes}


def said_by(opened: OpenedMessage) -> Said:
    """Return what *opened* says."""
    said: Said = {name: getattr(opened.metadata, name) for name in Metadata.__struct_fields__}
    said |= {name: getattr(opened.routing, name) for name in Routing.__struct_fields__}
    return said | {"opened": opened, "sent_at_ms": opened.sent_ms, "lifetime_ms": opened.lifetime_ms}


def foreign_that_says(said: Said, kind: PayloadType, version: str, data: dict[str, Any]) -> Foreign:
    """Return the decoded message of *kind* that says *data*, and in its envelope what is *said*."""
    return Foreign(
        type=kind.name,
        version=version,
        data=data,
        options=ForeignOptions(**{name: said[name] for name in _OPTIONS if said.get(name) is not None}),
        claims=Claims(**{name: said[name] for name in _CLAIMS if said.get(name) is not None}),
    )


def set_end(said: Said, lifetime_ms: int, pointer: str) -> None:
    """Let the message end after *lifetime_ms*, which stand at *pointer*."""
    said["expires_at_ms"] = said["sent_at_ms"] + lifetime_ms
    if said["expires_at_ms"] > LAST_MS:
        raise DialectError(pointer, f"{lifetime_ms} ms", "a time before the year 10000")


def carried_in_metadata(tree: Mapping[str, Any], encode: Callable[[Any], dict[str, Any]]) -> Foreign | None:
    """Return the message that stands in the metadata of *tree*, if it is what *encode* says there."""
    metadata = tree.get("metadata")
    if not isinstance(metadata, dict) or CARRIED not in metadata:
        return None
    pointer = f"/metadata/{CARRIED}"
    message = read_carried(metadata[CARRIED], pointer)
    said = encode(message)
    said["metadata"] = said.get("metadata") or {}
    check_same(said, {**tree, "metadata": {name: metadata[name] for name in metadata if name != CARRIED}}, pointer)
    return foreign_of(message)
