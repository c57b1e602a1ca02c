"""Assembly: the parts of one worker, put together.

Owns which part is given which; no part makes another. What the parts do is their own, when they do it the worker's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from bus.clock import Clock
from bus.settings.schema import Settings
from bus.telemetry.metrics import Metrics
from bus.transports.base import Transport
from consumers.crashes.crash_guard import CrashGuard
from consumers.declaration import Declaration
from consumers.group_plan import GroupPlan
from consumers.handling.claim_batches import ClaimBatcher
from consumers.handling.claims import InboxClient
from consumers.handling.exclusive import ExclusiveGate
from consumers.handling.executor import Executor
from consumers.handling.run_policies import BrakePolicy, BreakerPolicy, CrashPolicy, LifetimePolicy
from consumers.handling.slots import HandlerSlots
from consumers.inbox.base import Inbox
from consumers.receiving.receiver import Receiver
from consumers.receiving.verification import RecordVerifier
from consumers.resilience.circuit_breaker import CircuitBreakers
from consumers.resilience.failure_brake import BrakeRule, FailureBrake
from consumers.resilience.retry_clock import RetryClock
from consumers.settling.dispositions import Dispositions
from consumers.settling.durable_append import DurableAppender
from consumers.settling.late_answers import LateAnswers
from consumers.state.assignments import Partitions
from consumers.state.delivery import Delivery
from consumers.state.in_flight import InFlight
from consumers.state.lane_timers import LaneTimers
from consumers.state.lanes import Lanes
from producers.publisher import Publisher
from producers.requests.requester import Requester

__all__ = ["Parts", "assemble"]


_WAITING_SHARE = 4
"""This part of the room may be taken by lanes that wait for a retry; more wait in the log, in the group's tiers."""


class Parts(NamedTuple):
    """What a worker drives."""

    partitions: Partitions
    admission: Receiver
    flight: InFlight
    lanes: Lanes[Delivery]
    waiting: LaneTimers
    runners: HandlerSlots
    requests: Requester
    log_clock: RetryClock
    claims: InboxClient | None
    dependencies: CircuitBreakers
    late: LateAnswers


def assemble(
    app: Declaration,
    plan: GroupPlan,
    *,
    transport: Transport,
    publisher: Publisher,
    settings: Settings,
    inbox: Inbox | None,
    clock: Clock,
    metrics: Metrics,
    wake: Callable[[], None],
    witness: CrashGuard,
) -> Parts:
    """The parts of a worker of *app*; *wake* tells it that lanes have changed."""
    group, deadletter = plan.group, settings.deadletter
    strict = [name for name, subscription in plan.view.subscriptions.items() if subscription.order == "key_strict"]
    partitions = Partitions(
        plan.tiers, clock, strict=strict, max_in_flight=settings.worker.max_in_flight, observer=witness
    )
    requests = Requester(publisher, transport, verifier=app.verifier, policy=app.policy)
    lanes: Lanes[Delivery] = Lanes()
    flight = InFlight(
        group, clock, metrics, max_count=settings.worker.max_in_flight, max_bytes=settings.worker.max_in_flight_bytes
    )
    log_clock = RetryClock(clock, own=transport.features.own_clock)
    intake = RecordVerifier(plan.view, clock, log_clock)
    judge = witness.judging(intake.judge)
    admission = Receiver(
        partitions, intake, flight, lanes, metrics=metrics, group=group, clock=clock, log_clock=log_clock, judge=judge
    )
    dependencies = CircuitBreakers(group, clock, metrics, partitions.let_wait)
    brake = BrakeRule(share=deadletter.brake_share, window=deadletter.brake_window, pause_s=deadletter.brake_pause_s)
    braking = FailureBrake(brake, group, clock, metrics, partitions.let_rest)
    settlement = DurableAppender(
        publisher,
        group=group,
        clock=clock,
        log_clock=log_clock,
        metrics=metrics,
        details=deadletter.details,
        hold=partitions.hold,
    )
    late = LateAnswers(settlement, flight, clock)
    claims = None
    if inbox is not None:
        keep_s = settings.inbox.keep_s
        claims = InboxClient(
            inbox,
            namespace=plan.namespace,
            group=group,
            keep_s=keep_s,
            clock=clock,
            metrics=metrics,
            hold=partitions.hold,
        )
    waiting = LaneTimers(lanes, clock, wake)
    outcomes = Dispositions(
        plan,
        admin=transport.admin,
        publisher=publisher,
        settlement=settlement,
        intake=intake,
        flight=flight,
        clock=clock,
        metrics=metrics,
        late=late,
        waiting=waiting.__len__,
        most_waiting=settings.worker.max_in_flight // _WAITING_SHARE,
    )
    solitude = ExclusiveGate()
    parking = (
        None
        if claims is None
        else ClaimBatcher(claims, lanes, outcomes=outcomes, solitude=solitude, clock=clock, wake=wake)
    )
    # Asked in this order before each run; the breaker last, see there.
    policies = (
        CrashPolicy(witness),
        LifetimePolicy(intake, clock),
        BrakePolicy(braking),
        BreakerPolicy(dependencies, outcomes),
    )
    executor = Executor(
        plan,
        outcomes,
        policies=policies,
        publisher=publisher,
        requests=requests,
        intake=intake,
        lanes=lanes,
        timers=waiting,
        exclusive=solitude,
        claims=claims,
        batches=parking,
        guard=witness,
        clock=clock,
        metrics=metrics,
    )
    runners = HandlerSlots(
        lanes, executor.run_lane, concurrency=settings.worker.concurrency, clock=clock, witness=witness
    )
    return Parts(
        partitions, admission, flight, lanes, waiting, runners, requests, log_clock, claims, dependencies, late
    )
