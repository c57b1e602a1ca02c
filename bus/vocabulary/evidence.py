"""Evidence, claims and decisions: what was seen, what follows from it, and what was decided."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from bus.payloads.payload_types import payload
from bus.payloads.rules import Among, Begins, Either, Has, Is, Rule, Size, Some, when
from bus.vocabulary.forms import Hash, Long, Name, Share, Text, Value
from bus.vocabulary.parts import Effect, Evidence, Ref


@payload("evidence.observed", version="1.0.0", performative="inform", ttl_s=86400, side_effect="none")
class EvidenceObserved(Value, frozen=True, kw_only=True):
    """Any agent: what was seen, without deciding."""

    claim: Text
    evidence: Annotated[tuple[Evidence, ...], Meta(min_length=1)]
    """External text belongs in `content`, never in `claim`."""
    limitations: tuple[Text, ...] = ()


@payload(
    "claim.made",
    version="1.0.0",
    performative="inform",
    ttl_s=86400,
    side_effect="none",
    rules=(
        Rule(
            "a strong or medium claim needs evidence_refs",
            "/evidence_refs",
            when(Is("level", ("strong", "medium")), Size("evidence_refs")),
        ),
        Rule(
            "a strong claim needs a reference with sha256, or to a message",
            "/evidence_refs",
            when(Is("level", ("strong",)), Some("evidence_refs", Either((Has("sha256"), Begins("uri", "message:"))))),
        ),
    ),
)
class ClaimMade(Value, frozen=True, kw_only=True):
    """Any agent."""

    claim: Text
    level: Literal["strong", "medium", "weak", "invalid"]
    """Without evidence_refs only weak or invalid (a claim without evidence has low status)."""
    confidence: Share | None = None
    evidence_refs: tuple[Ref, ...] = ()
    """Strong needs at least one with sha256 or of scheme `message`."""
    reasoning_summary: Long | None = None
    limitations: tuple[Text, ...] = ()


@payload(
    "decision.made",
    version="1.0.0",
    performative="inform",
    ttl_s=604800,
    side_effect="none",
    rules=(
        Rule(
            "a selected option has at least two options",
            "/options",
            when(Is("kind", ("selected_option",)), Size("options", 2)),
        ),
        Rule(
            "a selected option is one of the options",
            "/decision",
            when(Is("kind", ("selected_option",)), Among("decision", "options")),
        ),
        Rule(
            "without evidence_refs it needs limitations or a confidence",
            "/evidence_refs",
            Either((Size("evidence_refs"), Size("limitations"), Has("confidence"))),
        ),
        Rule(
            "an authorization needs an approval_id or a rule_id",
            "/approval_id",
            when(Is("kind", ("authorization",)), Either((Has("approval_id"), Has("rule_id")))),
        ),
        Rule(
            "an authorization needs an action_hash",
            "/action_hash",
            when(Is("kind", ("authorization",)), Has("action_hash")),
        ),
        Rule(
            "effects go with an execution_result", "/effects", when(Size("effects"), Is("kind", ("execution_result",)))
        ),
    ),
)
class DecisionMade(Value, frozen=True, kw_only=True):
    """Whoever decided."""

    kind: Literal["recommendation", "selected_option", "authorization", "execution_result"]
    decision: Text
    options: tuple[Text, ...] = ()
    """With selected_option: at least two, `decision` is one of them."""
    reasoning_summary: Long | None = None
    evidence_refs: tuple[Ref, ...] = ()
    """Empty needs limitations or confidence (001 invariant: no final claim without evidence or stated uncertainty).
    """
    confidence: Share | None = None
    limitations: tuple[Text, ...] = ()
    approval_id: Name | None = None
    """With authorization: this or rule_id."""
    rule_id: Name | None = None
    """The policy rule that allows it."""
    action_hash: Hash | None = None
    """With authorization: required."""
    effects: tuple[Effect, ...] = ()
    """With execution_result."""
