"""Making a decision: what an approver answers to an `approval.request`, for the command line and for tests."""

from __future__ import annotations

from typing import Any, Literal

from bus.payloads.payload_types import payload_type
from bus.protocol.sealing import Message
from bus.vocabulary.approval import ApprovalDecision, ApprovalRequest, Reviewer
from producers.sealing.options import Outgoing
from producers.sealing.seal_request import SealRequest
from producers.sealing.sealed_record import SealedRecord
from producers.sealing.sealer import Sealer

__all__ = ["DecisionVerb", "decision_about", "request_in", "seal_decision"]

DecisionVerb = Literal["approve", "reject", "request_changes"]


def request_in(message: Message) -> ApprovalRequest:
    """Return the request in *message*. Raises ContractError for another type."""
    opened = payload_type(ApprovalRequest).open(message)
    assert isinstance(opened, ApprovalRequest)  # noqa: S101 - of that very type
    return opened


def decision_about(
    request: Message,
    verb: DecisionVerb,
    *,
    by: str,
    kind: Literal["human", "agent", "service"] = "human",
    **members: Any,
) -> ApprovalDecision:
    """Return the decision of *by* about *request*; *members* are reason, conditions and changes."""
    request_payload = request_in(request)
    return ApprovalDecision(
        approval_id=request_payload.approval_id,
        decision=verb,
        approved_action_hash=request_payload.action_hash if verb == "approve" else None,
        reviewer=Reviewer(type=kind, id=by),
        **members,
    )


def seal_decision(sealer: Sealer, decision: ApprovalDecision, request: Message) -> SealedRecord:
    """Seal *decision* as the answer to *request*: it rests on that, and on nothing else. Raises PublishRejected."""
    return sealer.seal(Outgoing(decision), SealRequest(cause=request, answers=True, topic=request.routing.reply_to))
