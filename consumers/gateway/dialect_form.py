"""Which dialect a JSON object is written in, told by its members. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from bus.dialects.conversion import CANONICAL

__all__ = ["FORMS", "dialect_of"]

_FRAMEWORKS: Final = frozenset({"agent_id", "framework"})
_BARE: Final = frozenset({"message_type", "schema_version"})
FORMS: Final[Mapping[str, str]] = {
    CANONICAL: "data, metadata, routing and verification, with metadata.protocol",
    "speech-acts": "performative and receiver",
    "frameworks": "sender as {agent_id, framework}",
    "plain-ids": "sender_id, recipient_id and auth",
    "evidence": 'schema_version "agent-msg.v1", or type, from and to',
    "layered": "data with metadata or verification, or message_type and schema_version",
}


def dialect_of(value: Mapping[str, Any]) -> str | None:
    """Return the dialect of *value*; None where no form fits."""
    metadata = value.get("metadata")
    if isinstance(metadata, Mapping) and "protocol" in metadata and {"data", "routing", "verification"} <= value.keys():
        return CANONICAL
    if "performative" in value and "receiver" in value:
        return "speech-acts"
    sender = value.get("sender")
    if isinstance(sender, Mapping) and sender.keys() & _FRAMEWORKS and "agent_id" in sender:
        return "frameworks"
    if "sender_id" in value and ("auth" in value or "recipient_id" in value):
        return "plain-ids"
    if value.get("schema_version") == "agent-msg.v1" or {"type", "from", "to"} <= value.keys():
        return "evidence"
    if isinstance(value.get("data"), Mapping) or value.keys() >= _BARE:
        return "layered"
    return None
