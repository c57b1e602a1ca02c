"""Execution: driving one lane's deliveries to their outcomes.

Owns the order in which a delivery is asked about, run and settled: its lifetime, what it depends on, the inbox, the handler, its result. Each
outcome is `consumers.outcomes`', claims are `consumers.claims`', slots and deadlines `consumers.runners`'.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from bus.clock import Clock
from bus.errors import ContractError
from bus.failpoints import reach
from bus.gates import EXPIRY_TOLERANCE_MS
from bus.metrics import Metrics
from bus.sealing import Message
from bus.transports.base import NewRecord
from consumers.answers import seal_outputs
from consumers.app import Subscription
from consumers.braking import Braking
from consumers.claims import Claims
from consumers.context import Context
from consumers.deadletter import Failure
from consumers.delivery import Delivery
from consumers.dependencies import Dependencies
from consumers.flight import Flight
from consumers.inbox.base import Claimed, Conflict, CrashLoop, Done, Held, Key, Suspect, Transaction
from consumers.intake import Intake
from consumers.lanes import Lane, Lanes
from consumers.outcomes import Outcomes
from consumers.plan import Plan
from consumers.runners import HandlerCutError, Runner
from consumers.settlement import GaveUpError
from consumers.solitude import Solitude
from producers.publisher import Publisher
from producers.requests import Requests

__all__ = ["Execution"]

_FRESH_S = 0.5
_MOMENT_S = 0.01


class _Claim(msgspec.Struct):
    """What a run holds in the inbox."""

    key: Key
    token: int
    transaction: Transaction | None = None


class Execution:
    """Drives lanes for one worker; *wake* tells the runners that a lane has become ready."""

    def __init__(
        self,
        plan: Plan,
        outcomes: Outcomes,
        *,
        publisher: Publisher,
        requests: Requests,
        intake: Intake,
        flight: Flight,
        lanes: Lanes[Delivery],
        clock: Clock,
        metrics: Metrics,
        wake: Callable[[], None],
        dependencies: Dependencies,
        braking: Braking,
        claims: Claims | None,
    ) -> None:
        self._plan = plan
        self._outcomes = outcomes
        self._publisher = publisher
        self._requests = requests
        self._intake = intake
        self._flight = flight
        self._lanes = lanes
        self._clock = clock
        self._meters = metrics.meters(plan.group)
        self._wake = wake
        self._dependencies = dependencies
        self._braking = braking
        self._claims = claims
        self._solitude = Solitude()

    async def drive(self, lane: Lane[Delivery], runner: Runner) -> None:
        """Settle the head of *lane*, and those behind it while no other lane is ready."""
        delivery = lane.head
        while True:
            runner.delivery = delivery
            partition = delivery.partition
            wait_s = None
            try:
                if partition.draining or partition.closed:
                    self._flight.drop(delivery)
                elif delivery.refusal is None and delivery.requeue is None:
                    wait_s = await self._handle(delivery, runner)
                else:
                    wait_s = await self._turn_away(delivery, runner)
            except GaveUpError:
                self._flight.drop(delivery)
            if wait_s is not None:
                # To be tried again here; the lane waits meanwhile.
                self._clock.call_later(wait_s, lambda: self._ready(lane))
                return
            following = self._lanes.finish(lane)
            if following is None:
                return
            if self._lanes.ready or runner.aside:
                self._lanes.release(lane, following.priority)
                return
            delivery = following

    def _ready(self, lane: Lane[Delivery]) -> None:
        self._lanes.release(lane, lane.head.priority)
        self._wake()

    async def _turn_away(self, delivery: Delivery, runner: Runner) -> float | None:
        """Send *delivery* back to its tier while it may wait there, bury what was refused, and handle the rest after all."""
        if delivery.requeue is not None and self._may_wait(delivery):
            await self._outcomes.move(delivery, delivery.requeue, delivery.control)
        elif delivery.refusal is not None:
            await self._outcomes.refuse(delivery, delivery.refusal)
        else:
            return await self._handle(delivery, runner)
        return None

    def _may_wait(self, delivery: Delivery) -> bool:
        return delivery.message is not None and self._intake.remaining_s(delivery) > 0

    async def _handle(self, delivery: Delivery, runner: Runner) -> float | None:
        """Run the handler and settle *delivery*; seconds to wait in the lane instead, when it shall be tried again there."""
        message, subscription = delivery.message, delivery.subscription
        assert message is not None and subscription is not None  # noqa: S101, PT018 - every gate passed
        if self._clock.monotonic_s() - delivery.taken_s > _FRESH_S:
            # It passed the lifetime gate when it was taken; since then it has waited.
            try:
                self._intake.check_lifetime(delivery, message, self._clock.now_ms())
            except ContractError as error:
                await self._outcomes.refuse(delivery, error)
                return None
        if self._dependencies.any_down and (wait_s := self._dependencies.delay_s(message.message_type, message.message_id)):
            return await self._outcomes.wait(delivery, min(wait_s, self._left_s(delivery) + _MOMENT_S))
        if self._braking.enabled and (wait_s := self._braking.delay_s(delivery.label)):
            return await self._outcomes.wait(delivery, min(wait_s, self._left_s(delivery) + _MOMENT_S))
        if self._claims is not None and (key := self._claims.key_of(message, subscription)) is not None:
            return await self._claim(key, delivery, message, subscription, runner)
        if self._solitude.closed:
            return await self._run_beside(delivery, message, subscription, runner, None)
        # The same without a coroutine in between: most messages go this way.
        self._solitude.inside += 1
        try:
            return await self._run(delivery, message, subscription, runner, None)
        finally:
            self._solitude.leave(alone=False)

    def _left_s(self, delivery: Delivery) -> float:
        """Seconds after which it is expired for certain."""
        return self._intake.remaining_s(delivery) + EXPIRY_TOLERANCE_MS / 1000

    async def _claim(self, key: Key, delivery: Delivery, message: Message, subscription: Subscription, runner: Runner) -> float | None:
        """Run it if nobody has, alone where it may be deadly; else do again what was done then."""
        claims = self._claims
        assert claims is not None  # noqa: S101 - it gave the key
        answer = await claims.claim(key, delivery, message)
        if isinstance(answer, Claimed):
            return await self._run_beside(delivery, message, subscription, runner, _Claim(key, answer.token))
        if isinstance(answer, Suspect):
            await self._solitude.enter(alone=True)
            try:
                answer = await claims.claim(key, delivery, message, alone=True)
                if isinstance(answer, Claimed):
                    return await self._run(delivery, message, subscription, runner, _Claim(key, answer.token))
            finally:
                self._solitude.leave(alone=True)
        # It was let through as a probe, perhaps, and will not be one.
        self._dependencies.release(message.message_id)
        match answer:
            case Done(outputs=outputs):
                await self._outcomes.done(delivery, outputs)
            case Held(wait_s=wait_s):
                return await self._outcomes.wait(delivery, wait_s)
            case Conflict(content_hash=first):
                text = f"its idempotency key was used for other content, {first}"
                await self._outcomes.refuse(delivery, ContractError(text, "/routing/idempotency_key", "idempotency_conflict"))
            case CrashLoop(deaths=deaths):
                text = f"{deaths} workers died while they ran it alone"
                await self._outcomes.bury(delivery, Failure(reason="crash_loop", error="CrashLoop", text=text))
        return None

    async def _run_beside(
        self, delivery: Delivery, message: Message, subscription: Subscription, runner: Runner, claim: _Claim | None
    ) -> float | None:
        if self._solitude.closed:
            await self._solitude.enter(alone=False)
        else:
            self._solitude.inside += 1
        try:
            return await self._run(delivery, message, subscription, runner, claim)
        finally:
            self._solitude.leave(alone=False)

    async def _run(self, delivery: Delivery, message: Message, subscription: Subscription, runner: Runner, claim: _Claim | None) -> float | None:
        if delivery.partition.draining or delivery.partition.closed:
            # It had to wait for its turn.
            await self._let_go(delivery, message, claim)
            return None
        started_s = self._clock.monotonic_s()
        remaining_s = self._left_s(delivery)
        if remaining_s <= 0:
            # The store, or its turn, has let it wait beyond its life: back to the gate.
            await self._release(claim)
            return _FRESH_S
        deadline_s = started_s + min(subscription.timeout_s or self._plan.timeout_s, remaining_s)
        context: Context | None = None
        arguments: tuple[Any, ...] = (delivery.payload,)
        if subscription.takes_context:
            context = self._context(message, delivery, deadline_s, claim)
            arguments = (delivery.payload, context)
        outputs: Sequence[NewRecord] = ()
        try:
            try:
                returned = await runner.call(subscription.handler, arguments, deadline_s)
            finally:
                runner.seen_s = self._clock.monotonic_s()
                self._meters[delivery.label].handler_seconds.observe(runner.seen_s - started_s)
            reach("handled")
            drafts = context.outputs if context is not None else ()
            if drafts or returned is not None:
                outputs = [sealed.record for sealed in seal_outputs(self._publisher, message, drafts, returned)]
            if claim is not None and not await self._finish(claim, outputs, delivery, runner):
                self._dependencies.succeeded(message.message_id)
                return _MOMENT_S
        except (HandlerCutError, GaveUpError):
            await self._let_go(delivery, message, claim)
            return None
        except Exception as error:  # noqa: BLE001 - whatever a handler raises is a decision about its message
            await self._release(claim)
            return await self._outcomes.fail(delivery, message, subscription, error)
        if self._dependencies.any_down:
            self._dependencies.succeeded(message.message_id)
        if outputs:
            await self._outcomes.done(delivery, outputs)
        else:
            self._outcomes.succeeded(delivery)
        return None

    def _context(self, message: Message, delivery: Delivery, deadline_s: float, claim: _Claim | None) -> Context:
        return Context(
            message,
            attempt=delivery.control.attempt + 1,
            deadline_s=deadline_s,
            publisher=self._publisher,
            requests=self._requests,
            clock=self._clock,
            begin=lambda: self._begin(claim),
        )

    async def _finish(self, claim: _Claim, outputs: Sequence[NewRecord], delivery: Delivery, runner: Runner) -> bool:
        """Make the result durable; False when another worker has taken the claim over: what counts is what that one makes of it."""
        runner.step_aside()
        assert self._claims is not None  # noqa: S101 - it gave the claim
        if not await self._claims.finish(claim.key, claim.token, outputs, claim.transaction, delivery.partition):
            return False
        reach("inboxed")
        return True

    async def _let_go(self, delivery: Delivery, message: Message, claim: _Claim | None) -> None:
        """The next owner of the partition runs it."""
        self._dependencies.release(message.message_id)
        await self._release(claim)
        self._flight.drop(delivery)

    async def _begin(self, claim: _Claim | None) -> Transaction:
        if claim is None or self._claims is None:
            raise ContractError(
                "there is no transaction without an inbox: this message has no idempotency key (dedup='always' needs none), or inbox.url is off",
                "/routing/idempotency_key",
            )
        if claim.transaction is None:
            claim.transaction = await self._claims.begin()
        return claim.transaction

    async def _release(self, claim: _Claim | None) -> None:
        if claim is not None and self._claims is not None:
            await self._claims.release(claim.key, claim.token, claim.transaction)
