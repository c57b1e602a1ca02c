"""Execution: driving one lane's deliveries to their outcomes.

Owns the order in which a delivery is asked about, run and settled: its lifetime, what it depends on, the inbox, the
handler, its result. Each outcome is `consumers.settling.dispositions`', claims are `consumers.handling.claims`', slots
and deadlines `consumers.handling.slots`'.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Sequence
from functools import partial
from typing import Final

from bus.clock import Clock
from bus.errors import ContractError, InboxError
from bus.failpoints import reach
from bus.gates import EXPIRY_TOLERANCE_MS
from bus.protocol.reasons import gate_of
from bus.protocol.sealing import Message
from bus.telemetry.metrics import Metrics
from bus.transports.base import NewRecord
from consumers.context import Context
from consumers.crashes.crash_guard import Witness
from consumers.group_plan import Plan
from consumers.handler_errors import HandlerCutError
from consumers.handling.claim_batches import STALE_S, Parking
from consumers.handling.claims import Asked, Claims, Ended, Hold
from consumers.handling.exclusive import Solitude
from consumers.handling.slots import Runner
from consumers.inbox.base import Ask, Claimed, End, Suspect
from consumers.receiving.verification import Intake
from consumers.resilience.circuit_breaker import Dependencies
from consumers.resilience.failure_brake import Braking
from consumers.settling.dispositions import Outcomes
from consumers.settling.durable_append import GaveUpError
from consumers.settling.outputs import Output, seal_outputs
from consumers.state.delivery import Delivery
from consumers.state.in_flight import Flight
from consumers.state.lane_timers import Waiting
from consumers.state.lanes import Lane, Lanes
from producers.publisher import Publisher
from producers.requests.requester import Requests

__all__ = ["Contexts", "Execution"]

_FRESH_S, _MOMENT_S = 0.5, 0.01
_EXPIRED_S = EXPIRY_TOLERANCE_MS / 1000
"""So long after the end of its life a message is expired for certain."""
_AFTER_DONE: Final = frozenset({"lifetime", "policy"})
"""The gates that a message which is done is not asked."""
_PARKED: Final = math.inf
"""Instead of seconds to wait: the lane comes back when the inbox has answered."""


class Execution:
    """Drives lanes for one worker."""

    def __init__(
        self,
        plan: Plan,
        outcomes: Outcomes,
        *,
        publisher: Publisher,
        contexts: Contexts,
        intake: Intake,
        flight: Flight,
        lanes: Lanes[Delivery],
        clock: Clock,
        metrics: Metrics,
        waiting: Waiting,
        dependencies: Dependencies,
        braking: Braking,
        solitude: Solitude,
        claims: Claims | None,
        parking: Parking | None,
        witness: Witness,
    ) -> None:
        self._plan = plan
        self._outcomes = outcomes
        self._publisher = publisher
        self._contexts = contexts
        self._intake = intake
        self._flight = flight
        self._lanes = lanes
        self._clock = clock
        self._meters = metrics.meters(plan.group)
        self._waiting = waiting
        self._dependencies = dependencies
        self._braking = braking
        self._claims = claims
        self._solitude = solitude
        self._parking = parking
        self._witness = witness

    async def drive(self, lane: Lane[Delivery], runner: Runner) -> None:
        """Settle the head of *lane*, and those behind it while no other lane is ready."""
        delivery = lane.head
        while True:
            runner.delivery = delivery
            partition = delivery.partition
            wait_s = None
            try:
                if delivery.asked is not None:
                    wait_s = await self._go_on(lane, delivery.asked, runner)
                elif partition.draining or partition.closed:
                    self._flight.drop(delivery)
                elif delivery.refusal is None and delivery.requeue is None:
                    wait_s = await (self._instead(delivery) or self._handle(lane, runner))
                else:
                    wait_s = await self._turn_away(lane)
            except GaveUpError:
                self._flight.drop(delivery)
            if wait_s == _PARKED:
                return
            if wait_s is not None and self._waits(lane, wait_s):
                return
            # However it ended.
            self._dependencies.release(delivery.message)
            following = self._lanes.finish(lane)
            if following is None:
                return
            if self._lanes.ready or self._lanes.back or runner.aside:
                self._lanes.release(lane, following.priority)
                return
            delivery = following

    def _waits(self, lane: Lane[Delivery], wait_s: float) -> bool:
        """Have *lane* wait, to be tried again here; False for one whose partition has gone, and what waited for it with
        it."""
        if lane.head.partition.closed:
            self._flight.drop(lane.head)
            return False
        # The run that failed may have changed its payload, and the next one shall not begin in the middle.
        self._intake.read_anew(lane.head)
        self._waiting.add(lane, wait_s)
        return True

    async def _turn_away(self, lane: Lane[Delivery]) -> float | None:
        """Send its head back to its tier while it may wait there, and bury what was refused or would be due only after
        the end of its life."""
        delivery = lane.head
        if delivery.requeue is not None and delivery.message is not None and self._intake.remaining_s(delivery) > 0:
            if delivery.refusal is not None:
                await self._outcomes.pass_on(delivery, delivery.requeue)
            else:
                await self._outcomes.move(delivery, delivery.requeue, delivery.control)
        else:
            late = ContractError("it was to wait beyond the end of its life", "/routing/expires_at", "expired")
            return await self._refuse(delivery, delivery.refusal or late)
        return None

    async def _refuse(self, delivery: Delivery, error: ContractError) -> float | None:
        """Bury *delivery*, unless it is done: clocks and policies may have moved on since, and what it sent may not
        have left."""
        if self._claims is not None and gate_of(error.reason) in _AFTER_DONE:
            done = await self._claims.done_before(delivery)
            if done is not None:
                return await self._outcomes.repeat(delivery, self._claims.heard(done))
        await self._outcomes.refuse(delivery, error)
        return None

    def _instead(self, delivery: Delivery) -> Awaitable[float | None] | None:
        """What becomes of *delivery*, whose turn it is, where its handler is not to run now: seconds to wait, or None
        when it is settled."""
        message = delivery.message
        assert message is not None  # noqa: S101 - every gate passed
        if (self._witness.tolls or self._witness.orders) and (failure := self._witness.end_of(delivery)) is not None:
            return self._outcomes.bury(delivery, failure)
        now_s = self._clock.monotonic_s()
        if now_s - delivery.taken_s > _FRESH_S:
            # It passed the lifetime gate when it was taken; since then it has waited.
            try:
                self._intake.check_lifetime(delivery, message, self._clock.now_ms())
            except ContractError as error:
                return self._refuse(delivery, error)
            delivery.ends_s = now_s + self._intake.remaining_s(delivery)
        wait_s = self._braking.delay_s(delivery.label) if self._braking.enabled else 0.0
        if not wait_s and self._dependencies.any_down:
            # Last, for whoever gets 0 of it may be the one that tries for all, and must not sleep then.
            wait_s = self._dependencies.delay_s(message.message_type, message.message_id)
        return (
            self._outcomes.wait(delivery, min(wait_s, delivery.ends_s - now_s + _EXPIRED_S + _MOMENT_S))
            if wait_s
            else None
        )

    async def _go_on(self, lane: Lane[Delivery], asked: Ask | End, runner: Runner) -> float | None:
        """The inbox has answered: run it if nobody has, or insist where the store has failed."""
        delivery, claims = lane.head, self._claims
        delivery.asked = None
        delivery.partition.parked -= 1
        message, answer = delivery.message, asked.answer
        assert message is not None and claims is not None  # noqa: S101, PT018 - it was asked
        if isinstance(answer, Exception) and not isinstance(answer, InboxError):
            raise answer
        if isinstance(asked, Ended):
            return await self._insist(asked.hold, delivery, runner, answer if isinstance(answer, InboxError) else None)
        assert isinstance(asked, Asked)  # noqa: S101 - a lane waits for nothing else
        claim = asked.answer
        if claim is None or isinstance(claim, Exception):
            claim = await claims.claim(
                asked.key, delivery, message, after=answer if isinstance(answer, InboxError) else None
            )
        else:
            claims.heard(claim)
        if isinstance(claim, Claimed):
            return await self._handle(lane, runner, Hold(asked.key, claim.token, asked.identity))
        if isinstance(claim, Suspect):
            async with self._solitude.alone():
                claim = await claims.claim(asked.key, delivery, message, alone=True)
                if isinstance(claim, Claimed):
                    return await self._run(lane, runner, Hold(asked.key, claim.token, asked.identity))
        # It was let through as a probe, perhaps, and will not be one.
        self._dependencies.release(message)
        return await self._outcomes.repeat(delivery, claim)

    async def _handle(self, lane: Lane[Delivery], runner: Runner, hold: Hold | None = None) -> float | None:
        """`_run` beside others, after a claim where there is to be one: then it is _PARKED until it has that."""
        if (
            hold is None
            and self._parking is not None
            and self._claims is not None
            and (key := self._claims.key_of(lane.head)) is not None
        ):
            self._parking.ask(key, lane)
            return _PARKED
        if hold is None and self._witness.tolls and self._witness.is_suspect(lane.head):
            async with self._solitude.alone():
                return await self._run(lane, runner, None)
        if self._solitude.closed:
            await self._solitude.enter(alone=False)
        else:
            # Without a coroutine in between: most messages go this way.
            self._solitude.inside += 1
        try:
            return await self._run(lane, runner, hold)
        finally:
            self._solitude.leave(alone=False)

    async def _run(self, lane: Lane[Delivery], runner: Runner, hold: Hold | None) -> float | None:
        """Run the handler and settle the head of *lane*; seconds to wait instead, when it shall be tried again there,
        or _PARKED."""
        delivery = lane.head
        message, subscription = delivery.message, delivery.subscription
        assert message is not None and subscription is not None  # noqa: S101, PT018 - every gate passed
        started_s = self._clock.monotonic_s()
        remaining_s = delivery.ends_s - started_s + _EXPIRED_S
        # Whoever has gone on meanwhile may have handled the next of its key; or the store, or its turn, has let it wait
        # beyond its life.
        if (subscription.order == "key_strict" and delivery.partition.in_doubt()) or remaining_s <= 0:
            await self._release(hold)
            return _FRESH_S
        if delivery.partition.draining or delivery.partition.closed:
            # It had to wait for its turn.
            await self._let_go(delivery, hold)
            return None
        deadline_s = started_s + min(self._plan.timeout_of(subscription), remaining_s)
        context = self._contexts.of(message, delivery, deadline_s, hold) if subscription.takes_context else None
        arguments = (delivery.payload,) if context is None else (delivery.payload, context)
        outputs: Sequence[NewRecord] = ()
        try:
            try:
                returned = await runner.call(
                    subscription.handler, arguments, deadline_s, delivery, kept=hold is not None
                )
            finally:
                self._has_run(delivery, runner, hold, context, started_s)
            reach("handled")
            drafts = context.outputs if context is not None else ()
            if drafts or returned is not None:
                outputs = await self._sealed(message, drafts, returned, hold)
            if self._dependencies.any_down:
                self._dependencies.succeeded(message)
            if not outputs and self._parks(hold, lane):
                return _PARKED
            if hold is not None and not await self._finish(hold, outputs, delivery, runner):
                return STALE_S
        except (HandlerCutError, GaveUpError):
            await self._let_go(delivery, hold)
            return None
        except Exception as error:  # noqa: BLE001 - whatever a handler raises is a decision about its message
            await self._release(hold)
            return await self._outcomes.fail(delivery, message, subscription, error)
        if outputs:
            await self._outcomes.done(delivery, outputs)
        else:
            self._outcomes.succeeded(delivery)
        return None

    async def _sealed(
        self, message: Message, drafts: Sequence[Output], returned: object, hold: Hold | None
    ) -> Sequence[NewRecord]:
        """What a run sends, as records. What no topic takes is found out before a result is committed. Raises
        ContractError, PublishRejected."""
        outputs = [sealed.record for sealed in seal_outputs(self._publisher, message, drafts, returned)]
        if hold is not None:
            await self._outcomes.check(outputs)
        return outputs

    def _has_run(
        self, delivery: Delivery, runner: Runner, hold: Hold | None, context: Context | None, started_s: float
    ) -> None:
        runner.seen_s = self._clock.monotonic_s()
        self._meters[delivery.label].handler_seconds.observe(runner.seen_s - started_s)
        if hold is not None:
            hold.over = True
        if context is not None:
            context.over = True

    def _parks(self, hold: Hold | None, lane: Lane[Delivery]) -> bool:
        """Have a result without outputs made durable while nobody waits, if that can be."""
        if hold is None or hold.transaction is not None or self._parking is None or self._solitude.closed:
            return False
        self._parking.finish(hold, lane)
        return True

    async def _insist(self, hold: Hold, delivery: Delivery, runner: Runner, after: InboxError | None) -> float | None:
        """Its result was not to be made durable at first."""
        try:
            if not await self._finish(hold, (), delivery, runner, after):
                return STALE_S
        except GaveUpError:
            await self._let_go(delivery, hold)
            return None
        self._outcomes.succeeded(delivery)
        return None

    async def _finish(
        self,
        hold: Hold,
        outputs: Sequence[NewRecord],
        delivery: Delivery,
        runner: Runner,
        after: InboxError | None = None,
    ) -> bool:
        """Make the result durable; False when what counts is what stands in the inbox by now: another worker's, or this
        one's own."""
        runner.step_aside()
        assert self._claims is not None  # noqa: S101 - it gave the claim
        if not await self._claims.finish(hold, outputs, delivery, after=after):
            return False
        reach("inboxed")
        return True

    async def _let_go(self, delivery: Delivery, hold: Hold | None) -> None:
        """The next owner of the partition runs it."""
        await self._release(hold)
        self._flight.drop(delivery)

    async def _release(self, hold: Hold | None) -> None:
        if hold is not None and self._claims is not None:
            await self._claims.release(hold)


class Contexts:
    """Makes one for each run that takes one."""

    def __init__(self, *, publisher: Publisher, requests: Requests, clock: Clock, claims: Claims | None) -> None:
        self._publisher = publisher
        self._requests = requests
        self._clock = clock
        self._claims = claims

    def of(self, message: Message, delivery: Delivery, deadline_s: float, hold: Hold | None) -> Context:
        """The context of a run of *delivery*, which has *message*, until *deadline_s* of the clock."""
        return Context(
            message,
            attempt=delivery.control.attempt + 1,
            deadline_s=deadline_s,
            publisher=self._publisher,
            requests=self._requests,
            clock=self._clock,
            begin=None
            if hold is None or self._claims is None
            else partial(self._claims.begin, hold, delivery.partition),
            has_inbox=self._claims is not None,
        )
