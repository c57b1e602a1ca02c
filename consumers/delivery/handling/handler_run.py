"""HandlerRun: one call of a handler, with its deadline, its context, and what it returns or queues sealed.

The runner of all that no other runner takes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import msgspec

from bus import failpoints
from bus.clock import Clock
from bus.errors import ContractError, RetryLater
from bus.protocol.sealing import Message
from bus.telemetry.logs import get_logger
from bus.transports.base import NewRecord
from consumers.delivery.approval_given import ApprovalGiven
from consumers.delivery.context import Context
from consumers.delivery.derived_ids import DerivedIds
from consumers.delivery.group_plan import GroupPlan
from consumers.delivery.handler_errors import (
    AnswerMissingError,
    GaveUpError,
    HandlerCutError,
    HandlerGoneError,
    decision_in,
)
from consumers.delivery.handling.claims import ActiveClaim, ClaimOfRun
from consumers.delivery.handling.leftover_tasks import end_tasks_of
from consumers.delivery.handling.results import STALE, RunResults
from consumers.delivery.handling.run_policies import EXPIRED_S
from consumers.delivery.handling.runner import HeldSteps, RunPermit, begun_again, needed_claim
from consumers.delivery.handling.slots import HandlerSlot
from consumers.delivery.inbox.step_call import OperatorAnswer
from consumers.delivery.progress_sender import ProgressSender
from consumers.delivery.receiving.redrive_orders import order_about
from consumers.delivery.settling.large_results import RESULT_TYPE, moved_out
from consumers.delivery.settling.outcome import AWAIT_INBOX, DONE, Done, Outcome, Withheld
from consumers.delivery.settling.outputs import Output, seal_outputs
from consumers.delivery.state.delivery import Accepted, Delivery
from consumers.delivery.state.lanes import Lane
from producers.publisher import Publisher
from producers.requests.requester import Requester
from producers.sealing.run_labels import CURRENT_RUN, RunLabels

__all__ = ["HandlerRun"]

_log = get_logger("handler")


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
        desk_of: Callable[[Accepted, RunLabels, str], HeldSteps] | None = None,
    ) -> None:
        self._plan = plan
        self._desk_of = desk_of
        self._publisher = publisher
        self._requests = requests
        self._results = results
        self._clock = clock
        self._has_inbox = has_inbox
        self._progress = ProgressSender(publisher)

    def takes(self, delivery: Accepted) -> bool:  # noqa: ARG002 - the form of a runner
        """Take every delivery."""
        return True

    # Every message goes this way: what is rare is asked for by its attributes, and costs the others no call.
    async def run(  # noqa: C901, PLR0912
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
        context, desk = None, self._desk(delivery, run, claim) if subscription.asks else None
        if subscription.takes_context:
            approval = None if permit is None else permit.agreed
            context = self._context(delivery, slot, ends_s, claim, run=run, approval=approval, desk=desk)
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
                    if context.said is not None:
                        # What it said last comes before its answer.
                        await context.said.end()
            if desk is not None and desk.is_held:
                raise HandlerGoneError
            if context is not None and context.owed:
                context.check_awaited()
            if failpoints.is_armed:
                failpoints.reach("handled")
            if returned is None and subscription.must_answer:
                raise AnswerMissingError
            drafts = context.outputs if context is not None else ()
            if drafts or returned is not None:
                if type(returned).__name__ == RESULT_TYPE:
                    returned = await moved_out(returned, self._publisher)
                outputs = await self._seal(delivery.message, drafts, returned, claim, run)
            if permit is not None or desk is not None or (context is not None and context.memory is not None):
                outputs = await _consume(_permits(permit, desk), outputs, delivery, claim, context)
            if claim is not None:
                keeps_steps = context is not None and context.remembered is not None and context.remembered.used
                return await self._stored(lane, delivery, slot, claim=claim, outputs=outputs, keeps_steps=keeps_steps)
        except Exception as error:  # noqa: BLE001 - any error of a handler is a decision about its message
            if _is_held(desk, error):
                return await self._held_after_all(delivery, slot, claim, desk=desk, run=run)
            return await self._results.failed(claim, delivery, slot, error)
        return Done(outputs) if outputs else DONE

    def _desk(self, delivery: Accepted, run: RunLabels, claim: ActiveClaim | None) -> HeldSteps | None:
        """Return the desk for approvals of steps of *run*."""
        if claim is None or self._desk_of is None:
            return None
        return self._desk_of(delivery, run, claim.key.idempotency_key)

    async def _held_after_all(
        self,
        delivery: Accepted,
        slot: HandlerSlot,
        claim: ActiveClaim | None,
        *,
        desk: HeldSteps | None,
        run: RunLabels,
    ) -> Outcome:
        try:
            assert desk is not None  # noqa: S101 - it is held
            return await self._held(delivery, needed_claim(claim), desk, run)
        except Exception as error:  # noqa: BLE001 - of the store
            return await self._results.failed(claim, delivery, slot, error)

    async def _held(self, delivery: Accepted, claim: ActiveClaim | None, desk: HeldSteps, run: RunLabels) -> Outcome:
        """Store *delivery* until what its run has asked for is decided, whatever the run did after that."""
        claim = needed_claim(claim)
        await end_tasks_of(run, delivery.label)
        await claim.client.undo(claim)
        # The handler has ended, so that it may open no transaction any more; this one is the bus's.
        claim.over = False
        try:
            outcome = await desk.hold(begun_again(claim, delivery))
            if not isinstance(outcome, Withheld):
                return await self._results.released(claim, outcome)
            await self._results.check(outcome.outputs)
            if not await claim.client.release_with(claim):
                return STALE
        finally:
            claim.over = True
        failpoints.reach("held")
        return outcome

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
        desk: HeldSteps | None,
    ) -> Context:
        context = Context(
            run,
            deadline_s=ends_s,
            publisher=self._publisher,
            requests=self._requests,
            # Only a run that holds a claim can have the inbox's transaction.
            claim=None if claim is None else self._claim_of_run(delivery, slot, claim),
            has_inbox=self._has_inbox,
            approval=approval,
            is_cancelled=partial(_is_cancelled, slot, delivery.message),
            version=self._plan.app_version,
            desk=desk,
        )
        context.progress_sender, context.redrives = self._progress, delivery.control.redrive_count
        if desk is not None and claim is not None:
            context.ids = DerivedIds(claim.key, delivery.sealed_ms)
        return context

    def _claim_of_run(self, delivery: Accepted, slot: HandlerSlot, claim: ActiveClaim) -> ClaimOfRun:
        return ClaimOfRun(claim, delivery.partition, slot.share, partial(_answer_in, delivery, self._plan))

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


def _is_held(desk: HeldSteps | None, error: Exception) -> bool:
    """Return whether the run is to be stored; not where its partition has gone: the next owner runs it again."""
    return desk is not None and desk.is_held and not isinstance(decision_in(error), HandlerCutError | GaveUpError)


def _permits(permit: RunPermit | None, desk: HeldSteps | None) -> Sequence[RunPermit]:
    """Return the approvals that are used up with the result of the run."""
    return [*([] if permit is None else [permit]), *([] if desk is None else desk.granted)]


async def _consume(
    permits: Sequence[RunPermit],
    outputs: Sequence[NewRecord],
    delivery: Accepted,
    claim: ActiveClaim | None,
    context: Context | None,
) -> Sequence[NewRecord]:
    """Consume *permits*, and write what the run remembers of its conversation, in the transaction of the result.

    Return the messages to send with it.
    """
    memory = None if context is None or context.memory is None or not context.memory.added else context.memory
    if (not permits and memory is None) or claim is None:
        return outputs
    # The handler has ended, so that it may open no transaction any more; this one is the bus's.
    claim.over = False
    transaction = await claim.client.begin(claim, delivery.partition)
    claim.over = True
    for permit in permits:
        if not await permit.consume(transaction):
            raise RetryLater("its approval has moved while it ran: the run does not count")
    if memory is not None and context is not None:
        await memory.write(transaction, context.labels)
    return [*outputs, *(record for permit in permits for record in permit.closed())]


def _answer_in(delivery: Accepted, plan: GroupPlan) -> OperatorAnswer | None:
    """Return what an operator says about a step of *delivery*, which was sent back."""
    view = plan.view
    try:
        found = order_about(delivery.control, delivery.message, delivery.subscription.kind, view)
    except ContractError as error:
        _log.warning(
            "redrive.order_refused", message_id=delivery.message.message_id, pointer=error.pointer, detail=error.text
        )
        return OperatorAnswer(order="", refused=error.text)
    if found is None or found.order.answer is None:
        return None
    return OperatorAnswer(
        order=found.message.message_id,
        step=found.order.step,
        had_effect=found.order.answer == "done",
        result=(found.order.result or {}).get("value"),
        labels=view.admission.labels(found.message),
    )


def _is_cancelled(slot: HandlerSlot, message: Message) -> bool:
    """Return whether the run of *message* in *slot* is cancelled.

    A context does not hold its delivery: an error with a cause would keep both until the garbage collector runs.
    """
    delivery = slot.delivery
    return isinstance(delivery, Accepted) and delivery.message is message and delivery.cancelled
