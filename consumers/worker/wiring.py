"""Wiring: the parts of one worker, put together.

Owns which part gets which others; no part creates another. `consumers.worker.worker` drives them.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from bus.clock import Clock
from bus.own_context import OwnContext
from bus.telemetry.metrics import Metrics
from bus.topics.names import mailbox_topic
from bus.topics.specs import shortest_retention_s
from consumers.delivery.crashes.crash_guard import CrashGuard
from consumers.delivery.declaration import Declaration
from consumers.delivery.group_plan import GroupPlan
from consumers.delivery.handling.approved_run import ApprovedRun
from consumers.delivery.handling.claim_batches import ClaimBatcher
from consumers.delivery.handling.claims import InboxClient, Keeping
from consumers.delivery.handling.exclusive import ExclusiveGate
from consumers.delivery.handling.executor import Executor
from consumers.delivery.handling.handler_run import HandlerRun
from consumers.delivery.handling.inbox_turns import InboxTurns
from consumers.delivery.handling.leftover_tasks import watch_tasks
from consumers.delivery.handling.limited_run import LimitedRun
from consumers.delivery.handling.overflow import Overflow
from consumers.delivery.handling.results import RunResults
from consumers.delivery.handling.run_policies import (
    BrakePolicy,
    BreakerPolicy,
    CrashPolicy,
    KeyPolicy,
    LifetimePolicy,
    RunPolicies,
)
from consumers.delivery.handling.runner import Runner
from consumers.delivery.handling.slots import HandlerSlots
from consumers.delivery.handling.step_run import StepRun
from consumers.delivery.handling.turns import Turns
from consumers.delivery.inbox.base import Inbox
from consumers.delivery.inbox.limiter import Limiter
from consumers.delivery.receiving.deprecation_watch import DeprecationWatch
from consumers.delivery.receiving.receiver import Receiver
from consumers.delivery.receiving.verification import RecordVerifier
from consumers.delivery.resilience.circuit_breaker import CircuitBreakers
from consumers.delivery.resilience.failure_brake import BrakeRule, FailureBrake
from consumers.delivery.resilience.retry_clock import RetryClock
from consumers.delivery.settling.dispositions import Dispositions
from consumers.delivery.settling.durable_append import DurableAppender
from consumers.delivery.settling.late_answers import LateAnswers
from consumers.delivery.state.assignments import Partitions
from consumers.delivery.state.delivery import Delivery
from consumers.delivery.state.in_flight import InFlight
from consumers.delivery.state.lane_timers import LaneTimers
from consumers.delivery.state.lanes import Lanes
from consumers.processes.approvals.service import ApprovalService
from consumers.processes.approvals.state import APPROVAL_SAGA
from consumers.processes.approvals.step_desk import RunDesk
from consumers.processes.clarifications.service import ClarificationService
from consumers.processes.clarifications.state import CLARIFICATION_SAGA
from consumers.processes.sagas.early_events import EarlyEvents
from consumers.processes.sagas.process import Process, ending_of
from consumers.processes.sagas.process_group import ProcessGroup
from consumers.processes.sagas.steps import StepRunner
from consumers.processes.sagas.store import ProcessStore
from consumers.processes.sagas.sweeper import WaitSweeper
from consumers.processes.schedules.service import SCHEDULE_SAGA, ScheduleService
from consumers.processes.tasks.service import TaskService
from consumers.processes.tasks.snapshot import TASK_SAGA
from consumers.worker.cancel_watch import CancelPolicy, CancelWatch
from producers.publisher import Publisher
from producers.requests.requester import Requester

__all__ = ["Parts", "assemble"]


_WAITING_SHARE = 4
"""One in so many deliveries in flight may wait in a lane for its retry; further ones wait in the tiers."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Parts:
    """The parts that a worker drives."""

    partitions: Partitions
    receiver: Receiver
    in_flight: InFlight
    lanes: Lanes[Delivery]
    timers: LaneTimers
    slots: HandlerSlots
    requests: Requester
    retry_clock: RetryClock
    claims: InboxClient | None
    dependencies: CircuitBreakers
    late: LateAnswers
    steps: StepRunner | None
    sweeper: WaitSweeper | None
    cancels: CancelWatch
    overflow: Overflow
    appender: DurableAppender
    limiter: Limiter | None
    schedules: ScheduleService | None
    tasks: TaskService | None


def assemble(
    app: Declaration,
    plan: GroupPlan,
    publisher: Publisher,
    *,
    inbox: Inbox | None,
    guard: CrashGuard,
    wake: Callable[[], None],
) -> Parts:
    """Return the parts of a worker of *app* on the log of *publisher*; *wake* reports that lanes have changed."""
    transport, settings, clock, metrics = publisher.transport, publisher.settings, publisher.clock, publisher.metrics
    group, deadletter = plan.group, settings.deadletter
    strict = [name for name, subscription in plan.view.subscriptions.items() if subscription.order == "key_strict"]
    partitions = Partitions(
        plan.tiers, clock, strict=strict, max_in_flight=settings.worker.max_in_flight, observer=guard
    )
    requests = Requester(publisher, transport, verifier=app.verifier, policy=app.policy)
    lanes: Lanes[Delivery] = Lanes()
    in_flight = InFlight(
        group, clock, metrics, max_count=settings.worker.max_in_flight, max_bytes=settings.worker.max_in_flight_bytes
    )
    # Of the worker itself, before anything of users has run in it.
    own = OwnContext()
    retry_clock = RetryClock(clock, own=transport.features.own_clock)
    verification = RecordVerifier(
        plan.view,
        clock,
        retry_clock,
        plan.tiers,
        deprecations=DeprecationWatch(metrics),
        own=own,
        count_progress=lambda outcome: metrics.progress.labels(outcome).inc(),
    )
    receiver = Receiver(
        partitions,
        verification,
        in_flight,
        lanes,
        metrics=metrics,
        group=group,
        clock=clock,
        retry_clock=retry_clock,
        judge_large=guard.judging(verification.judge),
    )
    dependencies = CircuitBreakers(group, clock, metrics, partitions.throttle_waiting)
    appender = DurableAppender(
        publisher,
        group=group,
        clock=clock,
        retry_clock=retry_clock,
        metrics=metrics,
        details=deadletter.details,
        pause=partitions.pause,
    )
    late = LateAnswers(appender, in_flight, clock)
    timers = LaneTimers(lanes, clock, wake)
    dispositions = Dispositions(
        plan,
        publisher=publisher,
        appender=appender,
        verification=verification,
        in_flight=in_flight,
        late=late,
        has_room=lambda: len(timers) < settings.worker.max_in_flight // _WAITING_SHARE,
    )
    exclusive = ExclusiveGate()
    claims = None if inbox is None else _claims(app, plan, publisher, inbox, partitions)
    batches = None
    if claims is not None:
        batches = ClaimBatcher(
            claims, lanes, dispositions=dispositions, exclusive=exclusive, clock=clock, wake=wake, own=own
        )
    cancels = CancelWatch(transport, plan.namespace, verifier=app.verifier, policy=app.policy, clock=clock)
    brake_rule = BrakeRule(
        share=deadletter.brake_share, window=deadletter.brake_window, pause_s=deadletter.brake_pause_s
    )
    brake = FailureBrake(brake_rule, group, clock, metrics, partitions.pause_braked)
    # Asked in this order before each run; the breaker last, see `BreakerPolicy`.
    policies = RunPolicies(
        (
            CrashPolicy(guard),
            CancelPolicy(cancels),
            LifetimePolicy(verification, clock),
            *([] if publisher.sealer.keys is None else [KeyPolicy(publisher.sealer.key_fault)]),
            *([BrakePolicy(brake)] if brake.enabled else ()),
            BreakerPolicy(dependencies, dispositions),
        )
    )
    guard.changed = cancels.changed = dependencies.changed = policies.refresh
    results = RunResults(
        dispositions, policies, batches=batches, exclusive=exclusive, clock=clock, meters=metrics.meters(group)
    )
    processes = None if inbox is None or not app.has_mailbox else _processes(app, plan, publisher, inbox, cancels)
    if any(each.asks for each in app.subscriptions.values()):
        watch_tasks()
    handlers = HandlerRun(
        plan,
        publisher=publisher,
        requests=requests,
        results=results,
        clock=clock,
        has_inbox=claims is not None,
        desk_of=None if processes is None else partial(RunDesk, processes.approvals, processes.clarifications),
    )
    limiter = _limiter(app, plan, inbox, clock)
    limited = (
        handlers
        if limiter is None
        else LimitedRun(handlers, limiter, results=results, dispositions=dispositions, clock=clock)
    )
    # The first that takes a delivery runs it.
    runners: list[Runner] = [limited]
    if processes is not None:
        runners = [
            StepRun(processes.steps, results, clock),
            ApprovedRun(processes.approvals, limited, results, clock),
            limited,
        ]
    before_runs = None
    if claims is not None and batches is not None:
        before_runs = InboxTurns(plan, claims=claims, batches=batches, results=results, dispositions=dispositions)
    turns = Turns(runners, inbox=before_runs, results=results, exclusive=exclusive, guard=guard, clock=clock)
    executor = Executor(
        turns,
        policies=policies,
        dispositions=dispositions,
        verification=verification,
        lanes=lanes,
        timers=timers,
        own=own,
        clock=clock,
    )
    slots = HandlerSlots(
        lanes,
        executor.run_lane,
        concurrency=settings.worker.concurrency,
        max_waiting=settings.worker.max_waiting,
        max_waiting_bytes=settings.worker.max_in_flight_bytes,
        clock=clock,
        guard=guard,
        exclusive=exclusive,
        own=own,
    )
    in_flight.waiting = slots.waiting_deliveries
    overflow = Overflow(slots, lanes, in_flight, partitions=partitions, tiers=plan.tiers, verification=verification)
    receiver.met_deep = overflow.met_deep
    return Parts(
        partitions=partitions,
        receiver=receiver,
        in_flight=in_flight,
        lanes=lanes,
        timers=timers,
        slots=slots,
        requests=requests,
        retry_clock=retry_clock,
        claims=claims,
        dependencies=dependencies,
        late=late,
        steps=None if processes is None else processes.steps,
        sweeper=None if processes is None else processes.sweeper,
        cancels=cancels,
        overflow=overflow,
        appender=appender,
        limiter=limiter,
        schedules=None if processes is None else processes.schedules,
        tasks=None if processes is None else processes.tasks,
    )


def _limiter(app: Declaration, plan: GroupPlan, inbox: Inbox | None, clock: Clock) -> Limiter | None:
    """Return the limiter of a worker, where a handler has limits."""
    if inbox is None or not any(each.limits for each in app.subscriptions.values()):
        return None
    return Limiter(inbox, scope=(plan.namespace, plan.group), member=os.urandom(8).hex(), clock=clock)


def _claims(
    app: Declaration, plan: GroupPlan, publisher: Publisher, inbox: Inbox, partitions: Partitions
) -> InboxClient:
    keep_s = publisher.settings.inbox.keep_s
    return InboxClient(
        inbox,
        namespace=plan.namespace,
        group=plan.group,
        keep_s=Keeping(keep_s, max(keep_s, publisher.settings.topics.deadletter_retention_s)),
        clock=publisher.clock,
        metrics=publisher.metrics,
        pause=partitions.pause,
        high_risk=publisher.settings.trust.high_risk,
        has_keys=app.verifier is not None,
        remembers_all=app.has_mailbox,
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Processes:
    """The parts for the app's processes: the step runner, what messages are held for, and the sweeper of due waits."""

    steps: StepRunner
    sweeper: WaitSweeper
    approvals: ApprovalService
    clarifications: ClarificationService
    schedules: ScheduleService
    tasks: TaskService | None


def _processes(
    app: Declaration, plan: GroupPlan, publisher: Publisher, inbox: Inbox, cancels: CancelWatch
) -> Processes:
    settings, clock, metrics = publisher.settings, publisher.clock, publisher.metrics
    group = ProcessGroup(
        namespace=plan.namespace,
        name=plan.group,
        agent_id=plan.agent_id,
        mailbox=mailbox_topic(plan.namespace, plan.group),
        registry=plan.view.registry,
        tiers=plan.tiers,
        keep_ms=round(shortest_retention_s(settings) * 1000),
    )
    store = ProcessStore(
        inbox,
        namespace=plan.namespace,
        group=plan.group,
        clock=clock,
        ended=partial(_count_end, metrics, plan.group),
    )
    approvals = ApprovalService(
        store,
        group=group,
        publisher=publisher,
        admission=plan.view.admission,
        verifier=app.verifier,
        clock=clock,
        cancelled_now=cancels.found_now,
    )
    clarifications = ClarificationService(store, group=group, publisher=publisher, clock=clock)
    schedules = ScheduleService(app.schedules, store, group=group, publisher=publisher, clock=clock)
    tasks = None if app.tasks is None else app.tasks(store, group=group, publisher=publisher, clock=clock)
    early = EarlyEvents(
        tiers=plan.tiers,
        bound_s=settings.worker.early_s,
        max_waiting=settings.worker.max_early,
        group=plan.group,
        clock=clock,
        metrics=metrics,
    )
    steps = StepRunner(
        app.sagas,
        store,
        group=group,
        publisher=publisher,
        clock=clock,
        metrics=metrics,
        early=early,
        built_in={
            APPROVAL_SAGA: approvals,
            CLARIFICATION_SAGA: clarifications,
            SCHEDULE_SAGA: schedules,
            **({} if tasks is None else {TASK_SAGA: tasks}),
        },
    )
    sweeper = WaitSweeper(
        store,
        publisher,
        group=group,
        clock=clock,
        metrics=metrics,
        max_processes=settings.worker.max_processes,
        crowded=partial(setattr, steps, "crowded"),
    )
    return Processes(
        steps=steps,
        sweeper=sweeper,
        approvals=approvals,
        clarifications=clarifications,
        schedules=schedules,
        tasks=tasks,
    )


def _count_end(metrics: Metrics, group: str, process: Process) -> None:
    ending = ending_of(process)
    outcome = "completed" if ending is None else ending.outcome
    metrics.processes_ended.labels(group, process.saga, outcome).inc()
