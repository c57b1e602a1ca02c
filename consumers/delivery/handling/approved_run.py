"""ApprovedRun: a handler that runs only with an approval; without one its message waits."""

from __future__ import annotations

from typing import Any

from bus import failpoints
from bus.clock import Clock
from consumers.delivery.handling.claims import ActiveClaim
from consumers.delivery.handling.handler_run import HandlerRun
from consumers.delivery.handling.limited_run import LimitedRun
from consumers.delivery.handling.results import STALE, RunResults
from consumers.delivery.handling.runner import Approvals, RunPermit, begun_again, needed_claim
from consumers.delivery.handling.slots import HandlerSlot
from consumers.delivery.settling.outcome import Dead, Outcome, Withheld
from consumers.delivery.state.delivery import Accepted, Delivery
from consumers.delivery.state.lanes import Lane

__all__ = ["ApprovedRun"]


class ApprovedRun:
    """Runs what needs an approval, once *approvals* has it."""

    def __init__(
        self, approvals: Approvals[Any], handlers: HandlerRun | LimitedRun, results: RunResults, clock: Clock
    ) -> None:
        self._clock = clock
        self._approvals = approvals
        self._handlers = handlers
        self._results = results

    def takes(self, delivery: Accepted) -> bool:
        """Take what its handler or the policy lets run only with an approval."""
        return self._approvals.need_of(delivery) is not None

    async def run(
        self, lane: Lane[Delivery], delivery: Accepted, slot: HandlerSlot, claim: ActiveClaim | None
    ) -> Outcome:
        """Run *delivery* if it is approved; store it if there is no decision yet."""
        claim, need = needed_claim(claim), self._approvals.need_of(delivery)
        try:
            verdict = await self._approvals.judge(
                delivery, need, claim.key.idempotency_key, begun_again(claim, delivery)
            )
            if isinstance(verdict, Withheld):
                await self._results.check(verdict.outputs)
                if not await claim.client.release_with(claim):
                    return STALE
                failpoints.reach("stepped")
        except Exception as error:  # noqa: BLE001 - any error is a decision about the message
            return await self._results.failed(claim, delivery, slot, error)
        if isinstance(verdict, RunPermit):
            slot.seen_s = self._clock.monotonic_s()
            return await self._handlers.run(lane, delivery, slot, claim, verdict)
        if isinstance(verdict, Withheld):
            return verdict
        if isinstance(verdict, Dead):
            return await self._results.end(claim, delivery, slot, verdict)
        return await self._results.released(claim, verdict)
