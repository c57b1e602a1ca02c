"""Subscriptions under a lease: the source drops subscribers that do not renew, and a subscriber notices a dead source.

    phase     event                                  then
    open      subscription.open of the subscriber    open, its lease begins again; subscription.opened
    open      something that is noticed              open, subscription.notice with the next number
    open      subscription.cancel                    ended: CANCELLED
    open      the lease is over                      ended: LEASE_OVER

One process per subscription, keyed by its id. A subclass declares the observed messages with
`@on_message(..., every=True)`.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import msgspec

from bus.vocabulary.subscription import (
    SubscriptionCancel,
    SubscriptionEnded,
    SubscriptionNotice,
    SubscriptionOpen,
    SubscriptionOpened,
)
from consumers.processes.sagas.context import SagaContext
from consumers.processes.sagas.rules import Saga, on_message, on_start, on_timer

__all__ = ["SubscriptionState", "Subscription"]


class SubscriptionState(msgspec.Struct, kw_only=True):
    """One subscription."""

    subscription_id: str = ""
    subscriber: str = ""
    subject: str = ""
    filter: dict[str, Any] = {}
    number: int = 0
    """The number of the next notice."""


class Subscription(Saga[SubscriptionState], abstract=True):
    """A source of notices. A subclass selects the observed messages and the subscribers to notify.

    class Prices(Subscription, version="1.0.0"):
        @on_message(PriceChanged, every=True, admits="anyone")
        async def changed(self, price, context):
            if self.state.subject == price.sku:
                self.notify(context, {"cents": price.cents})
    """

    def notify(self, context: SagaContext, content: dict[str, Any]) -> None:
        """Send the next notice to the subscriber."""
        state = self.state
        notice = SubscriptionNotice(subscription_id=state.subscription_id, number=state.number, content=content)
        state.number += 1
        context.send(notice, to=state.subscriber)

    @on_start(SubscriptionOpen, key="/data/subscription_id")
    async def opened(self, wanted: SubscriptionOpen, context: SagaContext) -> SubscriptionOpened:
        state = self.state
        state.subscription_id, state.subject, state.filter = wanted.subscription_id, wanted.subject, dict(wanted.filter)
        state.subscriber = context.message.metadata.sender.id or ""
        return self._lease(wanted, context)

    @on_message(SubscriptionOpen, key="/data/subscription_id")
    async def renewed(self, wanted: SubscriptionOpen, context: SagaContext) -> SubscriptionOpened:
        return self._lease(wanted, context)

    @on_message(SubscriptionCancel, key="/data/subscription_id")
    async def cancelled_by_subscriber(self, _: SubscriptionCancel, context: SagaContext) -> None:
        self._end(context, "CANCELLED")

    @on_timer("lease")
    async def lease_over(self, context: SagaContext) -> None:
        self._end(context, "LEASE_OVER")

    def _lease(self, wanted: SubscriptionOpen, context: SagaContext) -> SubscriptionOpened:
        context.timer("lease", wanted.lease_s)
        until = datetime.fromtimestamp(context.now_ms / 1000 + wanted.lease_s, UTC)
        return SubscriptionOpened(
            subscription_id=wanted.subscription_id, lease_until=until, next_number=self.state.number
        )

    def _end(self, context: SagaContext, code: str) -> None:
        state = self.state
        last = state.number - 1 if state.number else None
        ended = SubscriptionEnded(subscription_id=state.subscription_id, reason_code=code, last_number=last)
        context.send(ended, to=state.subscriber)
        context.finish("cancelled" if code == "CANCELLED" else "completed", code)
