"""HandlerRun: one call of a handler, with its deadline, its context, and what it returns or queues sealed.

The runner of all that no other runner takes.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import msgspec

from bus import failpoints
from bus.clock import Clock
from bus.errors import RetryLater
from bus.protocol.sealing import Message
from bus.transports.base import NewRecord
from consumers.delivery.approval_given import ApprovalGiven
from consumers.delivery.context import Context
from consumers.delivery.group_plan import GroupPlan
from consumers.delivery.handler_errors import AnswerMissingError
from consumers.delivery.handling.claims import ActiveClaim, ClaimOfRun
from consumers.delivery.handling.results import STALE, RunResults
from consumers.delivery.handling.run_policies import EXPIRED_S
from consumers.delivery.handling.runner import RunPermit
from consumers.delivery.handling.slots import HandlerSlot
from consumers.delivery.settling.outcome import AWAIT_INBOX, DONE, Done, Outcome
from consumers.delivery.settling.outputs import Output, seal_outputs
from consumers.delivery.state.delivery import Accepted, Delivery
from consumers.delivery.state.lanes import Lane
from producers.publisher import Publisher
from producers.requests.requester import Requester
from producers.sealing.run_labels import CURRENT_RUN, RunLabels

__all__ = ["HandlerRun"]


class HandlerRun:
    """Runs the handlers of one worker."""

    def __init__(
        self,
        plan: GroupPlan,
        *,
        publisher: Publisher,
        requests: Requester,
        results: RunResults,
        clock: Clock,
        has_inbox: bool,
    ) -> None:
        self._plan = plan
        self._publisher = publisher
        self._requests = requests
        self._results = results
        self._clock = clock
        self._has_inbox = has_inbox

    def takes(self, delivery: Accepted) -> bool:  # noqa: ARG002 - the form of a runner
        """Take every delivery."""
        return True

    async def run(
        self,
        lane: Lane[Delivery],
        delivery: Accepted,
        slot: HandlerSlot,
        claim: ActiveClaim | None,
        permit: RunPermit | None = None,
    ) -> Outcome:
        """Run the handler of *delivery*, by *permit* where it needed an approval, and return its outcome."""
        subscription, started_s = delivery.subscription, slot.seen_s
        plan, left_s = self._plan, delivery.ends_s - started_s
        timeout_s = plan.timeout_s if subscription.timeout_s is msgspec.UNSET else plan.timeout_of(subscription)
        # It is cut at the end of its life. The tolerance of clocks is no time to work in, but for one that comes late.
        ends_s = started_s + min(timeout_s, left_s)
        deadline_s = ends_s if left_s > 0 else started_s + min(timeout_s, left_s + EXPIRED_S)
        run = RunLabels(delivery.message, self._publisher.sealer.admission, delivery.control.attempt + 1, slot)
        context = None
        if subscription.takes_context:
            approval = None if permit is None else permit.agreed
            context = self._context(delivery, slot, ends_s, claim, run=run, approval=approval)
        arguments = (delivery.payload,) if context is None else (delivery.payload, context)
        outputs: Sequence[NewRecord] = ()
        try:
            try:
                present = CURRENT_RUN.set(run)
                returned = await slot.call(
                    subscription.handler, arguments, deadline_s, delivery, has_row=claim is not None
                )
            finally:
                run.over = True
                CURRENT_RUN.reset(present)
                self._results.run_ended(delivery, slot, claim, started_s)
                if context is not None:
                    context.over = True
            if failpoints.is_armed:
                failpoints.reach("handled")
            if returned is None and subscription.must_answer:
                raise AnswerMissingError
            drafts = context.outputs if context is not None else ()
            if drafts or returned is not None:
                outputs = await self._seal(delivery.message, drafts, returned, claim, run)
            if permit is not None and claim is not None:
                outputs = await _consume(permit, outputs, delivery, claim)
            if claim is not None:
                keeps_steps = context is not None and context.remembered is not None and context.remembered.used
                return await self._stored(lane, delivery, slot, claim=claim, outputs=outputs, keeps_steps=keeps_steps)
        except Exception as error:  # noqa: BLE001 - any error of a handler is a decision about its message
            return await self._results.failed(claim, delivery, slot, error)
        return Done(outputs) if outputs else DONE

    async def _stored(
        self,
        lane: Lane[Delivery],
        delivery: Accepted,
        slot: HandlerSlot,
        *,
        claim: ActiveClaim,
        outputs: Sequence[NewRecord],
        keeps_steps: bool,
    ) -> Outcome:
        """Store the result of a run under *claim*, and return its outcome."""
        if not outputs and not keeps_steps and self._results.store_later(claim, lane, delivery):
            return AWAIT_INBOX
        if not await self._results.store(claim, outputs, delivery, slot):
            return STALE
        if keeps_steps:
            await self._results.forget_steps(claim)
        return Done(outputs) if outputs else DONE

    def _context(
        self,
        delivery: Accepted,
        slot: HandlerSlot,
        ends_s: float,
        claim: ActiveClaim | None,
        *,
        run: RunLabels,
        approval: ApprovalGiven | None,
    ) -> Context:
        return Context(
            run,
            deadline_s=ends_s,
            publisher=self._publisher,
            requests=self._requests,
            # Only a run that holds a claim can have the inbox's transaction.
            claim=None if claim is None else ClaimOfRun(claim, delivery.partition),
            has_inbox=self._has_inbox,
            approval=approval,
            is_cancelled=partial(_is_cancelled, slot, delivery.message),
            version=self._plan.app_version,
        )

    async def _seal(
        self,
        message: Message,
        drafts: Sequence[Output],
        returned: object,
        claim: ActiveClaim | None,
        run: RunLabels,
    ) -> Sequence[NewRecord]:
        """Seal the outputs of a run as records. Raises ContractError, PublishRejected.

        A record that no topic accepts is found before the result is committed.
        """
        types = self._plan.view.registry
        outputs = [
            record
            for sealed in seal_outputs(self._publisher, message, drafts, returned, types, run=run)
            for record in sealed.records
        ]
        if claim is not None:
            await self._results.check(outputs)
        return outputs


async def _consume(
    permit: RunPermit, outputs: Sequence[NewRecord], delivery: Accepted, claim: ActiveClaim
) -> Sequence[NewRecord]:
    """Consume *permit* in the transaction of the result; return the messages to send with it."""
    # The handler has ended, so that it may open no transaction any more; this one is the bus's.
    claim.over = False
    transaction = await claim.client.begin(claim, delivery.partition)
    claim.over = True
    if not await permit.consume(transaction):
        raise RetryLater("its approval has moved while it ran: the run does not count")
    return [*outputs, *permit.closed()]


def _is_cancelled(slot: HandlerSlot, message: Message) -> bool:
    """Return whether the run of *message* in *slot* is cancelled.

    A context does not hold its delivery: an error with a cause would keep both until the garbage collector runs.
    """
    delivery = slot.delivery
    return isinstance(delivery, Accepted) and delivery.message is message and delivery.cancelled
