"""Execution: driving one lane's deliveries to their outcomes.

Owns the path from a judged delivery to a durable outcome: run the handler, send its outputs, or retry, or bury. The decision about a failure is
`consumers.retry`'s, durability `consumers.settlement`'s, slots and deadlines `consumers.runners`'s.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from bus.clock import Clock
from bus.errors import BusError, ContractError, DependencyDown, HandlerError, PublishRejected, RecordTooLargeError, TopicMissingError, text_of
from bus.gates import EXPIRY_TOLERANCE_MS
from bus.logs import get_logger
from bus.metrics import Metrics
from bus.sealing import Message
from bus.topics import retry_topic
from consumers.answers import report_of, seal_outputs, wants_report
from consumers.app import Subscription
from consumers.context import Context
from consumers.deadletter import Control, Failure, reappend
from consumers.delivery import Delivery
from consumers.dependencies import Dependencies
from consumers.flight import Flight
from consumers.intake import Intake
from consumers.lanes import Lane, Lanes
from consumers.plan import Plan
from consumers.retry import Decision, Die, Tier, WaitInLane, decide, effective
from consumers.runners import HandlerCutError, HandlerTimeoutError, Runner
from consumers.settlement import GaveUpError, Settlement
from producers.publisher import Publisher, Sealed
from producers.requests import Requests

__all__ = ["Execution"]

_log = get_logger("handler")
_FRESH_S = 0.5
_MOMENT_S = 0.01


class Execution:
    """Drives lanes for one worker; *wake* tells the runners that a lane has become ready."""

    def __init__(
        self,
        plan: Plan,
        *,
        publisher: Publisher,
        requests: Requests,
        settlement: Settlement,
        intake: Intake,
        flight: Flight,
        lanes: Lanes[Delivery],
        clock: Clock,
        metrics: Metrics,
        wake: Callable[[], None],
        dependencies: Dependencies,
        randomness: Callable[[], float] = random.random,
    ) -> None:
        self._plan = plan
        self._publisher = publisher
        self._requests = requests
        self._settlement = settlement
        self._intake = intake
        self._flight = flight
        self._lanes = lanes
        self._clock = clock
        self._metrics = metrics
        self._meters = metrics.meters(plan.group)
        self._wake = wake
        self._dependencies = dependencies
        self._randomness = randomness

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
            if self._lanes.ready:
                self._lanes.release(lane, following.priority)
                return
            delivery = following

    def _ready(self, lane: Lane[Delivery]) -> None:
        self._lanes.release(lane, lane.head.priority)
        self._wake()

    async def _turn_away(self, delivery: Delivery, runner: Runner) -> float | None:
        """Send *delivery* back to its tier while it may wait there, bury what was refused, and handle the rest after all."""
        if delivery.requeue is not None and self._may_wait(delivery):
            await self._move(delivery, delivery.requeue, delivery.control)
        elif delivery.refusal is not None:
            await self._refuse(delivery, delivery.refusal)
        else:
            return await self._handle(delivery, runner)
        return None

    def _may_wait(self, delivery: Delivery) -> bool:
        return delivery.message is not None and self._intake.remaining_s(delivery) > 0

    async def _handle(self, delivery: Delivery, runner: Runner) -> float | None:
        """Run the handler and settle *delivery*; seconds to wait in the lane instead, when it shall be tried again there."""
        message, subscription = delivery.message, delivery.subscription
        assert message is not None and subscription is not None  # noqa: S101, PT018 - every gate passed
        started_s = self._clock.monotonic_s()
        if started_s - delivery.taken_s > _FRESH_S:
            # It passed the lifetime gate when it was taken; since then it has waited.
            try:
                self._intake.check_lifetime(delivery, message, self._clock.now_ms())
            except ContractError as error:
                await self._refuse(delivery, error)
                return None
        remaining_s = self._intake.remaining_s(delivery) + EXPIRY_TOLERANCE_MS / 1000
        if wait_s := self._dependencies.delay_s(message.message_type, message.message_id):
            return await self._wait(delivery, min(wait_s, remaining_s + _MOMENT_S))
        deadline_s = started_s + min(subscription.timeout_s or self._plan.timeout_s, remaining_s)
        context: Context | None = None
        arguments: tuple[Any, ...] = (delivery.payload,)
        if subscription.takes_context:
            attempt = delivery.control.attempt + 1
            context = Context(
                message, attempt=attempt, deadline_s=deadline_s, publisher=self._publisher, requests=self._requests, clock=self._clock
            )
            arguments = (delivery.payload, context)
        try:
            try:
                returned = await runner.call(subscription.handler, arguments, deadline_s)
            finally:
                runner.seen_s = self._clock.monotonic_s()
                self._meters[delivery.label].handler_seconds.observe(runner.seen_s - started_s)
            drafts = context.outputs if context is not None else ()
            outputs = seal_outputs(self._publisher, message, drafts, returned) if drafts or returned is not None else ()
        except HandlerCutError:
            self._dependencies.release(message.message_id)
            self._flight.drop(delivery)
            return None
        except Exception as error:  # noqa: BLE001 - whatever a handler raises is a decision about its message
            return await self._fail(delivery, message, subscription, error)
        self._dependencies.succeeded(message.message_id)
        try:
            if outputs:
                await self._send(outputs, delivery)
        except RecordTooLargeError as error:
            text = f"its output is too large for the log: {error}"
            await self._bury(delivery, Failure(reason="rejected", error=type(error).__name__, text=text))
            return None
        except TopicMissingError as error:
            # Whoever could be told of it would be told in that very topic.
            failure = Failure(reason="rejected", error=type(error).__name__, text=f"nobody reads its answer: {error}")
            await self._settlement.bury(delivery, failure)
            self._flight.dead(delivery, failure.reason)
            return None
        self._flight.done(delivery)
        return None

    async def _wait(self, delivery: Delivery, wait_s: float) -> float | None:
        """Wait for a dependency, without using an attempt: in the lane, or once more in the tier it came from, whose head it must not block."""
        if delivery.partition.tier is None:
            return wait_s
        await self._move(delivery, delivery.partition.tier, delivery.control)
        return None

    async def _send(self, outputs: Sequence[Sealed], delivery: Delivery) -> None:
        started_s = self._clock.monotonic_s()
        await self._settlement.send([sealed.record for sealed in outputs], delivery.partition)
        elapsed_s = self._clock.monotonic_s() - started_s
        for sealed in outputs:
            self._metrics.accepted(sealed.message_type).inc()
            self._metrics.publish_seconds.labels(sealed.message_type).observe(elapsed_s)

    async def _fail(self, delivery: Delivery, message: Message, subscription: Subscription, error: Exception) -> float | None:
        attempt = delivery.control.attempt + 1
        if isinstance(error, DependencyDown):
            wait_s = self._dependencies.blame(error, message.message_type, message.message_id)
            if wait_s is not None:
                return await self._wait(delivery, wait_s)
        else:
            self._dependencies.release(message.message_id)
        decision = self._decide(delivery, message, subscription, error, attempt)
        self._log_failure(delivery, error, attempt, decision)
        now_ms = self._clock.now_ms()
        control = msgspec.structs.replace(
            delivery.control,
            attempt=attempt,
            error=type(error).__name__,
            first_failed_at_ms=delivery.control.first_failed_at_ms or now_ms,
        )
        delivery.control = control
        if isinstance(decision, WaitInLane):
            self._metrics.retried.labels(delivery.label, self._plan.group, "lane").inc()
            return decision.delay_s
        if isinstance(decision, Die):
            text = f"{decision.text}: {text_of(error)}"
            failure = Failure(reason=decision.reason, error=type(error).__name__, text=text, pointer=_pointer_of(error), exception=error)
            await self._bury(delivery, failure)
            return None
        due_ms = now_ms + round(decision.delay_s * 1000)
        await self._move(delivery, decision.tier, msgspec.structs.replace(control, not_before_ms=due_ms))
        return None

    def _decide(self, delivery: Delivery, message: Message, subscription: Subscription, error: Exception, attempt: int) -> Decision:
        if _breaks_contract(error) is not None:
            # What a handler wants to send, and no receiver would take, can't be sent by any repetition.
            return Die("rejected", "its output was refused")
        return decide(
            error,
            attempt=attempt,
            policy=effective(subscription.retry or self._plan.retry, message.routing.retry),
            tiers=self._plan.tiers,
            remaining_s=self._intake.remaining_s(delivery),
            randomness=self._randomness(),
        )

    async def _move(self, delivery: Delivery, tier: Tier, control: Control) -> None:
        topic = retry_topic(self._plan.namespace, self._plan.group, tier.name)
        try:
            await self._settlement.send([reappend(delivery.record, control, topic)], delivery.partition)
        except RecordTooLargeError as error:
            failure = Failure(reason="retries_exhausted", error=type(error).__name__, text=f"tier {tier.name}: {error}")
            await self._bury(delivery, failure)
            return
        self._flight.moved(delivery, tier.name)

    async def _refuse(self, delivery: Delivery, error: ContractError) -> None:
        await self._bury(delivery, Failure(reason=error.reason, error=type(error).__name__, text=error.text, pointer=error.pointer))

    async def _bury(self, delivery: Delivery, failure: Failure) -> None:
        await self._settlement.bury(delivery, failure)
        await self._report(delivery, failure)
        self._flight.dead(delivery, failure.reason)

    async def _report(self, delivery: Delivery, failure: Failure) -> None:
        """Tell the requester, where there is one."""
        message = delivery.message
        if message is None or not wants_report(message, failure.reason):
            return
        try:
            sealed = report_of(self._publisher, message, failure.reason, self._plan.agent_id)
            await self._settlement.send([sealed.record], delivery.partition)
        except (PublishRejected, RecordTooLargeError, TopicMissingError) as error:
            _log.warning("message.report_refused", message_id=message.message_id, error=str(error))

    def _log_failure(self, delivery: Delivery, error: Exception, attempt: int, decision: Decision) -> None:
        message_id = delivery.message.message_id if delivery.message else None
        facts: dict[str, Any] = {
            "message_id": message_id,
            "type": delivery.label,
            "attempt": attempt,
            "error": f"{type(error).__name__}: {text_of(error)}"[:300],
        }
        again_in_s = None if isinstance(decision, Die) else round(decision.delay_s, 2)
        if isinstance(error, HandlerError | HandlerTimeoutError | BusError) or attempt > 1:
            _log.warning("handler.failed", again_in_s=again_in_s, **facts)
        else:
            # The trace once a message; its repetitions get a line.
            _log.warning("handler.failed", again_in_s=again_in_s, exc_info=error, **facts)


def _breaks_contract(error: BaseException) -> ContractError | None:
    """The breach of the contract behind *error*: a payload or options that receivers would refuse. None for a log that failed."""
    cause = error.__cause__ if isinstance(error, PublishRejected) else error
    return cause if isinstance(cause, ContractError) else None


def _pointer_of(error: BaseException) -> str:
    breach = _breaks_contract(error)
    return breach.pointer if breach is not None else ""
