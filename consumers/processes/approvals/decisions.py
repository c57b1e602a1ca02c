"""Decisions: which agents may decide about an approval, and whether a decision is valid.

Owns P1 to P6 and S28 to S31: a decision is signed with its approver's own key, has the request as its only cause, and
comes from an agent that the policy allows to approve and that is not in the action's chain. All of this is checked with
the current keys and policy, when the decision arrives and again before the run.
"""

from __future__ import annotations

from typing import Final

from bus import gates
from bus.errors import ContractError
from bus.payloads.payload_types import PayloadType
from bus.protocol import sealing
from bus.protocol.sealing import Message
from bus.protocol.signatures import Verifier, signer_named
from bus.trust.admission import Admission
from bus.trust.keys.signature_algorithms import HS256
from bus.trust.labels import rank_of_level
from bus.vocabulary.approval import ApprovalDecision
from consumers.processes.approvals.state import ApprovalState

__all__ = ["check_decider", "check_decision", "owner_of", "senders_of"]

_DIRECT_LEVEL: Final = "user_request"


def check_decision(message: Message, decision: ApprovalDecision, state: ApprovalState, request: Message) -> None:
    """Raise ContractError (`approval_invalid`) unless *decision* is about this very request."""
    parents = message.verification.parents or ()
    if tuple(parents) != (request.seal,):
        raise _invalid("a decision rests on the request, and on nothing else", "/verification/parents")
    if decision.approval_id != state.approval_id:
        raise _invalid("is another approval's", "/data/approval_id")
    if decision.approved_action_hash not in (None, state.action_hash):
        raise _invalid("is not the hash of the action that is asked for", "/data/approved_action_hash")
    if decision.decision == "approve" and decision.approved_action_hash is None:
        raise _invalid("an approval must name the hash of the packet", "/data/approved_action_hash")


def check_decider(
    message: Message,
    *,
    pending: Message,
    kind: PayloadType,
    payload: object,
    state: ApprovalState,
    admission: Admission,
    verifier: Verifier | None,
    agent_id: str,
) -> None:
    """Raise ContractError (`approval_invalid`) unless the sender of *message* may decide about *pending*, now.

    *agent_id* is the agent that would run it.
    """
    decider = message.metadata.sender.id or ""
    # Keys may have been revoked since it was judged first.
    gates.prove(message, "high", verifier)
    named = signer_named(message.verification.signature or "")
    if named is None or named[0] == HS256:
        raise _invalid("an approver signs with a key of its own", "/verification/signature")
    chain = pending.verification.proof_chain or ()
    senders = senders_of(pending)
    if decider in senders or decider == agent_id:
        raise _invalid(f"{decider} takes part in the action, and decides about it", "/metadata/sender/id")
    signed = [*(link.signature for link in chain), pending.verification.signature]
    kids = {each[1] for text in signed if text and (each := signer_named(text)) is not None}
    if named[1] in kids:
        raise _invalid("its key has signed the action itself", "/verification/signature")
    by = state.by
    if _level_is_low(pending, state, admission) or _is_cut(pending):
        # An agent that reads a poisoned packet is the next victim.
        by = "human"
    fault = admission.approval_fault(
        decider, pending, kind, payload, by=by, involved=frozenset({*senders, agent_id}), same_owner=state.same_owner
    )
    if fault is not None:
        raise _invalid(fault, "/metadata/sender/id")


def _level_is_low(pending: Message, state: ApprovalState, admission: Admission) -> bool:
    """Return whether the action or the request, whose run may have read more, is below a user's level."""
    if admission.labels(pending).is_below(_DIRECT_LEVEL):
        return True
    security = sealing.parse(state.request).metadata.security
    level = None if security is None else security.trust_level
    return level is not None and rank_of_level(level) > rank_of_level(_DIRECT_LEVEL)


def senders_of(pending: Message) -> frozenset[str]:
    """Return the agents that have sent *pending* and what it rests on: none of them decides about it."""
    chain = pending.verification.proof_chain or ()
    return frozenset({*(link.statement.sender for link in chain), pending.metadata.sender.id or ""})


def owner_of(decider: str, admission: Admission) -> str:
    """Return the owner of *decider*, or its id if the policy names none."""
    return admission.owner_of(decider) or decider


def _is_cut(pending: Message) -> bool:
    """Return whether the action has parents that are not at hand."""
    chain = pending.verification.proof_chain or ()
    oldest = chain[0].statement.parents if chain else pending.verification.parents
    further = len(pending.verification.parents or ()) > 1
    return oldest is not None or further


def _invalid(text: str, pointer: str) -> ContractError:
    return ContractError(text, pointer, "approval_invalid")
