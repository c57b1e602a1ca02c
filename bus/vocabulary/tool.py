"""Tools: calls and their results."""

from __future__ import annotations

from bus.payloads.envelope_terms import ByField
from bus.payloads.payload_types import payload
from bus.vocabulary.forms import Any_, Count, Flag, Name, Object, Text, Value
from bus.vocabulary.parts import Content, Effect, Ref

__all__ = [
    "ToolCall",
    "ToolError",
    "ToolResult",
]


class ToolError(Value, frozen=True, kw_only=True):
    """Why a tool failed; *code* is for programs, *message* for people."""

    code: Text
    message: Text
    details: Object | None = None


@payload("tool.call", version="1.0.0", performative="request", ttl_s=600)
class ToolCall(Value, frozen=True, kw_only=True):
    """Agent to a tool worker.

    Tools with effects are registered with `side_effect`, and then need idempotency_key.
    """

    tool_call_id: Name
    tool_name: Name
    """On the subscription's allow-list and within the effective authority."""
    arguments: Object
    """Valid against the tool's registered JSON Schema; never raw user text (003)."""


@payload("tool.result", version="1.1.0", performative=ByField("error", {"*": "error"}, "inform"), ttl_s=3600)
class ToolResult(Value, frozen=True, kw_only=True):
    """Tool worker to the caller."""

    tool_call_id: Text
    tool_name: Text
    output: Any_
    """Trimmed and without secrets; null with an error."""
    error: ToolError | None = None
    """: `code: Text`, `message: Text`, `details?: Object`."""
    duration_ms: Count | None = None
    is_truncated: Flag = False
    output_ref: Ref | None = None
    """: the whole output, where it was trimmed."""
    content: tuple[Content, ...] = ()
    """: external text, marked."""
    artifacts: tuple[Ref, ...] = ()
    effects: tuple[Effect, ...] = ()
