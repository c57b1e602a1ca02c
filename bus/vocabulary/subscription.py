"""Subscriptions: notices under a lease."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from bus.payloads.payload_types import payload
from bus.vocabulary.forms import Code, Count, Instant, Name, Object, Text, Value
from bus.vocabulary.parts import Ref


@payload("subscription.open", version="1.0.0", performative="subscribe", ttl_s=600, side_effect="write")
class SubscriptionOpen(Value, frozen=True, kw_only=True):
    """Subscriber to a source.

    The same id again renews the lease.
    """

    subscription_id: Name
    """Unique per subscriber."""
    subject: Text
    """What is wanted, in the source's words."""
    filter: Object = {}
    lease_s: Annotated[int, Meta(ge=30, le=86400)] = 300
    start: Literal["now", "earliest"] = "now"


@payload("subscription.opened", version="1.0.0", performative="confirm", ttl_s=600, side_effect="none")
class SubscriptionOpened(Value, frozen=True, kw_only=True):
    """Source to subscriber."""

    subscription_id: Name
    lease_until: Instant
    next_number: Count = 0
    """Of the first notice to come."""


@payload("subscription.notice", version="1.0.0", performative="inform", ttl_s=3600, side_effect="none")
class SubscriptionNotice(Value, frozen=True, kw_only=True):
    """Source to subscriber."""

    subscription_id: Name
    number: Count
    """Without gaps per subscription: the subscriber sees what it missed."""
    content: Object
    artifacts: tuple[Ref, ...] = ()


@payload("subscription.cancel", version="1.0.0", performative="cancel", ttl_s=600, side_effect="write")
class SubscriptionCancel(Value, frozen=True, kw_only=True):
    """Subscriber to source."""

    subscription_id: Name


@payload("subscription.ended", version="1.0.0", performative="inform", ttl_s=3600, side_effect="none")
class SubscriptionEnded(Value, frozen=True, kw_only=True):
    """Source to subscriber, whatever ended it."""

    subscription_id: Name
    reason_code: Code
    """Known: CANCELLED, LEASE_OVER, SOURCE_GONE, REFUSED, FAILED."""
    explanation: Text | None = None
    last_number: Count | None = None
    """Of the last notice sent."""
