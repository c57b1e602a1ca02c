"""Handled types without protection by a trust level: their messages are handled whatever caused them. Pure."""

from __future__ import annotations

from collections.abc import Collection

from bus.payloads.directives import always_informs, declared_facts, is_directive
from bus.payloads.payload_types import PayloadType, raised_risk
from consumers.delivery.declaration import Declaration

__all__ = ["THRESHOLD_CURE", "unguarded_types"]

THRESHOLD_CURE = 'set performative="request" if its handler acts on it, or "inform" if it only learns of something'


def unguarded_types(declaration: Declaration, *, high_risk: Collection[str] = ()) -> tuple[PayloadType, ...]:
    """Return the handled types whose messages without `reply_to` are not directives, although the type does not declare
    that.

    A type declares it by a performative that informs. *high_risk* are the types whose risk the settings raise.
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
