"""Commands, events, escalations and notifications."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from bus.payloads.payload_types import payload
from bus.vocabulary.forms import Code, Count, Instant, Long, Name, Object, Positive, Severity, Text, Value, Word
from bus.vocabulary.parts import Content, Ref, Resource


@payload(
    "command.request",
    version="1.0.0",
    performative="request",
    required_options=("idempotency_key",),
    ttl_s=600,
    side_effect="external",
    resource="/resource/id",
)
class CommandRequest(Value, frozen=True, kw_only=True):
    """Whoever may command to the one that executes; always within `metadata.authority`."""

    action: Word
    arguments: Object = {}
    """Valid against the schema registered for the action."""
    resource: Resource | None = None
    reason: Text


@payload("event.observed", version="1.0.0", performative="inform", ttl_s=86400, side_effect="none")
class EventObserved(Value, frozen=True, kw_only=True):
    """Any agent or service: something happened."""

    event: Word
    subject: Text
    """What it happened to."""
    occurred_at: Instant
    event_version: Count | None = None
    """Grows per subject; a lower one is older news."""
    data: Object = {}
    content: tuple[Content, ...] = ()
    """External text, marked."""


@payload("escalation.raised", version="1.0.0", performative="request", ttl_s=86400)
class EscalationRaised(Value, frozen=True, kw_only=True):
    """Agent to a human or supervisor: this needs you."""

    reason_code: Code
    """Known: NEEDS_HUMAN, CONFLICT, BUDGET_SPENT, REPEATED_FAILURE, UNSAFE, OUT_OF_AUTHORITY."""
    explanation: Text
    severity: Severity
    options: tuple[Text, ...] = ()
    """What could be done."""
    recommendation: Text | None = None
    evidence_refs: tuple[Ref, ...] = ()
    decide_within_s: Positive | None = None
    """Opens an obligation."""


@payload("notification.sent", version="1.0.0", performative="inform", ttl_s=86400, side_effect="none")
class NotificationSent(Value, frozen=True, kw_only=True):
    """To people or agents; nothing is expected back."""

    title: Annotated[str, Meta(min_length=1, max_length=200)]
    text: Long = ""
    severity: Severity = "low"
    audience: tuple[Name, ...] = ()
    """Roles; empty: everybody subscribed."""
    ref: Ref | None = None
