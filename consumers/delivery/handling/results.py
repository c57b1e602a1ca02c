"""RunResults: makes the result of a run durable in the inbox before any message about it is sent.

Owns storing results and ends under a claim, releasing claims, and the outcome of a failure.
`consumers.delivery.settling.dispositions` carries out the outcome outside the inbox.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from bus import failpoints
from bus.clock import Clock
from bus.errors import InboxError
from bus.telemetry.counters import trace_of_parent
from bus.telemetry.logs import get_logger
from bus.telemetry.metrics import TypeMetrics
from bus.transports.base import NewRecord
from consumers.delivery.handler_errors import GaveUpError, HandlerCutError, decision_in
from consumers.delivery.handling.claim_batches import STALE_S, ClaimBatcher
from consumers.delivery.handling.claims import ActiveClaim
from consumers.delivery.handling.exclusive import ExclusiveGate
from consumers.delivery.handling.run_policies import RunPolicies
from consumers.delivery.handling.slots import HandlerSlot
from consumers.delivery.inbox.base import Write, Written
from consumers.delivery.settling.dispositions import Dispositions, blamed
from consumers.delivery.settling.outcome import DONE, DROPPED, Dead, Outcome, RetryInLane
from consumers.delivery.state.delivery import Accepted, Delivery
from consumers.delivery.state.lanes import Lane

__all__ = ["STALE", "RunResults"]

STALE: Final = RetryInLane(STALE_S)
"""Another result counts than that of this run: look again."""
_SLOW_S: Final = 0.25
"""A run that took longer is named in the histogram by its trace."""

_log = get_logger("handler")


class RunResults:
    """Stores the results of one worker's runs; *batches* is None without an inbox."""

    def __init__(
        self,
        dispositions: Dispositions,
        policies: RunPolicies,
        *,
        batches: ClaimBatcher | None,
        exclusive: ExclusiveGate,
        clock: Clock,
        meters: Mapping[str, TypeMetrics],
    ) -> None:
        self._dispositions = dispositions
        self._policies = policies
        self._batches = batches
        self._exclusive = exclusive
        self._clock = clock
        self._meters = meters

    def run_ended(self, delivery: Accepted, slot: HandlerSlot, claim: ActiveClaim | None, started_s: float) -> None:
        """Note that the code of users has ended, well or not: it gets no transaction of *claim* any more."""
        slot.seen_s = self._clock.monotonic_s()
        took_s = slot.seen_s - started_s
        timing = self._meters[delivery.label].handler_seconds
        timing.observe(took_s)
        if took_s > _SLOW_S and (trace := trace_of_parent(delivery.message.metadata.traceparent)) is not None:
            timing.mark(took_s, trace)
        if claim is not None:
            claim.over = True

    async def check(self, outputs: Sequence[NewRecord]) -> None:
        """Raise ContractError where the log would never accept one of *outputs*."""
        await self._dispositions.check(outputs)

    async def store(
        self,
        claim: ActiveClaim,
        outputs: Sequence[NewRecord],
        delivery: Delivery,
        slot: HandlerSlot,
        after: InboxError | None = None,
    ) -> bool:
        """Make the result durable; False where another result counts, another worker's or this message's own.

        *after* is the error of a try that has failed already. Raises GaveUpError, InboxError.
        """
        slot.release()
        if not await claim.client.finish(claim, outputs, delivery, after=after):
            return False
        failpoints.reach("inboxed")
        return True

    async def store_step(
        self, claim: ActiveClaim, outputs: Sequence[NewRecord], writes: Sequence[Write], slot: HandlerSlot
    ) -> Written:
        """Make the result of a step durable together with *writes*. Raises InboxError."""
        slot.release()
        written = await claim.client.finish_with(claim, outputs, writes)
        if written == "written":
            failpoints.reach("inboxed")
        return written

    def store_later(self, claim: ActiveClaim, lane: Lane[Delivery], delivery: Accepted) -> bool:
        """Store a result without outputs while no slot waits; return False where that is not possible."""
        if claim.transaction is not None or self._batches is None or self._exclusive.closed:
            return False
        self._policies.notify(delivery, DONE)
        self._batches.finish(claim, lane, delivery)
        return True

    async def store_again(
        self, claim: ActiveClaim, delivery: Accepted, slot: HandlerSlot, after: InboxError | None
    ) -> Outcome:
        """Retry storing a result that the inbox store refused or failed to store."""
        try:
            return DONE if await self.store(claim, (), delivery, slot, after) else STALE
        except GaveUpError:
            await self.release(claim)
            return DROPPED

    async def end(self, claim: ActiveClaim, delivery: Delivery, slot: HandlerSlot, dead: Dead) -> Outcome:
        """Store *dead* as the end of *delivery* in its row, before any report is sent."""
        try:
            await claim.client.undo(claim)
            records = await self._dispositions.end_of(delivery, dead)
            if not await self.store(claim, records, delivery, slot):
                return STALE
        except GaveUpError:
            await self.release(claim)
            return DROPPED
        except InboxError as error:
            message_id = None if delivery.message is None else delivery.message.message_id
            _log.error("inbox.end_not_stored", error=str(error), message_id=message_id)
            return dead
        return msgspec.structs.replace(dead, records=records)

    async def failed(
        self, claim: ActiveClaim | None, delivery: Accepted, slot: HandlerSlot, error: Exception
    ) -> Outcome:
        """Return the outcome of *delivery*, whose run ended by *error*; a death is stored in the row of *claim*."""
        decisive = decision_in(error)
        if isinstance(decisive, HandlerCutError | GaveUpError):
            return await self.released(claim, DROPPED)
        blame = blamed(decisive)
        outcome = self._policies.outcome_after_failure(delivery, blame)
        if outcome is None:
            outcome = self._dispositions.outcome_of_failure(delivery, blame)
        if claim is not None and isinstance(outcome, Dead):
            return await self.end(claim, delivery, slot, outcome)
        return await self.released(claim, outcome)

    async def released(self, claim: ActiveClaim | None, outcome: Outcome) -> Outcome:
        """Release *claim*, and return *outcome*."""
        await self.release(claim)
        return outcome

    async def release(self, claim: ActiveClaim | None) -> None:
        """Release *claim*, if there is one: the message may run again."""
        if claim is not None:
            await claim.client.release(claim)

    async def forget_steps(self, claim: ActiveClaim) -> None:
        """Delete the stored steps of the run, because its result is durable. Leftovers are purged with the row."""
        with contextlib.suppress(InboxError):
            await claim.client.forget_steps(claim)
