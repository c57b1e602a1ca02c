"""StepRun: the step of a process, committed together with the result of its event."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from structlog.contextvars import bound_contextvars

from bus import failpoints
from bus.clock import Clock
from bus.vocabulary.bus import WaitDue
from consumers.delivery.handling.claims import ActiveClaim
from consumers.delivery.handling.results import STALE, RunResults
from consumers.delivery.handling.run_policies import EXPIRED_S
from consumers.delivery.handling.runner import CALL_S, Steps, StepTaken, needed_claim
from consumers.delivery.handling.slots import HandlerSlot
from consumers.delivery.settling.outcome import DONE, Dead, Done, Outcome
from consumers.delivery.state.delivery import Accepted, Delivery
from consumers.delivery.state.lanes import Lane
from producers.sealing.run_labels import log_ids

__all__ = ["StepRun"]


class StepRun:
    """Takes the steps of sagas."""

    def __init__(self, steps: Steps, results: RunResults, clock: Clock) -> None:
        self._steps = steps
        self._results = results
        self._clock = clock

    def takes(self, delivery: Accepted) -> bool:
        """Return whether *delivery* is an event of a saga."""
        return delivery.subscription.takes_steps

    async def run(
        self,
        lane: Lane[Delivery],  # noqa: ARG002 - the form of a runner
        delivery: Accepted,
        slot: HandlerSlot,
        claim: ActiveClaim | None,
    ) -> Outcome:
        """Take the step of *delivery*, and commit it with the end of its inbox row."""
        claim, started_s = needed_claim(claim), self._clock.monotonic_s()

        async def call(method: Callable[..., Awaitable[Any]], arguments: tuple[Any, ...]) -> Any:
            now_s = self._clock.monotonic_s()
            deadline_s = now_s + min(CALL_S, delivery.ends_s - now_s + EXPIRED_S)
            return await slot.call(method, arguments, deadline_s, delivery, has_row=True)

        try:
            while True:
                with bound_contextvars(**log_ids(delivery.message, delivery.control.attempt + 1)):
                    taken = await self._steps.take(delivery, call)
                if not isinstance(taken, StepTaken):
                    return await self._without_step(claim, delivery, slot, taken)
                await self._results.check(taken.outputs)
                written = await self._results.store_step(claim, taken.outputs, taken.writes, slot)
                taken.ended(written)
                if written != "moved":
                    break
            if written == "stale":
                return STALE
            failpoints.reach("stepped")
        except Exception as error:  # noqa: BLE001 - any error of a step is a decision about its event
            return await self._results.failed(claim, delivery, slot, error)
        finally:
            self._results.run_ended(delivery, slot, claim, started_s)
        return Done(taken.outputs) if taken.outputs else DONE

    async def _without_step(
        self, claim: ActiveClaim, delivery: Accepted, slot: HandlerSlot, outcome: Outcome
    ) -> Outcome:
        match outcome:
            case Dead():
                return await self._results.end(claim, delivery, slot, outcome)
            case Done() if isinstance(delivery.payload, WaitDue) or _is_heard(delivery):
                # A nudge that says nothing, early, late or forged, leaves no trace; nor does progress that is passed
                # over.
                await claim.client.void(claim)
                return outcome
            case Done():
                # Passed over for good.
                return outcome if await self._results.store(claim, (), delivery, slot) else STALE
            case _:
                return await self._results.released(claim, outcome)


def _is_heard(delivery: Accepted) -> bool:
    return delivery.subscription.is_mailbox and delivery.message.is_progress
