"""Approvals: asking for the permission to act, and deciding."""

from __future__ import annotations

import re
from typing import Annotated, Any, ClassVar, Final, Literal

from msgspec import Meta

from bus.payloads.envelope_terms import ByField
from bus.payloads.payload_types import payload
from bus.payloads.rules import All, Computed, Either, Has, Is, Not, Rule, Size, when
from bus.payloads.upcasters import Upcaster
from bus.protocol import canonical
from bus.protocol.identifiers import is_text_id
from bus.vocabulary.forms import (
    Glob,
    Hash,
    Level,
    Long,
    Name,
    Object,
    Positive,
    RuledValue,
    Text,
    Type,
    Value,
    Version,
    Word,
)
from bus.vocabulary.parts import Ref, Resource, RiskAssessment

_HELD = ("namespace", "group", "sender", "message_type", "schema_version", "data")


class Action(RuledValue, frozen=True, kw_only=True):
    """The action packet: what is approved, and nothing else is.

    For a message that the bus holds it says all of it but the seal: a repeat under one idempotency key meets the same
    approval.
    """

    __rules__: ClassVar = (
        Rule(
            "an action of a held message has all of namespace, group, sender, message_type, schema_version, data",
            "",
            Either((All(tuple(map(Has, _HELD))), All(tuple(Not(Has(name)) for name in _HELD)))),
        ),
    )

    type: Word
    description: Text
    resource: Resource | None = None
    ref: Ref | None = None
    namespace: Text | None = None
    group: Text | None = None
    sender: Name | None = None
    message_type: Type | None = None
    schema_version: Version | None = None
    data: Object | None = None
    recipient: Object | None = None
    authority: Object | None = None
    idempotency_key: Name | None = None
    trust_level: Level | None = None
    """The effective one."""
    within: Object | None = None
    """2.1.0. For a step within the run that handles the message: `step` (its id), `tool`, and `arguments` by parameter
    name."""


class Reviewer(Value, frozen=True, kw_only=True):
    """Who decided."""

    type: Literal["human", "agent", "service"]
    id: Name


def hash_of(action: dict[str, Any]) -> str:
    """Return the hash by which *action* is approved: that of its canonical form, unknown members included."""
    return canonical.digest(canonical.encode(action))


def has_unbound_ref(action: dict[str, Any]) -> bool:
    """Return whether a reference anywhere in *action*, in its data too, lacks its sha256."""
    waiting: list[Any] = [action]
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict):
            if isinstance(value.get("uri"), str) and not isinstance(value.get("sha256"), str):
                return True
            waiting += value.values()
        elif isinstance(value, list):
            waiting += value
    return False


@payload("approval.request", version="1.0.0", performative="propose", ttl_s=3600)
class ApprovalRequest1(Value, frozen=True, kw_only=True):
    """Accepted from older senders, not made any more."""

    request_id: Text
    action: Text
    resource: Resource
    reason: Text
    context: Object | None = None
    timeout_seconds: Positive = 3600
    risk_level: Literal["low", "medium", "high"] | None = None


_NOT_IN_WORDS: Final = re.compile("[^a-z0-9]+")
_WORD_LENGTH: Final = 64


def _with_action(data: dict[str, Any]) -> dict[str, Any]:
    """Upcast 1.0.0: its action becomes the type, and its reason the description, of an action packet.

    An action that is no word is told in the description, before the reason. Its type is its lower-case form with `_`
    for runs of other characters than `[a-z0-9]`, none at its ends, cut to 64, and `action` where that begins with no
    letter. An id that is no text id is known by its hash. Without a level the risk is medium.
    """
    stated, reason = data["action"], data["reason"]
    words = _NOT_IN_WORDS.sub("_", stated.lower()).strip("_")[:_WORD_LENGTH]
    is_word = re.fullmatch("[a-z][a-z0-9_]*", stated) is not None and len(stated) <= _WORD_LENGTH
    action = {
        "type": stated if is_word else words if re.match("[a-z]", words) else "action",
        "description": reason if is_word else f"{stated}: {reason}",
        "resource": data["resource"],
    }
    identity = data["request_id"]
    return {
        "approval_id": identity if is_text_id(identity) else canonical.digest(identity.encode()),
        "action": action,
        "action_hash": hash_of(action),
        "reason": reason,
        "risk_assessment": {"risk_level": data.get("risk_level") or "medium"},
        **{name: data[name] for name in ("context", "timeout_seconds") if data.get(name) is not None},
    }


@payload(
    "approval.request",
    version="2.1.0",
    performative="propose",
    options_from={"ttl_s": "timeout_seconds"},
    upcasters={1: Upcaster(ApprovalRequest1, _with_action)},
    rules=(
        Rule(
            "action_hash is the hash of action",
            "/action_hash",
            Computed(lambda data: data["action_hash"] == hash_of(data["action"]), "d.action_hash === hashOf(d.action)"),
        ),
        Rule(
            "every reference of a held action has its sha256",
            "/action",
            Computed(
                lambda data: data["action"].get("namespace") is None or not has_unbound_ref(data["action"]),
                "absent(d.action.namespace) || !hasUnboundRef(d.action)",
            ),
        ),
    ),
)
class ApprovalRequest(Value, frozen=True, kw_only=True):
    """The bus for a held message, or an agent for an action of its own, to the approvers.

    Its lifetime is *timeout_seconds*, for a held message less, when that message dies earlier; silence is a rejection.
    Only what the approver saw is approved: the references of a held message's action have their `sha256`.
    """

    __example__: ClassVar = {
        "approval_id": "release-7",
        "action": {"type": "deploy", "description": "put release 7 into production"},
        "action_hash": "sha256:b5124a7898048f70f238117be054c7772c2fcae4be5226b4f4817e295d6647dc",
        "reason": "its tests passed",
        "risk_assessment": {"risk_level": "medium"},
    }

    approval_id: Name
    """The requester's own id. For a held message hash(JCS({content_hash, group, key, message_type, namespace, round,
    rule, sender})), where key is what the inbox remembers it by and round its redrive count.
    """
    action: Action
    """The action packet."""
    action_hash: Hash
    """Hash(JCS(action)); every reader computes it again."""
    reason: Text
    """Why; an approval without a reason is refused (000 anti-pattern)."""
    risk_assessment: RiskAssessment
    evidence_refs: tuple[Ref, ...] = ()
    context: Object = {}
    approval_options: Annotated[tuple[Literal["approve", "reject", "request_changes"], ...], Meta(min_length=1)] = (
        "approve",
        "reject",
        "request_changes",
    )
    timeout_seconds: Positive = 3600
    seal: Hash | None = None
    """Of the first message held under this id: readers fetch those bytes, check them and show them beside the packet.
    """
    quorum: Positive = 1
    """So many approvers whose keys share no principal."""
    approvers: tuple[Glob, ...] = ()
    """For display; who may is the policy's."""
    rule_id: Name | None = None
    """The rule that asks."""
    policy_hash: Hash | None = None
    """Of the policy that asked."""


@payload(
    "approval.decision",
    version="1.0.0",
    risk="high",
    performative=ByField("decision", {"approve": "accept", "reject": "reject", "request_changes": "propose"}),
    ttl_s=86400,
    must_match={"/reviewer/id": "/metadata/sender/id"},
    rules=(
        Rule(
            "approve needs an approved_action_hash",
            "/approved_action_hash",
            when(Is("decision", ("approve",)), Has("approved_action_hash")),
        ),
        Rule(
            "reject and request_changes need a reason",
            "/reason",
            when(Is("decision", ("reject", "request_changes")), Size("reason")),
        ),
        Rule(
            "changes go with request_changes", "/changes", when(Size("changes"), Is("decision", ("request_changes",)))
        ),
    ),
)
class ApprovalDecision(Value, frozen=True, kw_only=True):
    """Approver to the group that asked; cause: the approval.request.

    Signed by the approver's own key.
    """

    approval_id: Name
    decision: Literal["approve", "reject", "request_changes"]
    approved_action_hash: Hash | None = None
    """Required with approve."""
    reviewer: Reviewer
    reason: Long | None = None
    """Required with reject and request_changes."""
    conditions: tuple[Text, ...] = ()
    """Handed to the handler; a handler that does not take conditions does not run on a conditional approval."""
    changes: tuple[Text, ...] = ()
    """With request_changes."""
