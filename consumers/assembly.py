"""Assembly: the parts of one worker, put together.

Owns which part is given which; no part makes another. What the parts do is their own, when they do it the worker's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from bus.clock import Clock
from bus.metrics import Metrics
from bus.settings import Settings
from bus.transports.base import Transport
from consumers.admission import Admission
from consumers.braking import Brake, Braking
from consumers.claims import Claims
from consumers.deaths.witness import Witness
from consumers.declaration import Declaration
from consumers.delivery import Delivery
from consumers.dependencies import Dependencies
from consumers.execution import Contexts, Execution
from consumers.flight import Flight
from consumers.inbox.base import Inbox
from consumers.intake import Intake
from consumers.lanes import Lanes
from consumers.lateanswers import LateAnswers
from consumers.logclock import LogClock
from consumers.outcomes import Outcomes
from consumers.parking import Parking
from consumers.partitions import Partitions
from consumers.plan import Plan
from consumers.runners import Runners
from consumers.settlement import Settlement
from consumers.solitude import Solitude
from consumers.waiting import Waiting
from producers.publisher import Publisher
from producers.requests import Requests

__all__ = ["Parts", "assemble"]


class Parts(NamedTuple):
    """What a worker drives."""

    partitions: Partitions
    admission: Admission
    flight: Flight
    lanes: Lanes[Delivery]
    waiting: Waiting
    runners: Runners
    requests: Requests
    log_clock: LogClock
    claims: Claims | None
    dependencies: Dependencies
    late: LateAnswers


def assemble(
    app: Declaration,
    plan: Plan,
    *,
    transport: Transport,
    publisher: Publisher,
    settings: Settings,
    inbox: Inbox | None,
    clock: Clock,
    metrics: Metrics,
    wake: Callable[[], None],
    witness: Witness,
) -> Parts:
    """The parts of a worker of *app*; *wake* tells it that lanes have changed."""
    group, deadletter = plan.group, settings.deadletter
    strict = [name for name, subscription in plan.view.subscriptions.items() if subscription.order == "key_strict"]
    partitions = Partitions(plan.tiers, clock, strict=strict, max_in_flight=settings.worker.max_in_flight, observer=witness)
    requests = Requests(publisher, transport, verifier=app.verifier, policy=app.policy)
    lanes: Lanes[Delivery] = Lanes()
    flight = Flight(group, clock, metrics, max_count=settings.worker.max_in_flight, max_bytes=settings.worker.max_in_flight_bytes)
    log_clock = LogClock(clock, own=transport.features.own_clock)
    intake = Intake(plan.view, clock, log_clock)
    judge = witness.judging(intake.judge)
    admission = Admission(partitions, intake, flight, lanes, metrics=metrics, group=group, clock=clock, log_clock=log_clock, judge=judge)
    dependencies = Dependencies(group, clock, metrics, partitions.let_wait)
    brake = Brake(share=deadletter.brake_share, window=deadletter.brake_window, pause_s=deadletter.brake_pause_s)
    braking = Braking(brake, group, clock, metrics, partitions.let_rest)
    settlement = Settlement(
        publisher, group=group, clock=clock, log_clock=log_clock, metrics=metrics, details=deadletter.details, hold=partitions.hold
    )
    late = LateAnswers(settlement, flight, clock)
    claims = None
    if inbox is not None:
        keep_s = settings.inbox.keep_s
        claims = Claims(inbox, namespace=plan.namespace, group=group, keep_s=keep_s, clock=clock, metrics=metrics, hold=partitions.hold)
    outcomes = Outcomes(
        plan,
        admin=transport.admin,
        publisher=publisher,
        settlement=settlement,
        intake=intake,
        flight=flight,
        clock=clock,
        metrics=metrics,
        dependencies=dependencies,
        braking=braking,
        late=late,
    )
    solitude = Solitude()
    waiting = Waiting(lanes, clock, wake)
    parking = None if claims is None else Parking(claims, lanes, outcomes=outcomes, solitude=solitude, clock=clock, wake=wake)
    execution = Execution(
        plan,
        outcomes,
        publisher=publisher,
        contexts=Contexts(publisher=publisher, requests=requests, clock=clock, claims=claims),
        intake=intake,
        flight=flight,
        lanes=lanes,
        clock=clock,
        metrics=metrics,
        waiting=waiting,
        dependencies=dependencies,
        braking=braking,
        solitude=solitude,
        claims=claims,
        parking=parking,
        witness=witness,
    )
    runners = Runners(lanes, execution.drive, concurrency=settings.worker.concurrency, clock=clock, witness=witness)
    return Parts(partitions, admission, flight, lanes, waiting, runners, requests, log_clock, claims, dependencies, late)
