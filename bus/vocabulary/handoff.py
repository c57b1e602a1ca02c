"""Handoffs: responsibility moves from one agent to another, under a contract."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from bus.payloads.payload_types import payload
from bus.payloads.rules import Bytes, Has, Is, Rule, when
from bus.vocabulary.forms import Code, Instant, Name, Object, Positive, Text, Value, Word
from bus.vocabulary.parts import Budget, ChangedFile, Effect, Ref, ReturnContract, Scope

MAX_CONTEXT_BYTES = 65_536


@payload(
    "handoff.request",
    version="1.0.0",
    performative="request",
    required_options=("task_id",),
    ttl_s=3600,
    rules=(
        Rule(
            "context takes at most 64 KiB: pass references, not a history",
            "/context",
            Bytes("context", MAX_CONTEXT_BYTES),
        ),
    ),
)
class HandoffRequest(Value, frozen=True, kw_only=True):
    """Delegator to delegatee: responsibility moves, under a contract.

    Authority is in `metadata.authority`.
    """

    handoff_id: Name
    """Unique per conversation."""
    delegated_role: Name | None = None
    """Descriptive only."""
    original_goal: Text
    delegated_goal: Text
    scope: Scope | None = None
    context: Object = {}
    """References and facts, not a chat history: at most 64 KiB."""
    acceptance_criteria: Annotated[tuple[Text, ...], Meta(min_length=1)]
    return_contract: ReturnContract
    """No handoff without one (001 invariant)."""
    changed_files: tuple[ChangedFile, ...] = ()
    diff_ref: Ref | None = None
    risk_assumptions: tuple[Text, ...] = ()
    allowed_tools: tuple[Name, ...] = ()
    """At most what authority.can_execute allows; empty: no statement."""
    forbidden_actions: tuple[Text, ...] = ()
    """Each is also put into authority.cannot_execute."""
    budget: Budget | None = None
    accept_within_s: Positive | None = None
    """Absent: until the message expires."""


@payload("handoff.accepted", version="1.0.0", performative="accept", ttl_s=3600, side_effect="none")
class HandoffAccepted(Value, frozen=True, kw_only=True):
    """Delegatee to delegator."""

    handoff_id: Name
    clarified_scope: Text | None = None
    expected_artifacts: tuple[Word, ...] = ()
    assumptions: tuple[Text, ...] = ()
    expected_by: Instant | None = None


@payload("handoff.rejected", version="1.0.0", performative="reject", ttl_s=3600, side_effect="none")
class HandoffRejected(Value, frozen=True, kw_only=True):
    """Delegatee to delegator."""

    handoff_id: Name
    reason_code: Code
    """As task.rejected."""
    explanation: Text
    suggested_route: Name | None = None


@payload(
    "handoff.completed",
    version="1.0.0",
    performative="inform",
    ttl_s=86400,
    side_effect="none",
    rules=(Rule("completed needs a result_ref", "/result_ref", when(Is("status", ("completed",)), Has("result_ref"))),),
)
class HandoffCompleted(Value, frozen=True, kw_only=True):
    """Delegatee to delegator.

    The promised answer (return_contract) is a message of its own; this one closes the contract.
    """

    handoff_id: Name
    status: Literal["completed", "failed"]
    result_ref: Ref | None = None
    """Required with completed; `message:<seal>` for an answer on the bus."""
    summary: Text
    evidence_refs: tuple[Ref, ...] = ()
    remaining_risks: tuple[Text, ...] = ()
    effects: tuple[Effect, ...] = ()
