"""Directives: which messages ask their reader to act, and which only inform. Pure.

Owns the rule by which gate `policy` distinguishes the two (PROTOCOL.md section 7), and finds types that contradict it.
A message that only informs is handled at every trust level; a directive needs the level that its reader requires.
"""

from __future__ import annotations

from typing import Final

import msgspec

from bus.errors import ContractError
from bus.payloads.envelope_terms import ByField, EnvelopeTerms

__all__ = [
    "ACTING",
    "DIRECTIVE",
    "DirectiveFacts",
    "always_informs",
    "check_acting",
    "declared_facts",
    "is_directive",
    "said_by_type",
]

DIRECTIVE: Final = frozenset({"request", "query", "propose", "accept", "cancel", "subscribe", "call_for_proposal"})
"""Performatives that ask their reader to act. The others inform: inform, confirm, reject, error."""

ACTING: Final = frozenset({"write", "external", "irreversible"})
"""Side effects beyond read."""


class DirectiveFacts(msgspec.Struct, frozen=True, kw_only=True):
    """All that decides whether a message asks its reader to act."""

    type_says: str | None = None
    """The performative that the type gives this message; None if the type has none."""
    message_says: str | None = None
    """The performative that its sender has sealed."""
    has_reply_to: bool = False
    side_effect: str | None = None
    """The type's; None: unknown."""
    risk: str = "medium"
    """The type's, as the reader's settings raise it."""
    needs_key: bool = False
    """Whether the type needs an idempotency key."""
    has_threshold: bool = False
    """Whether the handler was declared with `instructions_from`."""
    is_answer: bool = False
    """Whether a waiting request or process receives it, by reply topic or mailbox, and no handler."""


def is_directive(facts: DirectiveFacts) -> bool:
    """Tell whether a message asks its reader to act.

    A sender's performative can only add: whoever writes `inform` on a type without performative changes nothing.
    """
    if facts.type_says in DIRECTIVE or facts.message_says in DIRECTIVE:
        return True
    if facts.type_says is not None or facts.is_answer:
        return False
    return (
        facts.has_reply_to
        or facts.side_effect in ACTING
        or facts.risk == "high"
        or facts.needs_key
        or facts.has_threshold
    )


def declared_facts(
    terms: EnvelopeTerms,
    payload: object = None,
    *,
    side_effect: str | None,
    risk: str,
    has_threshold: bool = False,
) -> DirectiveFacts:
    """Return the facts that follow from a type and its handler alone."""
    return DirectiveFacts(
        type_says=said_by_type(terms, payload),
        side_effect=side_effect,
        risk=risk,
        needs_key="idempotency_key" in terms.required_options,
        has_threshold=has_threshold,
    )


def said_by_type(terms: EnvelopeTerms, payload: object = None) -> str | None:
    """Return the performative that *terms* give *payload*; without one at hand, a directive one where there is any."""
    spoken = terms.performative
    if not isinstance(spoken, ByField):
        return spoken
    if payload is not None:
        return spoken.of(payload)
    asking = next((word for word in spoken.words if word in DIRECTIVE), None)
    return asking or spoken.otherwise


def always_informs(terms: EnvelopeTerms) -> bool:
    """Return whether no message of a type is a directive, whatever its content."""
    stated = said_by_type(terms)
    return stated is not None and stated not in DIRECTIVE


def check_acting(name: str, terms: EnvelopeTerms, side_effect: str | None) -> None:
    """Raise ContractError where type *name* changes something and has a performative that only informs."""
    if side_effect not in ACTING:
        return
    informing = next((word for word in terms.words if word not in DIRECTIVE), None)
    if informing is not None:
        raise ContractError(
            f"@payload({name!r}): performative {informing!r} only informs, and side_effect {side_effect!r} asks for a "
            "change: write performative='request', or leave side_effect out of a type that reports a change"
        )
