"""The five core types between agents: handing over, results of tools, approvals, progress, errors.

Owns their fields and rules. Sender, recipient, time and lifetime are in the envelope.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from bus.payloads.payload_types import payload

__all__ = [
    "ApprovalRequest",
    "Constraints",
    "ErrorReported",
    "Resource",
    "StatusUpdate",
    "TaskHandoff",
    "TaskSpec",
    "TaskStatus",
    "ToolError",
    "ToolResult",
]

Text = Annotated[str, Meta(min_length=1)]
Instant = Annotated[datetime, Meta(tz=True)]
TaskStatus = Literal[
    "pending", "running", "waiting_for_approval", "waiting_for_tool", "completed", "failed", "cancelled", "timed_out"
]


class _Value(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A payload or a part of one."""


class Constraints(_Value, frozen=True, kw_only=True):
    """Bounds of a task: at most *max_duration_seconds*.

    A result below *required_confidence* (0 to 1) does not count.
    """

    max_duration_seconds: Annotated[int, Meta(ge=1)] | None = None
    required_confidence: Annotated[float, Meta(ge=0, le=1)] | None = None


class TaskSpec(_Value, frozen=True, kw_only=True):
    """What to do (`draft_review`), with which input."""

    action: Text
    input: dict[str, Any]
    context: dict[str, Any] | None = None
    constraints: Constraints | None = None


@payload("task.handoff", version="1.0.0")
class TaskHandoff(_Value, frozen=True, kw_only=True):
    """One agent hands a task to another."""

    task_id: Text
    from_agent: Text
    to_agent: Text
    task_spec: TaskSpec
    priority: Literal["low", "normal", "high", "critical"] = "normal"


class ToolError(_Value, frozen=True, kw_only=True):
    """Why a tool failed; *code* is for programs, *message* for people."""

    code: Text
    message: Text
    details: dict[str, Any] | None = None


@payload("tool.result", version="1.0.0")
class ToolResult(_Value, frozen=True, kw_only=True):
    """What a tool returned: any JSON value, trimmed and without secrets."""

    tool_call_id: Text
    tool_name: Text
    output: Any
    error: ToolError | None = None
    duration_ms: Annotated[int, Meta(ge=0)] | None = None
    is_truncated: bool = False


class Resource(_Value, frozen=True, kw_only=True):
    """What an action would touch."""

    type: Text
    id: Text
    summary: str | None = None


@payload("approval.request", version="1.0.0")
class ApprovalRequest(_Value, frozen=True, kw_only=True):
    """An agent asks a human or a supervisor before it acts.

    Without an answer within *timeout_seconds* it is refused.
    """

    request_id: Text
    action: Text
    resource: Resource
    reason: Text
    context: dict[str, Any] | None = None
    timeout_seconds: Annotated[int, Meta(ge=1)] = 3600
    risk_level: Literal["low", "medium", "high"] | None = None


@payload("status.update", version="1.0.0", risk="low")
class StatusUpdate(_Value, frozen=True, kw_only=True):
    """Progress of a task; *new_status* is for programs, *message* for people."""

    task_id: Text
    new_status: TaskStatus
    timestamp: Instant
    previous_status: TaskStatus | None = None
    progress_pct: Annotated[int, Meta(ge=0, le=100)] | None = None
    message: str | None = None
    next_expected_status: TaskStatus | None = None


@payload("error.reported", version="1.0.0")
class ErrorReported(_Value, frozen=True, kw_only=True):
    """An error its agent can't recover from.

    The bus itself sends it to a requester whose message died: *error_code* is then the reason.
    """

    error_code: Text
    error_message: Text
    source_agent: Text
    timestamp: Instant
    severity: Literal["warning", "error", "critical"] = "error"
    source_task_id: str | None = None
    stack_trace: str | None = None
    recovery_hint: str | None = None
