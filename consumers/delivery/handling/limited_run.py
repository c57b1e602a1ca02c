"""LimitedRun: a run that begins only when the limits of its handler allow it; until then its message waits."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any

from bus.clock import Clock
from consumers.delivery.handling.claims import ActiveClaim
from consumers.delivery.handling.handler_run import HandlerRun
from consumers.delivery.handling.results import RunResults
from consumers.delivery.handling.runner import RunPermit
from consumers.delivery.handling.slots import HandlerSlot
from consumers.delivery.inbox.limiter import Limiter
from consumers.delivery.settling.dispositions import Dispositions
from consumers.delivery.settling.outcome import Outcome
from consumers.delivery.state.delivery import Accepted, Delivery
from consumers.delivery.state.lanes import Lane

__all__ = ["LimitedRun"]


class LimitedRun:
    """Runs handlers within their limits."""

    def __init__(
        self,
        handlers: HandlerRun,
        limiter: Limiter,
        *,
        results: RunResults,
        dispositions: Dispositions,
        clock: Clock,
    ) -> None:
        self._handlers = handlers
        self._limiter = limiter
        self._results = results
        self._dispositions = dispositions
        self._clock = clock

    def takes(self, delivery: Accepted) -> bool:  # noqa: ARG002 - the form of a runner
        """Take every delivery."""
        return True

    def run(
        self,
        lane: Lane[Delivery],
        delivery: Accepted,
        slot: HandlerSlot,
        claim: ActiveClaim | None,
        permit: RunPermit | None = None,
    ) -> Coroutine[Any, Any, Outcome]:
        """Return the run of *delivery*, to be awaited at once. No coroutine of its own where there is no limit."""
        if not delivery.subscription.limits:
            return self._handlers.run(lane, delivery, slot, claim, permit)
        return self._limited(self._limiter, lane, delivery, slot, claim, permit)

    async def _limited(  # noqa: PLR0917 - the form of a runner
        self,
        limiter: Limiter,
        lane: Lane[Delivery],
        delivery: Accepted,
        slot: HandlerSlot,
        claim: ActiveClaim | None,
        permit: RunPermit | None,
    ) -> Outcome:
        run, limits = delivery.message.message_id, delivery.subscription.limits
        # What waits in a tier is back when it is back: units that it took before would be lost.
        here = not self._dispositions.is_crowded
        try:
            wait_s = await limiter.acquire(run, limits, delivery.payload, ahead=here)
        except Exception as error:  # noqa: BLE001 - of the store, or of a cost that the user's code counts
            return await self._results.failed(claim, delivery, slot, error)
        if wait_s > 0:
            return await self._results.released(claim, self._dispositions.wait_for_turn(delivery, wait_s, here=here))
        slot.seen_s = self._clock.monotonic_s()
        try:
            return await self._handlers.run(lane, delivery, slot, claim, permit)
        finally:
            await limiter.release(run, limits)
