"""Which handled types no trust level guards: a message of theirs is handled whatever it rests on. Pure."""

from __future__ import annotations

from collections.abc import Collection

from bus.payloads.directives import always_informs, declared_facts, is_directive
from bus.payloads.payload_types import PayloadType, raised_risk
from consumers.delivery.declaration import Declaration

__all__ = ["THRESHOLD_CURE", "unguarded_types"]

THRESHOLD_CURE = (
    'say performative="request" where its handler acts on it, or "inform" where it only learns of something'
)


def unguarded_types(declaration: Declaration, *, high_risk: Collection[str] = ()) -> tuple[PayloadType, ...]:
    """Return the handled types of which a message without `reply_to` is no directive, and that do not say so.

    A type with a performative that informs says so. *high_risk* are the types whose risk the settings raise.
    """
    return tuple(
        subscription.kind
        for subscription in declaration.subscriptions.values()
        if not always_informs((kind := subscription.kind).terms)
        and not is_directive(
            declared_facts(
                kind.terms,
                side_effect=kind.side_effect,
                risk=raised_risk(kind, high_risk),
                has_threshold=subscription.instructions_from is not None,
            )
        )
    )
