"""Errors."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

from msgspec import Meta

from bus.payloads.payload_types import payload
from bus.vocabulary.forms import Flag, Instant, Long, Name, Number, Object, Text, Uri, Value, Word
from bus.vocabulary.parts import Ref

ErrorClass: TypeAlias = Annotated[
    str,
    Meta(
        pattern=r"^error\.(?:transient|timeout|semantic|authz|internal)(?:\.[a-z][a-z0-9_]{0,63}){0,8}\Z",
        max_length=512,
    ),
]


@payload("error.reported", version="1.1.0", performative="error", ttl_s=3600, side_effect="none")
class ErrorReported(Value, frozen=True, kw_only=True):
    """Whoever failed, or the bus about a dead message, to the requester.

    Without a requester it goes to the topic of the type. *error_code* is a `Code`, or a reason of the bus.
    """

    error_code: Text
    """A `Code`, or a reason of the bus (lower case, closed set)."""
    error_message: Text
    source_agent: Text
    timestamp: Instant
    severity: Literal["warning", "error", "critical"] = "error"
    source_task_id: Long | None = None
    stack_trace: Long | None = None
    """Only when `deadletter.details` is on."""
    recovery_hint: Long | None = None
    error_class: ErrorClass | None = None
    """`error.transient`, `error.timeout`, `error.semantic`, `error.authz` or `error.internal`, or one of these with
    further dotted words; absent: by the table of codes.
    """
    retryable: Flag | None = None
    """Absent: by the table."""
    retry_after_s: Number | None = None
    details: Object | None = None
    """A text of seed 004 is `{"text": ...}`."""
    documentation_url: Uri | None = None
    """Never opened by a program."""
    failed_operation: Word | None = None
    tool_call_id: Name | None = None
    observed_output_ref: Ref | None = None
