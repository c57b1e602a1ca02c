"""Executor: drives a lane's deliveries to their outcomes.

Reads top to bottom as the life of one delivery: the policies that may keep it from running, the inbox's claim, the run,
and its `Outcome`, which is settled in one place. Slots and deadlines are in `consumers.handling.slots`, outcomes in
`consumers.settling.dispositions`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, Final

import msgspec
from structlog.contextvars import bound_contextvars

from bus.clock import Clock
from bus.errors import ContractError, InboxError, RetryLater
from bus.failpoints import reach
from bus.own_context import OwnContext
from bus.protocol.reasons import gate_of
from bus.protocol.sealing import Message
from bus.telemetry.counters import trace_of_parent
from bus.telemetry.logs import get_logger
from bus.telemetry.metrics import Metrics
from bus.transports.base import NewRecord
from bus.vocabulary.bus import WaitDue
from consumers.approvals.approval import ApprovalGiven, Need
from consumers.approvals.desk import ApprovalDesk, Proceed
from consumers.context import Context
from consumers.crashes.crash_guard import CrashGuard
from consumers.group_plan import GroupPlan
from consumers.handler_errors import AnswerMissingError, GaveUpError, HandlerCutError, decision_in
from consumers.handling.claim_batches import STALE_S, ClaimBatcher
from consumers.handling.claims import ActiveClaim, ClaimRequest, InboxClient, ResultRequest
from consumers.handling.exclusive import ExclusiveGate
from consumers.handling.run_policies import EXPIRED_S, RunPolicy
from consumers.handling.slots import HandlerSlot
from consumers.inbox.base import (
    AlreadyDead,
    AlreadyDone,
    Ask,
    Claim,
    Claimed,
    ClaimedElsewhere,
    End,
    Key,
    Suspect,
    Transaction,
)
from consumers.receiving.verification import RecordVerifier
from consumers.sagas.steps import CALL_S, StepRunner, StepTaken
from consumers.settling.dispositions import Dispositions, blamed, refused
from consumers.settling.outcome import (
    AWAIT_INBOX,
    DONE,
    DROPPED,
    Dead,
    Done,
    MoveToTier,
    Outcome,
    PassOn,
    RetryInLane,
    Withheld,
)
from consumers.settling.outputs import Output, seal_outputs
from consumers.state.delivery import Accepted, Delivery, Refused
from consumers.state.lane_timers import LaneTimers
from consumers.state.lanes import Lane, Lanes
from producers.publisher import Publisher
from producers.requests.requester import Requester
from producers.sealing.run_labels import CURRENT_RUN, RunLabels, log_ids

__all__ = ["Executor"]

_AGAIN_S: Final = 0.5
_SLOW_S: Final = 0.25
"""A run that took longer is named in the histogram by its trace."""
_UNPROVEN: Final = frozenset({"size", "parse", "integrity", "recipient", "audience", "authenticity"})
"""The gates that say who a message is from: what one of them refuses has no row, for it could be anybody's."""
_LIFETIME: Final = "lifetime"
_STALE: Final = RetryInLane(STALE_S)

_log = get_logger("handler")


class Executor:
    """Drives lanes for one worker. *policies* are asked in their order before each run."""

    def __init__(
        self,
        plan: GroupPlan,
        dispositions: Dispositions,
        *,
        policies: Sequence[RunPolicy],
        publisher: Publisher,
        requests: Requester,
        verification: RecordVerifier,
        lanes: Lanes[Delivery],
        timers: LaneTimers,
        exclusive: ExclusiveGate,
        claims: InboxClient | None,
        batches: ClaimBatcher | None,
        guard: CrashGuard,
        own: OwnContext,
        clock: Clock,
        metrics: Metrics,
        steps: StepRunner | None = None,
        desk: ApprovalDesk | None = None,
    ) -> None:
        self._own = own
        self._steps = steps
        self._desk = desk
        self._plan = plan
        self._dispositions = dispositions
        # Per hook, only the policies that define it.
        self._policies = [policy for policy in policies if type(policy).before_run is not RunPolicy.before_run]
        self._judges = [policy for policy in policies if type(policy).after_failure is not RunPolicy.after_failure]
        self._learners = [policy for policy in policies if type(policy).after_run is not RunPolicy.after_run]
        self._publisher = publisher
        self._requests = requests
        self._verification = verification
        self._lanes = lanes
        self._timers = timers
        self._exclusive = exclusive
        self._claims = claims
        self._batches = batches
        self._guard = guard
        self._clock = clock
        self._meters = metrics.meters(plan.group)

    async def run_lane(self, lane: Lane[Delivery], slot: HandlerSlot) -> None:
        """Settle the head of *lane*, and those behind it while no other lane is ready."""
        while True:
            slot.delivery = lane.head
            # Whatever code of users does for one message, from its policies to its report, begins in the worker's own
            # context, and nothing of it is left in what runs next.
            if not await self._own.drive(self._settle_head(lane, lane.head, slot)):
                return
            following = self._lanes.finish(lane)
            if following is None:
                return
            if self._lanes.ready or self._lanes.back or slot.released or following.is_deep is not lane.flow.deep:
                self._lanes.release(lane, following.priority, deep=following.is_deep)
                return

    async def _settle_head(self, lane: Lane[Delivery], delivery: Delivery, slot: HandlerSlot) -> bool:
        """Bring *delivery*, the head of *lane*, to its end; return False where the lane waits with it."""
        wait_s = None
        try:
            outcome = self._instead(delivery)
            if outcome is None:
                outcome = await self._run_or_ask(lane, delivery, slot)
            elif isinstance(outcome, Dead):
                outcome = await self._concluded(delivery, outcome, slot)
            if outcome is AWAIT_INBOX:
                return False
            self._learn(delivery, outcome)
            if outcome is DONE:
                self._dispositions.succeeded(delivery)
            else:
                wait_s = await self._dispositions.settle(delivery, outcome)
        except GaveUpError:
            self._learn(delivery, DROPPED)
            self._dispositions.drop(delivery)
        # From Python 3.12 on the traceback of its error keeps this frame: both, and the message, would wait for the
        # collector.
        outcome = None
        return wait_s is None or not self._wait(lane, delivery, wait_s)

    # Before a run.

    def _instead(self, delivery: Delivery) -> Outcome | None:
        """Decide what becomes of *delivery* where its handler must not run now; None lets it run."""
        partition = delivery.partition
        if isinstance(delivery, Accepted):
            if delivery.asked is not None:
                return None
            if partition.draining or partition.closed:
                return DROPPED
            if delivery.requeue is not None:
                left_s = self._verification.remaining_s(delivery)
                return MoveToTier(delivery.requeue, delivery.control) if left_s > 0 else _late()
            if delivery.unreadable is not None:
                return refused(delivery.unreadable)
            now_s = self._clock.monotonic_s()
            for policy in self._policies:
                if not policy.idle and (outcome := policy.before_run(delivery, now_s)) is not None:
                    return outcome
            return None
        if isinstance(delivery, Refused) and not (partition.draining or partition.closed):
            return self._outcome_of_refusal(delivery)
        return DROPPED

    def _outcome_of_refusal(self, delivery: Refused) -> Outcome:
        if (
            delivery.requeue is not None
            and delivery.message is not None
            and self._verification.remaining_s(delivery) > 0
        ):
            return PassOn(delivery.requeue)
        return refused(delivery.error)

    async def _concluded(self, delivery: Delivery, dead: Dead, slot: HandlerSlot) -> Outcome:
        """Return *dead*, the verdict about a message that does not run, stored where the inbox keeps its row.

        A policy, a cancellation or the code may speak otherwise the next time: what was told once stands. Where the
        inbox knows the message as done or dead, that counts: clocks and policies may have changed since, and its
        outputs may not have left.
        """
        claims, gate = self._claims, gate_of(dead.failure.reason)
        if claims is None or gate in _UNPROVEN or delivery.message is None:
            return dead
        subscription = self._plan.subscription_of(delivery)
        if subscription is None or (key := claims.key_of(delivery.message, subscription)) is None:
            return dead
        whole = delivery if isinstance(delivery, Accepted) else getattr(delivery, "otherwise", None)
        repeat = claims.repeat_key(key, delivery.message)
        if gate == _LIFETIME:
            # It stays too late: no row is needed for that.
            ended = await claims.ended_before(key, delivery) or await claims.ended_before(repeat, delivery)
            if whole is None or ended is None:
                return dead
            return self._dispositions.outcome_of_claim(whole, claims.count_answer(ended))
        # Alone: where its runs have ended processes, this is none.
        claim = await claims.claim(key, delivery, alone=True)
        if isinstance(claim, Claimed):
            return await self._end(ActiveClaim(key, claim.token), delivery, slot, dead)
        # Another message that has its key says nothing about this one: it passes every gate first.
        if isinstance(claim, AlreadyDone | AlreadyDead) and claim.message_id != delivery.message.message_id:
            claim = await claims.ended_before(repeat, delivery) or claim
        counts = isinstance(claim, ClaimedElsewhere) or (
            isinstance(claim, AlreadyDone | AlreadyDead) and claim.message_id == delivery.message.message_id
        )
        return self._dispositions.outcome_of_claim(whole, claim) if counts and whole is not None else dead

    async def _end(self, hold: ActiveClaim, delivery: Delivery, slot: HandlerSlot, dead: Dead) -> Outcome:
        """Store *dead* as the end of *delivery* in its row, before anybody is told."""
        assert self._claims is not None  # noqa: S101 - it gave the claim
        try:
            await self._claims.undo(hold)
            records = await self._dispositions.end_of(delivery, dead)
            if not await self._store(hold, records, delivery, slot):
                return _STALE
        except GaveUpError:
            await self._release(hold)
            return DROPPED
        except InboxError as error:
            _log.error("inbox.end_not_stored", error=str(error), message_id=_id_of(delivery))
            return dead
        return msgspec.structs.replace(dead, records=records)

    async def _failed(
        self, hold: ActiveClaim | None, delivery: Accepted, slot: HandlerSlot, error: Exception
    ) -> Outcome:
        """Return what becomes of *delivery*, whose run *error* has ended; a death is stored in the row of *hold*."""
        decisive = decision_in(error)
        if isinstance(decisive, HandlerCutError | GaveUpError):
            await self._release(hold)
            return DROPPED
        outcome = self._outcome_of_failure(delivery, blamed(decisive))
        if hold is not None and isinstance(outcome, Dead):
            return await self._end(hold, delivery, slot, outcome)
        await self._release(hold)
        return outcome

    # Who runs it.

    async def _run_or_ask(self, lane: Lane[Delivery], delivery: Delivery, slot: HandlerSlot) -> Outcome:
        """Run *delivery*; AWAIT_INBOX where the inbox is asked first, and the lane comes back with its answer."""
        assert isinstance(delivery, Accepted)  # noqa: S101 - a refused one has its outcome without a run
        claim: ActiveClaim | None = None
        if delivery.asked is not None:
            answered = await self._answer(lane, delivery, delivery.asked, slot)
            if not isinstance(answered, ActiveClaim):
                return answered
            claim = answered
        elif (
            self._claims is not None
            and self._batches is not None
            and (key := self._claims.key_of(delivery.message, delivery.subscription))
        ):
            self._batches.ask(key, lane, delivery)
            return AWAIT_INBOX
        elif self._guard.tolls and self._guard.is_suspect(delivery):
            return await self._run_alone(lane, delivery, slot, None)
        if self._exclusive.closed:
            await self._exclusive.enter(alone=False)
        else:
            # Without a coroutine in between: most messages go this way.
            self._exclusive.inside += 1
        try:
            return await self._run(lane, delivery, slot, claim)
        finally:
            self._exclusive.leave(alone=False)

    async def _run_alone(
        self, lane: Lane[Delivery], delivery: Accepted, slot: HandlerSlot, key: ClaimRequest | None
    ) -> Outcome:
        """Run *delivery* while no other handler runs in this process, after its claim by *key* where it has one."""
        await self._exclusive.enter(alone=True)
        slot.alone = True
        try:
            hold = None
            if key is not None and self._claims is not None:
                claim = await self._claims.claim(key.key, delivery, alone=True)
                if not isinstance(claim, Claimed):
                    return await self._without_run(key.key, delivery, slot, claim)
                hold = ActiveClaim(key.key, claim.token, key.identity)
            return await self._run(lane, delivery, slot, hold)
        finally:
            # It is not alone any more where it has waited for others.
            alone, slot.alone = slot.alone, False
            self._exclusive.leave(alone=alone)

    async def _answer(
        self, lane: Lane[Delivery], delivery: Accepted, asked: Ask | End, slot: HandlerSlot
    ) -> Outcome | ActiveClaim:
        """Go on with the inbox's answer: return the claim to run *delivery* with, or its outcome without a run.

        A store that has failed is asked again. A suspect runs alone, here.
        """
        claims, answer = self._claims, asked.answer
        delivery.asked = None
        delivery.partition.parked -= 1
        if isinstance(answer, Exception) and not isinstance(answer, InboxError):
            raise answer
        failed = answer if isinstance(answer, InboxError) else None
        assert claims is not None  # noqa: S101 - it was asked
        if isinstance(asked, ResultRequest):
            return await self._store_again(asked.hold, delivery, slot, failed)
        assert isinstance(asked, ClaimRequest)  # noqa: S101 - a lane waits for nothing else
        claim = asked.answer
        if claim is None or isinstance(claim, Exception):
            claim = await claims.claim(asked.key, delivery, after=failed)
        else:
            claim = claims.count_answer(claim)
        if isinstance(claim, Claimed):
            return ActiveClaim(asked.key, claim.token, asked.identity)
        if isinstance(claim, Suspect):
            return await self._run_alone(lane, delivery, slot, asked)
        return await self._without_run(asked.key, delivery, slot, claim)

    async def _without_run(self, key: Key, delivery: Accepted, slot: HandlerSlot, claim: Claim) -> Outcome:
        """Return what becomes of *delivery*, which *claim* lets not run.

        The end of a repeat under the key of another message is kept in a row of its own: when it comes again, its time
        may be over.
        """
        outcome, claims = self._dispositions.outcome_of_claim(delivery, claim), self._claims
        is_repeat = isinstance(claim, AlreadyDone | AlreadyDead) and claim.message_id != delivery.message.message_id
        if claims is None or not is_repeat or (isinstance(outcome, Done) and not outcome.outputs):
            return outcome
        own = claims.repeat_key(key, delivery.message)
        kept = await claims.claim(own, delivery, alone=True)
        if isinstance(kept, Claimed):
            hold = ActiveClaim(own, kept.token)
            if isinstance(outcome, Dead):
                return await self._end(hold, delivery, slot, outcome)
            if isinstance(outcome, Done):
                return outcome if await self._store(hold, outcome.outputs, delivery, slot) else _STALE
            await self._release(hold)
        elif isinstance(kept, AlreadyDone | AlreadyDead):
            return self._dispositions.outcome_of_claim(delivery, kept)
        return outcome

    # The run.

    async def _run(  # noqa: C901, PLR0912 - one coroutine for what nearly every message goes through
        self, lane: Lane[Delivery], delivery: Accepted, slot: HandlerSlot, hold: ActiveClaim | None
    ) -> Outcome:
        """Run the handler of *delivery*, and return its outcome."""
        subscription, partition = delivery.subscription, delivery.partition
        started_s = self._clock.monotonic_s()
        remaining_s = delivery.ends_s - started_s + EXPIRED_S
        # The partition may be another worker's, which handles the next of the key. Or the message has expired while it
        # waited for the store or its turn.
        if (subscription.order == "key_strict" and partition.in_doubt()) or remaining_s <= 0:
            await self._release(hold)
            return RetryInLane(_AGAIN_S)
        if partition.draining or partition.closed:
            # The partition goes away: the message had to wait for its turn.
            await self._release(hold)
            return DROPPED
        if subscription.takes_steps:
            return await self._take_step(delivery, slot, hold)
        agreed: Proceed | None = None
        if self._desk is not None and (need := self._desk.need_of(delivery)) is not None:
            verdict = await self._ask_desk(self._desk, delivery, need, slot, hold)
            if not isinstance(verdict, Proceed):
                return verdict
            agreed = verdict
        # It is cut at the end of its life. The tolerance of clocks is no time to work in, but for one that comes late.
        timeout_s, left_s = self._plan.timeout_of(subscription), delivery.ends_s - started_s
        ends_s, deadline_s = (
            started_s + min(timeout_s, left_s),
            started_s + min(timeout_s, left_s if left_s > 0 else remaining_s),
        )
        run = RunLabels(delivery.message, self._publisher.sealer.admission, delivery.control.attempt + 1)
        run.place = slot
        given = None if agreed is None else agreed.given
        context = None
        if subscription.takes_context:
            context = self._context(delivery, slot, ends_s, hold, run=run, approval=given)
        arguments = (delivery.payload,) if context is None else (delivery.payload, context)
        outputs: Sequence[NewRecord] = ()
        try:
            try:
                present = CURRENT_RUN.set(run)
                returned = await slot.call(subscription.handler, arguments, deadline_s, delivery, kept=hold is not None)
            finally:
                run.over = True
                CURRENT_RUN.reset(present)
                self._has_run(delivery, slot, hold, context, started_s)
            reach("handled")
            if returned is None and subscription.must_answer:
                raise AnswerMissingError
            drafts = context.outputs if context is not None else ()
            if drafts or returned is not None:
                outputs = await self._seal(delivery.message, drafts, returned, hold, run)
            if agreed is not None and hold is not None:
                outputs = await self._consume(agreed, outputs, delivery, hold)
            keeps_steps = context is not None and context.remembered is not None and context.remembered.used
            if not outputs and not keeps_steps and self._store_later(hold, lane, delivery):
                return AWAIT_INBOX
            if hold is not None and not await self._store(hold, outputs, delivery, slot):
                return _STALE
            if keeps_steps:
                await self._forget_steps(hold)
        except Exception as error:  # noqa: BLE001 - any error of a handler is a decision about its message
            return await self._failed(hold, delivery, slot, error)
        return Done(outputs) if outputs else DONE

    async def _take_step(self, delivery: Accepted, slot: HandlerSlot, hold: ActiveClaim | None) -> Outcome:
        """Take the step of a process, and commit it together with the result of its event."""
        steps, claims, started_s = self._steps, self._claims, self._clock.monotonic_s()
        assert steps is not None and claims is not None and hold is not None  # noqa: S101, PT018 - an app with sagas has them

        async def run(method: Callable[..., Awaitable[Any]], arguments: tuple[Any, ...]) -> Any:
            now_s = self._clock.monotonic_s()
            deadline_s = now_s + min(CALL_S, delivery.ends_s - now_s + EXPIRED_S)
            return await slot.call(method, arguments, deadline_s, delivery, kept=True)

        try:
            with bound_contextvars(**log_ids(delivery.message, delivery.control.attempt + 1)):
                taken = await steps.take(delivery, run, partial(_begun_anew, claims, hold, delivery))
            if isinstance(taken, Dead):
                return await self._end(hold, delivery, slot, taken)
            if not isinstance(taken, StepTaken):
                if isinstance(taken, Done) and not isinstance(delivery.payload, WaitDue):
                    # Passed over for good.
                    return taken if await self._store(hold, (), delivery, slot) else _STALE
                if isinstance(taken, Done):
                    # A nudge that says nothing, early, late or forged, leaves no trace.
                    await claims.void(hold)
                else:
                    await self._release(hold)
                return taken
            await self._dispositions.check(taken.outputs)
            if not await self._store(hold, taken.outputs, delivery, slot):
                return _STALE
            reach("stepped")
        except Exception as error:  # noqa: BLE001 - any error of a step is a decision about its event
            return await self._failed(hold, delivery, slot, error)
        finally:
            self._has_run(delivery, slot, hold, None, started_s)
        return Done(taken.outputs) if taken.outputs else DONE

    async def _ask_desk(
        self, desk: ApprovalDesk, delivery: Accepted, need: Need, slot: HandlerSlot, hold: ActiveClaim | None
    ) -> Proceed | Outcome:
        """Ask whether *delivery*, which needs an approval, may run now; it is held where nobody has decided."""
        claims = self._claims
        assert claims is not None and hold is not None  # noqa: S101, PT018 - an app with approvals has them

        try:
            begin = partial(_begun_anew, claims, hold, delivery)
            verdict = await desk.judge(delivery, need, hold.key.idempotency_key, begin)
            if isinstance(verdict, Withheld):
                await self._dispositions.check(verdict.outputs)
                if not await claims.release_with(hold):
                    return _STALE
                reach("stepped")
            elif isinstance(verdict, Dead):
                return await self._end(hold, delivery, slot, verdict)
            elif not isinstance(verdict, Proceed):
                await self._release(hold)
        except Exception as error:  # noqa: BLE001 - any error is a decision about the message
            return await self._failed(hold, delivery, slot, error)
        return verdict

    async def _consume(
        self, agreed: Proceed, outputs: Sequence[NewRecord], delivery: Accepted, hold: ActiveClaim
    ) -> Sequence[NewRecord]:
        """Use up the approval in the transaction of the result; return what is sent with it."""
        assert self._desk is not None and self._claims is not None  # noqa: S101, PT018 - they gave it
        # The handler has ended, so that it may open no transaction any more; this one is the bus's.
        hold.over = False
        transaction = await self._claims.begin(hold, delivery.partition)
        hold.over = True
        if not await self._desk.consume(transaction, agreed):
            raise RetryLater("its approval has moved while it ran: the run does not count")
        return [*outputs, *self._desk.closed(agreed)]

    def _context(
        self,
        delivery: Accepted,
        slot: HandlerSlot,
        deadline_s: float,
        hold: ActiveClaim | None,
        *,
        run: RunLabels,
        approval: ApprovalGiven | None,
    ) -> Context:
        claims = self._claims
        return Context(
            delivery.message,
            attempt=delivery.control.attempt + 1,
            deadline_s=deadline_s,
            publisher=self._publisher,
            requests=self._requests,
            clock=self._clock,
            # Only a run that holds a claim can have the inbox's transaction.
            begin=None if hold is None or claims is None else partial(claims.begin, hold, delivery.partition),
            has_inbox=claims is not None,
            run=run,
            approval=approval,
            is_cancelled=partial(_is_cancelled, slot, delivery.message),
            step_store=None if hold is None or claims is None else partial(claims.steps_of, hold),
            version=self._plan.app_version,
            holds_writer=bool if hold is None or claims is None else partial(claims.holds_writer, hold),
        )

    def _has_run(
        self, delivery: Accepted, slot: HandlerSlot, hold: ActiveClaim | None, context: Context | None, started_s: float
    ) -> None:
        slot.seen_s = self._clock.monotonic_s()
        took_s = slot.seen_s - started_s
        timing = self._meters[delivery.label].handler_seconds
        timing.observe(took_s)
        if took_s > _SLOW_S and (trace := trace_of_parent(delivery.message.metadata.traceparent)) is not None:
            timing.mark(took_s, trace)
        if hold is not None:
            hold.over = True
        if context is not None:
            context.over = True

    async def _seal(
        self,
        message: Message,
        drafts: Sequence[Output],
        returned: object,
        hold: ActiveClaim | None,
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
        if hold is not None:
            await self._dispositions.check(outputs)
        return outputs

    # What it came to.

    def _outcome_of_failure(self, delivery: Accepted, error: Exception) -> Outcome:
        for policy in self._judges:
            if (outcome := policy.after_failure(delivery, error)) is not None:
                return outcome
        return self._dispositions.outcome_of_failure(delivery, error)

    def _store_later(self, hold: ActiveClaim | None, lane: Lane[Delivery], delivery: Accepted) -> bool:
        """Store a result without outputs while no slot waits; return False where that is not possible."""
        if hold is None or hold.transaction is not None or self._batches is None or self._exclusive.closed:
            return False
        self._learn(delivery, DONE)
        self._batches.finish(hold, lane, delivery)
        return True

    async def _store_again(
        self, hold: ActiveClaim, delivery: Accepted, slot: HandlerSlot, after: InboxError | None
    ) -> Outcome:
        """Retry storing a result that the inbox store refused or failed to store."""
        try:
            return DONE if await self._store(hold, (), delivery, slot, after) else _STALE
        except GaveUpError:
            await self._release(hold)
            return DROPPED

    async def _store(
        self,
        hold: ActiveClaim,
        outputs: Sequence[NewRecord],
        delivery: Delivery,
        slot: HandlerSlot,
        after: InboxError | None = None,
    ) -> bool:
        """Make the result durable; False where another result counts, another worker's or this message's own."""
        slot.release()
        assert self._claims is not None  # noqa: S101 - it gave the claim
        if not await self._claims.finish(hold, outputs, delivery, after=after):
            return False
        reach("inboxed")
        return True

    async def _forget_steps(self, hold: ActiveClaim | None) -> None:
        """Delete what the run has remembered: its result is durable. What stays is purged with the row."""
        if hold is not None and self._claims is not None:
            with contextlib.suppress(InboxError):
                await self._claims.forget_steps(hold)

    async def _release(self, hold: ActiveClaim | None) -> None:
        if hold is not None and self._claims is not None:
            await self._claims.release(hold)

    def _learn(self, delivery: Delivery, outcome: Outcome) -> None:
        for policy in self._learners:
            policy.after_run(delivery, outcome)

    def _wait(self, lane: Lane[Delivery], delivery: Delivery, wait_s: float) -> bool:
        """Make *lane* wait and try again here; drop *delivery* and return False where its partition has gone."""
        if delivery.partition.closed:
            self._dispositions.drop(delivery)
            return False
        if isinstance(delivery, Accepted):
            # The failed run may have changed its payload; the next run must start from the original.
            self._verification.read_again(delivery)
        self._timers.add(lane, wait_s)
        return True


async def _begun_anew(claims: InboxClient, hold: ActiveClaim, delivery: Accepted) -> Transaction:
    """Open the transaction of *hold*; one before was rolled back, because the process had moved."""
    hold.transaction = None
    return await claims.begin(hold, delivery.partition)


def _is_cancelled(slot: HandlerSlot, message: Message) -> bool:
    """Return whether the run of *message* in *slot* is cancelled.

    A context does not hold its delivery: an error with a cause would keep both until the garbage collector runs.
    """
    delivery = slot.delivery
    return isinstance(delivery, Accepted) and delivery.message is message and delivery.cancelled


def _id_of(delivery: Delivery) -> str | None:
    return None if delivery.message is None else delivery.message.message_id


def _late() -> Dead:
    error = ContractError("it was to wait beyond the end of its life", "/routing/expires_at", "expired")
    return refused(error)
