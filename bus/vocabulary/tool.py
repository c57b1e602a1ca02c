"""Tools: calls and their results."""

from __future__ import annotations

from typing import Any, Self

import msgspec

from bus.payloads.envelope_terms import ByField
from bus.payloads.payload_types import payload
from bus.vocabulary.forms import Any_, Count, Flag, Name, Object, Text, Value
from bus.vocabulary.parts import Content, Effect, Ref
from bus.vocabulary.trimming import MAX_OUTPUT_BYTES, masked_data, trimmed

_MIN_BYTES = 64


class ToolError(Value, frozen=True, kw_only=True):
    """Why a tool failed; *code* is for programs, *message* for people."""

    code: Text
    message: Text
    details: Object | None = None


@payload("tool.call", version="1.0.0", performative="request", ttl_s=600, side_effect="external", resource="/tool_name")
class ToolCall(Value, frozen=True, kw_only=True):
    """Agent to a tool worker.

    Tools with effects are registered with `side_effect`, and then need idempotency_key.
    """

    tool_call_id: Name
    tool_name: Name
    """On the subscription's allow-list and within the effective authority."""
    arguments: Object
    """Valid against the tool's registered JSON Schema; never raw user text (003)."""


@payload(
    "tool.result",
    version="1.1.0",
    performative=ByField("error", {"*": "error"}, "inform"),
    ttl_s=3600,
    side_effect="none",
)
class ToolResult(Value, frozen=True, kw_only=True):
    """Tool worker to the caller."""

    tool_call_id: Text
    tool_name: Text
    output: Any_
    """Trimmed and without secrets; null with an error."""
    error: ToolError | None = None
    duration_ms: Count | None = None
    is_truncated: Flag = False
    output_ref: Ref | None = None
    """The whole output, where it was trimmed."""
    content: tuple[Content, ...] = ()
    """External text, marked."""
    artifacts: tuple[Ref, ...] = ()
    effects: tuple[Effect, ...] = ()

    @classmethod
    def trimmed(
        cls,
        *,
        tool_call_id: str,
        tool_name: str,
        output: Any,
        max_bytes: int = MAX_OUTPUT_BYTES,
        output_ref: Ref | None = None,
        duration_ms: int | None = None,
        artifacts: tuple[Ref, ...] = (),
        effects: tuple[Effect, ...] = (),
    ) -> Self:
        """Return a result whose *output* is masked where it looks like a secret, and cut to *max_bytes* as JSON.

            return ToolResult.trimmed(tool_call_id=call.tool_call_id, tool_name="fetch", output=page, output_ref=stored)

        *output_ref* leads to all of it. *max_bytes* is 64 KiB by default, at least 64.
        """
        if max_bytes < _MIN_BYTES:
            raise ValueError(f"max_bytes is {max_bytes}, at least {_MIN_BYTES} are needed")
        # The cut comes second: half a secret would not be seen as one.
        retained, is_cut = trimmed(masked_data(msgspec.to_builtins(output)), max_bytes)
        return cls(
            tool_call_id=tool_call_id,
            tool_name=tool_name,
            output=retained,
            is_truncated=is_cut,
            output_ref=output_ref,
            duration_ms=duration_ms,
            artifacts=artifacts,
            effects=effects,
        )
