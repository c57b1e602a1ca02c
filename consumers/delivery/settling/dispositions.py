"""Dispositions: decides outcomes from claims and failures, and carries them out.

Owns making an outcome durable and counted: done with outputs sent, retried in its lane or a tier, or dead with a
report. The retry schedule is in `consumers.delivery.resilience.retry`, durable appends in
`consumers.delivery.settling.durable_append`, running handlers in `consumers.delivery.handling.executor`.
"""

from __future__ import annotations

import math
import random
from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

import msgspec

from bus import failpoints
from bus.clock import Clock, Ration
from bus.errors import (
    BusError,
    ContractError,
    HandlerError,
    KeyRefusedError,
    MissingSetting,
    RecordTooLargeError,
    SigningError,
    text_of,
)
from bus.protocol.sealing import Message
from bus.telemetry.logs import get_logger, says_all
from bus.telemetry.metrics import PublishMetrics
from bus.topics.names import message_topic, retry_topic
from bus.transports.base import NewRecord
from consumers.deadletters.records import Control, Failure, reappend
from consumers.delivery.group_plan import GroupPlan
from consumers.delivery.handler_errors import HandlerTimeoutError, TaskCancelled, breach_of
from consumers.delivery.inbox.base import AlreadyDead, AlreadyDone, Claim, ClaimedElsewhere, Conflict, KeepsCrashing
from consumers.delivery.receiving.verification import RecordVerifier
from consumers.delivery.resilience.retry import (
    LANE_LIMIT_S,
    Die,
    RetryDecision,
    Tier,
    WaitInLane,
    WaitInTier,
    decide_retry,
    next_tier,
    tier_within,
)
from consumers.delivery.settling.durable_append import DurableAppender
from consumers.delivery.settling.late_answers import LateAnswers
from consumers.delivery.settling.outcome import (
    CANCELLED,
    AwaitInbox,
    Dead,
    Done,
    Dropped,
    MoveToTier,
    Outcome,
    PassOn,
    RetryInLane,
    Skipped,
    Withheld,
)
from consumers.delivery.settling.outputs import made_out_to, report_of, wants_report
from consumers.delivery.state.delivery import Accepted, Delivery
from consumers.delivery.state.in_flight import InFlight
from producers.outcomes import PublishRejected
from producers.publisher import Publisher

__all__ = ["Dispositions", "blamed", "refused", "wait_in_tiers", "wait_outside"]

_SAME_TRACE_S: Final = 60.0
_MAX_LOCATIONS: Final = 1_000
_TRACES, _TRACES_EVERY_S = 20, 10.0

_ASKED_AGAIN_S = 30.0
_SOON_S: Final = 1.0
_MAX_TOLD: Final = 10_000
_MAX_SENT: Final = 256
_LAST_S: Final = 1.2
_log = get_logger("handler")


class Dispositions:
    """Decides and carries out outcomes for the deliveries of one group."""

    def __init__(
        self,
        plan: GroupPlan,
        *,
        publisher: Publisher,
        appender: DurableAppender,
        verification: RecordVerifier,
        in_flight: InFlight,
        late: LateAnswers,
        has_room: Callable[[], bool],
        randomness: Callable[[], float] = random.random,
    ) -> None:
        self._plan = plan
        self._settled_mail: OrderedDict[str, None] = OrderedDict()
        """Ids of records of the mailbox, the last ones, of which all that came has left."""
        self._watched_until_s = self._unwatched_until_s = 0.0
        self._publisher = publisher
        self._appender = appender
        self._verification = verification
        self._in_flight = in_flight
        self._clock = publisher.clock
        self._metrics = publisher.metrics
        self._sent: dict[bytes, PublishMetrics] = {}
        """By message type, the meters of what a run has sent."""
        self._late = late
        self._tells_all = says_all()
        self._has_room = has_room
        """Tells whether another lane may wait for its retry here."""
        self._randomness = randomness
        self._traced_s: dict[object, float] = {}
        """By kind of error and line, when its trace was logged last."""
        self._traces = Ration(publisher.clock, max_count=_TRACES, every_s=_TRACES_EVERY_S)

    async def settle(self, delivery: Delivery, outcome: Outcome) -> float | None:
        """Make *outcome* durable; return the seconds after which the lane tries again, None where it is settled.

        Raises GaveUpError where the partition has gone meanwhile.
        """
        match outcome:
            case Done(outputs=outputs):
                await self._finish(delivery, outputs)
            case Withheld(outputs=outputs):
                await self._send(outputs, delivery)
                failpoints.reach("sent")
                self._in_flight.withheld(delivery)
                failpoints.reach("settled")
            case RetryInLane(delay_s=delay_s, control=control, limits=limits):
                delivery.limits_waited_for = limits
                if control is not None:
                    delivery.control = control
                    self._metrics.retry(delivery.label, self._plan.group, "lane")
                return delay_s
            case MoveToTier(tier=tier, control=control, climbs=climbs):
                await self._move(delivery, self._longer(delivery, tier) if climbs else tier, control)
            case PassOn(tier=tier):
                await self._move(delivery, self._longer(delivery, tier), delivery.control)
            case Dead():
                delivery.control = outcome.control or delivery.control
                end = self._skip if isinstance(outcome, Skipped) else self._write_dead_letter
                await end(delivery, outcome.failure, outcome.records)
            case Dropped():
                self.drop(delivery)
            case AwaitInbox():
                raise AssertionError("a lane that waits for the inbox is not settled")
        return None

    def _longer(self, delivery: Delivery, tier: Tier) -> Tier:
        """Return the tier after that of *delivery*, so that what waits without an attempt turns ever more rarely."""
        remaining_s = self._verification.remaining_s(delivery)
        return next_tier(self._plan.tiers, delivery.partition.tier, remaining_s) or tier

    def succeeded(self, delivery: Delivery) -> None:
        """Settle *delivery* as done, without outputs."""
        if self._tells_all:
            _tell_handled(delivery, self._plan.group, self._clock)
        self._in_flight.done(delivery)
        if failpoints.is_armed:
            failpoints.reach("settled")

    def drop(self, delivery: Delivery) -> None:
        """Let go of *delivery*, whose partition goes away: its next owner settles it."""
        self._in_flight.drop(delivery)

    async def check(self, outputs: Sequence[NewRecord]) -> None:
        """Raise ContractError where the log would never accept one of *outputs*."""
        await self._appender.check(outputs)

    async def end_of(self, delivery: Delivery, dead: Dead) -> Sequence[NewRecord]:
        """Return the dead letter of *delivery* and the report to its requester, to be stored before they are sent.

        Raises GaveUpError.
        """
        delivery.control = dead.control or delivery.control
        if isinstance(dead, Skipped):
            report = await self._report_of(delivery, dead.failure)
            return () if report is None else (report,)
        letter = self._appender.letter_of(delivery, dead.failure)
        letter = await self._appender.storable(delivery, dead.failure, letter)
        report = await self._report_of(delivery, dead.failure)
        return (letter,) if report is None else (letter, report)

    # Decisions.

    def outcome_of_claim(self, delivery: Accepted, answer: Claim) -> Outcome:
        """Decide what becomes of *delivery* where the inbox's *answer* allows no run."""
        match answer:
            case AlreadyDone() | AlreadyDead() if self._says_nothing_new(delivery.message, answer):
                return Done(ran=False)
            case AlreadyDone(outputs=outputs, message_id=first):
                try:
                    answers = made_out_to(
                        self._publisher, delivery.message, outputs, expires_ms=delivery.expires_ms, first=first
                    )
                    return Done(answers, ran=False)
                except (ContractError, SigningError) as error:
                    return self.outcome_of_failure(delivery, error)
            case AlreadyDead(outputs=outputs, message_id=first):
                if first == delivery.message.message_id:
                    return Dead(_failure_of(outputs[0]), records=outputs)
                reason = _failure_of(outputs[0]).reason
                return refusal(reason, f"{first}, which has its idempotency key, has died", "/routing/idempotency_key")
            case ClaimedElsewhere(wait_s=wait_s):
                return wait_outside(delivery, wait_s)
            case Conflict() if delivery.subscription.is_mailbox and delivery.message.is_progress:
                # A run that began anew has said it again, with another time in it.
                return Done(ran=False)
            case Conflict(content_hash=first):
                text = f"its idempotency key was used for other content, {first}"
                return refusal("idempotency_conflict", text, "/routing/idempotency_key")
            case KeepsCrashing(deaths=deaths):
                text = f"{deaths} workers died while they ran it alone"
                return Dead(Failure(reason="crash_loop", error="CrashLoop", text=text))
            case _:
                raise AssertionError(f"{type(answer).__name__} asks for a run")

    def outcome_of_failure(self, delivery: Accepted, error: Exception) -> Outcome:
        """Decide what becomes of *delivery*, whose run raised *error*, and log it."""
        if isinstance(error, TaskCancelled):
            return cancelled_by(error)
        attempt = delivery.control.attempt + 1
        decision = self._decide(delivery, error, attempt)
        self._log_failure(delivery, error, attempt, decision)
        now_ms = self._clock.now_ms()
        control = msgspec.structs.replace(
            delivery.control,
            attempt=attempt,
            error=type(error).__name__,
            first_failed_at_ms=delivery.control.first_failed_at_ms or now_ms,
        )
        match decision:
            case WaitInLane(delay_s=delay_s):
                return RetryInLane(delay_s, control)
            case Die(reason=reason, text=text):
                why = text_of(error)
                failure = Failure(
                    reason=reason,
                    error=type(error).__name__,
                    text=why if why == text else f"{text}: {why}",
                    pointer=_pointer_of(error),
                    exception=error,
                )
                return Dead(failure, control)
            case WaitInTier(tier=tier, delay_s=delay_s):
                # Set only where the tier's delay alone is too short: the time is this machine's wall clock, which may
                # jump.
                due_ms = now_ms + round(delay_s * 1000) if delay_s > tier.delay_s else 0
                return MoveToTier(tier, msgspec.structs.replace(control, not_before_ms=due_ms))

    def wait_after_run(self, delivery: Accepted, wait_s: float) -> Outcome:
        """Wait for a dependency after a run, without using an attempt; in a tier where too many lanes wait."""
        tiers = self._plan.tiers
        may_move = self.is_crowded and tiers and delivery.subscription.order != "key_strict"
        if may_move and delivery.partition.tier is None and self._verification.remaining_s(delivery) > tiers[0].delay_s:
            return MoveToTier(tiers[0], delivery.control, climbs=True)
        return wait_outside(delivery, wait_s)

    def wait_for_turn(self, delivery: Accepted, wait_s: float, *, here: bool) -> Outcome:
        """Wait for a limit, without using an attempt: in the lane where *here*, else in a tier.

        It is back before its turn where a tier is so short. A longer tier would leave the limit unused.
        """
        tiers = self._plan.tiers
        in_lane = RetryInLane(wait_s, limits=", ".join(limit.name for limit in delivery.subscription.limits))
        if here or not tiers or delivery.subscription.order == "key_strict":
            return in_lane
        tier = tier_within(tiers, wait_s)
        if self._verification.remaining_s(delivery) <= tier.delay_s:
            return in_lane
        return MoveToTier(tier, delivery.control)

    @property
    def is_crowded(self) -> bool:
        """Return whether waiting lanes have used up their share of the room: further retries then wait in the log."""
        return not self._has_room()

    def _decide(self, delivery: Accepted, error: Exception, attempt: int) -> RetryDecision:
        if breach_of(error) is not None:
            # A payload or option that receivers refuse stays refused, however often the handler runs.
            return Die("rejected", "the handler did something that the bus refuses")
        subscription = delivery.subscription
        return decide_retry(
            error,
            attempt=attempt,
            policy=subscription.retry or self._plan.retry,
            requested=delivery.message.routing.retry,
            # With key_strict the message waits in its lane, however long.
            tiers=() if subscription.order == "key_strict" else self._plan.tiers,
            remaining_s=self._verification.remaining_s(delivery),
            randomness=self._randomness(),
            lane_limit_s=0.0 if self.is_crowded else LANE_LIMIT_S,
        )

    # Carrying them out.

    def _says_nothing_new(self, message: Message, answer: AlreadyDone | AlreadyDead) -> bool:
        """Whether all outputs of *message* were sent: its own, or those of its other version."""
        if answer.message_id == message.message_id:
            return message.message_id in self._settled_mail
        return message.metadata.other_version is not None

    def _note_told(self, delivery: Delivery) -> None:
        """Remember that all that came of a record of the mailbox has left.

        A step may send much, and whoever may write to the mailbox may repeat its records as often as they like.
        """
        if isinstance(delivery, Accepted) and delivery.subscription.is_mailbox:
            self._settled_mail[delivery.message.message_id] = None
            if len(self._settled_mail) > _MAX_TOLD:
                self._settled_mail.popitem(last=False)

    async def _finish(self, delivery: Delivery, outputs: Sequence[NewRecord]) -> None:
        try:
            if outputs:
                undecided = await self._send(outputs, delivery)
                failpoints.reach("sent")
                if undecided:
                    self._late.add(delivery, undecided, lambda: self.succeeded(delivery))
                    return
                if self._plan.view.mail:
                    self._note_told(delivery)
        except RecordTooLargeError as error:
            text = f"its output is too large for the log: {error}"
            await self._write_dead_letter(delivery, Failure(reason="rejected", error=type(error).__name__, text=text))
            return
        self.succeeded(delivery)

    async def _send(self, outputs: Sequence[NewRecord], delivery: Delivery) -> Sequence[NewRecord]:
        started_s = self._clock.monotonic_s()
        undecided = await self._appender.send(outputs, delivery.partition)
        elapsed_s = self._clock.monotonic_s() - started_s
        for record in outputs:
            name = _type_in(record)
            meters = self._sent.get(name)
            if meters is None:
                label = self._plan.view.registry.label(name.decode())
                meters = self._metrics.accepted(label)
                if len(self._sent) < _MAX_SENT:
                    self._sent[name] = meters
            meters.count += 1
            meters.seconds.observe(elapsed_s)
        return undecided

    async def _move(self, delivery: Delivery, tier: Tier, control: Control) -> None:
        topic = retry_topic(self._plan.namespace, self._plan.group, tier.name)
        delivery.control = control
        try:
            await self._appender.send([reappend(delivery.record, control, topic)], delivery.partition)
        except RecordTooLargeError as error:
            failure = Failure(reason="retries_exhausted", error=type(error).__name__, text=f"tier {tier.name}: {error}")
            await self._write_dead_letter(delivery, failure)
            return
        failpoints.reach("retried")
        self._in_flight.retried(delivery, tier.name)
        failpoints.reach("settled")

    async def _skip(self, delivery: Delivery, failure: Failure, stored: Sequence[NewRecord]) -> None:
        """Settle a cancelled message, after its report."""
        report = stored[0] if stored else await self._report_of(delivery, failure)
        try:
            undecided = [] if report is None else await self._appender.send([report], delivery.partition)
        except RecordTooLargeError as error:
            _tell_refused(delivery, error)
            undecided = []
        if undecided:
            self._late.add(delivery, undecided, lambda: self._skipped(delivery))
        else:
            self._skipped(delivery)

    def _skipped(self, delivery: Delivery) -> None:
        _log.info(
            "message.cancelled",
            message_id=None if delivery.message is None else delivery.message.message_id,
            type=delivery.label,
        )
        self._in_flight.skipped(delivery)
        failpoints.reach("settled")

    async def _write_dead_letter(self, delivery: Delivery, failure: Failure, stored: Sequence[NewRecord] = ()) -> None:
        letter = stored[0] if stored else self._appender.letter_of(delivery, failure)
        await self._appender.write_dead_letter(delivery, failure, letter)
        failpoints.reach("buried")
        report = await self._report_of(delivery, failure) if not stored else stored[1] if stored[1:] else None
        undecided: Sequence[NewRecord] = ()
        if report is not None:
            try:
                undecided = await self._appender.send([report], delivery.partition)
                failpoints.reach("reported")
            except RecordTooLargeError as error:
                _tell_refused(delivery, error)
        if undecided:
            self._late.add(delivery, undecided, lambda: self._died(delivery, failure))
        else:
            self._died(delivery, failure)

    def _died(self, delivery: Delivery, failure: Failure) -> None:
        if self._plan.view.mail:
            self._note_told(delivery)
        self._in_flight.dead(delivery, failure.reason)
        failpoints.reach("settled")

    async def _report_of(self, delivery: Delivery, failure: Failure) -> NewRecord | None:
        """Return the error report for the requester, or for the watchers of its task.

        None if the message names neither, or must not get a report.
        """
        message = delivery.message
        if message is None or not wants_report(message, failure.reason):
            return None
        if message.routing.reply_to is None and not await self._is_watched():
            return None
        make = partial(
            report_of,
            self._publisher,
            message,
            failure,
            self._plan.agent_id,
            group=self._plan.group,
            redrive_count=delivery.control.redrive_count,
        )
        try:
            # Once the message has expired, no requester waits for the report.
            sealed = await self._appender.seal(
                make, delivery.partition, within_s=self._verification.remaining_s(delivery)
            )
        except PublishRejected as error:
            _tell_refused(delivery, error)
            return None
        return sealed.record

    async def _is_watched(self) -> bool:
        """Return whether the topic of error reports has subscribers; the answer is cached for half a minute."""
        now_s = self._clock.monotonic_s()
        if now_s < self._watched_until_s:
            return True
        if now_s < self._unwatched_until_s:
            return False
        try:
            found = bool(
                await self._publisher.transport.admin.ranges(message_topic(self._plan.namespace, "error.reported"))
            )
        except BusError:
            found = False
        if found:
            self._watched_until_s = now_s + _ASKED_AGAIN_S
        else:
            self._unwatched_until_s = now_s + _ASKED_AGAIN_S
        return found

    def _is_new_trace(self, error: Exception) -> bool:
        """Return whether the trace of *error* was not logged within the last minute; equal traces are not repeated."""
        last = error.__traceback__
        while last is not None and last.tb_next is not None:
            last = last.tb_next
        location = (type(error), None if last is None else (last.tb_frame.f_code, last.tb_lineno))
        now_s = self._clock.monotonic_s()
        if now_s - self._traced_s.get(location, -math.inf) < _SAME_TRACE_S:
            return False
        if len(self._traced_s) >= _MAX_LOCATIONS:
            self._traced_s.clear()
        self._traced_s[location] = now_s
        return True

    def _log_failure(self, delivery: Accepted, error: Exception, attempt: int, decision: RetryDecision) -> None:
        facts: dict[str, Any] = {
            "message_id": delivery.message.message_id,
            "type": delivery.label,
            "attempt": attempt,
            "error": f"{type(error).__name__}: {text_of(error)}"[:300],
        }
        again_in_s = None if isinstance(decision, Die) else round(decision.delay_s, 2)
        # One traceback per message, and few in a flood: a traceback takes as long as many messages.
        with_trace = not isinstance(error, HandlerError | HandlerTimeoutError | BusError) and attempt == 1
        exc_info = error if with_trace and self._is_new_trace(error) and self._traces.take() else None
        _log.warning("handler.failed", again_in_s=again_in_s, exc_info=exc_info, **facts)


def cancelled_by(error: TaskCancelled) -> Skipped:
    """Return the outcome of a delivery whose task is cancelled."""
    return Skipped(Failure(reason=CANCELLED, error=type(error).__name__, text=str(error), exception=error))


def refused(error: ContractError) -> Dead:
    """Return the outcome of a delivery that a gate refused with *error*."""
    return Dead(Failure(reason=error.reason, error=type(error).__name__, text=error.text, pointer=error.pointer))


def refusal(reason: str, text: str, pointer: str | None = None) -> Dead:
    """Return the outcome of a delivery that is refused for *reason*, at *pointer* where there is one."""
    return refused(ContractError(text, pointer or "", reason))


def wait_outside(delivery: Delivery, wait_s: float) -> RetryInLane | MoveToTier:
    """Wait for a dependency without using an attempt: in the lane, or again in the tier it came from.

    In a tier it must not block the partition's head.
    """
    tier = delivery.partition.tier
    return RetryInLane(wait_s) if tier is None else MoveToTier(tier, delivery.control, climbs=True)


def wait_in_tiers(delivery: Delivery, tiers: Sequence[Tier], remaining_s: float) -> RetryInLane | MoveToTier:
    """Wait without using an attempt, in a retry tier shorter than the message's remaining lifetime if there is one."""
    tier = next_tier(tiers, delivery.partition.tier, remaining_s - _LAST_S)
    return RetryInLane(_SOON_S) if tier is None else MoveToTier(tier, delivery.control, climbs=True)


def blamed(error: Exception) -> Exception:
    """Return *error*, or MissingSetting where only a key is missing, or must not sign: no sender is to blame for it."""
    if isinstance(error, PublishRejected) and isinstance(error.__cause__, KeyRefusedError):
        return MissingSetting("trust.key_file", str(error.__cause__))
    breach = breach_of(error)
    missing = breach is not None and breach.reason == "signature_missing"
    return MissingSetting("signer", breach.text) if missing and breach is not None else error


def _tell_handled(delivery: Delivery, group: str, clock: Clock) -> None:
    """Write the debug line of a message that was handled, or known as handled."""
    message = delivery.message
    _log.debug(
        "message.handled",
        message_id=None if message is None else message.message_id,
        type=delivery.label,
        sender=None if message is None else message.metadata.sender.id,
        group=group,
        attempt=delivery.control.attempt + 1,
        age_s=round(clock.monotonic_s() - delivery.born_s, 3),
    )


def _tell_refused(delivery: Delivery, error: Exception) -> None:
    message_id = None if delivery.message is None else delivery.message.message_id
    _log.warning("message.report_refused", message_id=message_id, error=str(error))


def _type_in(record: NewRecord) -> bytes:
    """Return the message type that the headers of *record* name; empty without one."""
    for name, value in record.headers:
        if name == "sb-type":
            return value
    return b""


def _failure_of(letter: NewRecord) -> Failure:
    """Return why the message died whose stored dead letter this is."""
    headers = dict(letter.headers)
    reason, error = headers.get("sb-dlq-reason", b""), headers.get("sb-dlq-error", b"")
    return Failure(reason=reason.decode("ascii", "replace"), error=error.decode("utf-8", "replace").partition(":")[0])


def _pointer_of(error: BaseException) -> str:
    breach = breach_of(error)
    return breach.pointer if breach is not None else ""
