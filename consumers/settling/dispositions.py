"""Outcomes: what becomes of one delivery, made durable and counted.

Owns the four ends of a run: done with its outputs sent, tried again in its lane or a tier, dead with its requester
told, or turned away before it ran. The decision about a failure is `consumers.resilience.retry`'s, durability
`consumers.settling.durable_append`'s, running handlers `consumers.handling.executor`'s.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import msgspec

from bus.clock import Clock, Ration
from bus.errors import (
    BusError,
    ContractError,
    DependencyDown,
    HandlerError,
    RecordTooLargeError,
    SettingMissing,
    SigningError,
    text_of,
)
from bus.failpoints import reach
from bus.protocol.sealing import Message
from bus.telemetry.logs import get_logger
from bus.telemetry.metrics import Metrics
from bus.topics.names import retry_topic
from bus.transports.base import Admin, NewRecord
from consumers.deadletters.records import Control, Failure, reappend
from consumers.declaration import Subscription
from consumers.group_plan import Plan
from consumers.handler_errors import HandlerTimeoutError
from consumers.inbox.base import Claim, Conflict, CrashLoop, Done, Held
from consumers.receiving.verification import Intake
from consumers.resilience.circuit_breaker import Dependencies
from consumers.resilience.failure_brake import Braking
from consumers.resilience.retry import Decision, Die, Tier, WaitInLane, decide
from consumers.settling.durable_append import Settlement
from consumers.settling.late_answers import LateAnswers
from consumers.settling.outputs import made_out_to, report_of, wants_report
from consumers.state.delivery import Delivery
from consumers.state.in_flight import Flight
from producers.outcomes import PublishRejected
from producers.publisher import Publisher

__all__ = ["Outcomes"]

_TRACES, _TRACES_EVERY_S = 20, 10.0

_log = get_logger("handler")


class Outcomes:
    """Settles the deliveries of one group."""

    def __init__(
        self,
        plan: Plan,
        *,
        admin: Admin,
        publisher: Publisher,
        settlement: Settlement,
        intake: Intake,
        flight: Flight,
        clock: Clock,
        metrics: Metrics,
        dependencies: Dependencies,
        braking: Braking,
        late: LateAnswers,
        randomness: Callable[[], float] = random.random,
    ) -> None:
        self._plan = plan
        self._admin = admin
        self._counts: dict[str, int] = {}
        """Partitions of tiers, which only ever become more."""
        self._publisher = publisher
        self._settlement = settlement
        self._intake = intake
        self._flight = flight
        self._clock = clock
        self._metrics = metrics
        self._dependencies = dependencies
        self._braking = braking
        self._late = late
        self._randomness = randomness
        self._traces = Ration(clock, most=_TRACES, every_s=_TRACES_EVERY_S)

    async def check(self, outputs: Sequence[NewRecord]) -> None:
        """Raise ContractError where the log would never take one of *outputs*."""
        await self._settlement.check(outputs)

    async def done(self, delivery: Delivery, outputs: Sequence[NewRecord]) -> None:
        """The handler went through, now or the first time: *outputs* leave, and the message is done."""
        try:
            if outputs:
                undecided = await self._send(outputs, delivery)
                reach("sent")
                if undecided:
                    self._late.add(delivery, undecided, lambda: self.succeeded(delivery))
                    return
        except RecordTooLargeError as error:
            text = f"its output is too large for the log: {error}"
            await self.bury(delivery, Failure(reason="rejected", error=type(error).__name__, text=text))
            return
        self.succeeded(delivery)

    def succeeded(self, delivery: Delivery) -> None:
        """It is done, and there is nothing to send."""
        self._flight.done(delivery)
        if self._braking.enabled:
            self._braking.done(delivery.label)
        reach("settled")

    async def repeat(self, delivery: Delivery, answer: Claim) -> float | None:
        """Nothing is to be run: do again what was done then, or what else the inbox's *answer* says; seconds to wait in
        the lane, or None."""
        match answer:
            case Done(outputs=outputs):
                return await self._done_before(delivery, outputs)
            case Held(wait_s=wait_s):
                return await self.wait(delivery, wait_s)
            case Conflict(content_hash=first):
                text = f"its idempotency key was used for other content, {first}"
                await self.refuse(delivery, ContractError(text, "/routing/idempotency_key", "idempotency_conflict"))
            case CrashLoop(deaths=deaths):
                text = f"{deaths} workers died while they ran it alone"
                await self.bury(delivery, Failure(reason="crash_loop", error="CrashLoop", text=text))
        return None

    async def _done_before(self, delivery: Delivery, outputs: Sequence[NewRecord]) -> float | None:
        message, subscription = delivery.message, delivery.subscription
        assert message is not None and subscription is not None  # noqa: S101, PT018 - every gate passed
        try:
            outputs = made_out_to(self._publisher, message, outputs)
        except (ContractError, SigningError) as error:
            return await self.fail(delivery, message, subscription, error)
        await self.done(delivery, outputs)
        return None

    async def wait(self, delivery: Delivery, wait_s: float) -> float | None:
        """Wait for something outside, without using an attempt: in the lane, or again in the tier it came from, whose
        head it must not block."""
        if delivery.partition.tier is None:
            return wait_s
        await self.move(delivery, delivery.partition.tier, delivery.control)
        return None

    async def _send(self, outputs: Sequence[NewRecord], delivery: Delivery) -> Sequence[NewRecord]:
        started_s = self._clock.monotonic_s()
        undecided = await self._settlement.send(outputs, delivery.partition)
        elapsed_s = self._clock.monotonic_s() - started_s
        for record in outputs:
            label = self._plan.view.registry.label(
                next((value.decode() for name, value in record.headers if name == "sb-type"), "")
            )
            self._metrics.accepted(label).count += 1
            self._metrics.publish_seconds.of(label).observe(elapsed_s)
        return undecided

    async def fail(
        self, delivery: Delivery, message: Message, subscription: Subscription, error: Exception
    ) -> float | None:
        """A run ended with *error*: try again in the lane after the seconds answered, or None when that is settled
        elsewhere."""
        attempt = delivery.control.attempt + 1
        if (breach := _breaks_contract(error)) is not None and breach.reason == "signature_missing":
            # No sender is to blame for it, and no repetition would help before the setting is there.
            error = SettingMissing("signer", breach.text)
        if isinstance(error, DependencyDown):
            wait_s = self._dependencies.blame(error, message.message_type, message.message_id)
            if wait_s is not None:
                return await self.wait(delivery, wait_s)
        else:
            self._dependencies.release(message)
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
            why = text_of(error)
            text = why if why == decision.text else f"{decision.text}: {why}"
            failure = Failure(
                reason=decision.reason,
                error=type(error).__name__,
                text=text,
                pointer=_pointer_of(error),
                exception=error,
            )
            await self.bury(delivery, failure)
            return None
        # Said only where the tier alone would let it go too early: it is this machine's clock, and that may jump.
        due_ms = now_ms + round(decision.delay_s * 1000) if decision.delay_s > decision.tier.delay_s else 0
        await self.move(delivery, decision.tier, msgspec.structs.replace(control, not_before_ms=due_ms))
        return None

    def _decide(
        self, delivery: Delivery, message: Message, subscription: Subscription, error: Exception, attempt: int
    ) -> Decision:
        if _breaks_contract(error) is not None:
            # What a handler wants to send, and no receiver would take, can't be sent by any repetition.
            return Die("rejected", "what it sends or asks for is refused")
        return decide(
            error,
            attempt=attempt,
            policy=subscription.retry or self._plan.retry,
            asked=message.routing.retry,
            # A failing message that must hold its key waits where it is, however long.
            tiers=() if subscription.order == "key_strict" else self._plan.tiers,
            remaining_s=self._intake.remaining_s(delivery),
            randomness=self._randomness(),
        )

    async def pass_on(self, delivery: Delivery, tier: Tier) -> None:
        """Append *delivery*, whose type is unknown here, to the next partition of *tier*: it may be a worker's that
        knows it.

        In the one of its key it would come back here until it expires. The next, and not any: what was passed on twice
        stays together.
        """
        topic = retry_topic(self._plan.namespace, self._plan.group, tier.name)
        if topic not in self._counts:
            with contextlib.suppress(BusError):
                self._counts[topic] = len(await self._admin.ranges(topic))
        count = self._counts.get(topic)
        await self.move(delivery, tier, delivery.control, (delivery.record.partition + 1) % count if count else None)

    async def move(self, delivery: Delivery, tier: Tier, control: Control, partition: int | None = None) -> None:
        """Append *delivery* to *tier*, to the *partition* of its key unless one is given."""
        topic = retry_topic(self._plan.namespace, self._plan.group, tier.name)
        try:
            await self._settlement.send([reappend(delivery.record, control, topic, partition)], delivery.partition)
        except RecordTooLargeError as error:
            failure = Failure(reason="retries_exhausted", error=type(error).__name__, text=f"tier {tier.name}: {error}")
            await self.bury(delivery, failure)
            return
        reach("retried")
        self._flight.moved(delivery, tier.name)
        reach("settled")

    async def refuse(self, delivery: Delivery, error: ContractError) -> None:
        """A gate has refused *delivery*."""
        await self.bury(
            delivery, Failure(reason=error.reason, error=type(error).__name__, text=error.text, pointer=error.pointer)
        )

    async def bury(self, delivery: Delivery, failure: Failure) -> None:
        """*delivery* dies, and its requester is told."""
        await self._settlement.bury(delivery, failure)
        reach("buried")
        undecided = await self._report(delivery, failure)
        if undecided:
            self._late.add(delivery, undecided, lambda: self._died(delivery, failure))
        else:
            self._died(delivery, failure)

    def _died(self, delivery: Delivery, failure: Failure) -> None:
        self._flight.dead(delivery, failure.reason)
        self._braking.dead(delivery.label, failure.reason)
        reach("settled")

    async def _report(self, delivery: Delivery, failure: Failure) -> Sequence[NewRecord]:
        """Tell the requester, where there is one; what may find its place only in a moment comes back."""
        message = delivery.message
        if message is None or not wants_report(message, failure.reason):
            return ()
        try:
            make = partial(report_of, self._publisher, message, failure.reason, self._plan.agent_id)
            # When its life is over nobody waits for the report any more.
            sealed = await self._settlement.seal(make, delivery.partition, within_s=self._intake.remaining_s(delivery))
            undecided = await self._settlement.send([sealed.record], delivery.partition)
            reach("reported")
        except (PublishRejected, RecordTooLargeError) as error:
            _log.warning("message.report_refused", message_id=message.message_id, error=str(error))
            return ()
        return undecided

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
            # The trace once a message; its repetitions get a line, and so do those of a flood: a trace takes as long as
            # many messages.
            _log.warning(
                "handler.failed", again_in_s=again_in_s, exc_info=error if self._traces.take() else None, **facts
            )


def _breaks_contract(error: BaseException) -> ContractError | None:
    """The breach of the contract behind *error*: a payload or options that receivers would refuse. None for a log that
    failed."""
    cause = error.__cause__ if isinstance(error, PublishRejected) else error
    return cause if isinstance(cause, ContractError) else None


def _pointer_of(error: BaseException) -> str:
    breach = _breaks_contract(error)
    return breach.pointer if breach is not None else ""
