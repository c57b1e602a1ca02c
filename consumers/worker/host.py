"""Host: one app at work on an open log, with all that belongs to it: lifespans, crash notes, park orders, worker.

Owns the order of starting and stopping. Several hosts share a process, a log and its clock: `opened_hosts`. The process
and its signals are in `consumers.worker.process`, a worker inside another program in `consumers.worker.embedded`.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncGenerator, Collection, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, Final

import msgspec

from bus.clock import Clock
from bus.errors import BusError, ConfigurationError, text_of
from bus.protocol.identifiers import uuid7
from bus.settings.schema import Settings
from bus.telemetry.logs import get_logger
from bus.telemetry.metrics import Metrics
from bus.topics.namespace_groups import NamespaceGroups
from bus.topics.specs import creates_topics
from bus.transports import open_configured
from bus.transports.base import Transport
from bus.trust.opening import open_trust
from bus.trust.policy.globs import compile_globs
from bus.trust.policy.policy import NO_POLICY, rules_source
from consumers.deadletters.park_orders import ParkOrder, ParkOrders, RecordKey, follow_orders
from consumers.delivery.crashes.crash_guard import CrashGuard
from consumers.delivery.crashes.open import open_process_files
from consumers.delivery.declaration import Declaration
from consumers.delivery.group_plan import make_plan
from consumers.delivery.handling.composition import NO_RESOURCES, Resources, compose_handlers, opened_lifespans
from consumers.delivery.handling.slots import RunningHandler
from consumers.delivery.inbox.open import choose_inbox, has_inbox
from consumers.delivery.inbox.store_mark import mark_of_store, members_elsewhere
from consumers.processes.sagas.subscriptions import mail_subscriptions
from consumers.worker.denial_journal import DenialJournal
from consumers.worker.health import WorkerSigns, answer_probe
from consumers.worker.heartbeats import HeartbeatSender, WorkProgress, current_tasks
from consumers.worker.loop_watchdog import LoopWatch, find_work
from consumers.worker.run_window import RunWindow
from consumers.worker.startup_checks import check_artifacts, check_hash_seed, check_needs
from consumers.worker.worker import Worker
from producers.connection import make_publisher
from producers.publisher import Publisher

__all__ = [
    "Host",
    "check_groups",
    "in_namespace",
    "make_worker",
    "opened_hosts",
    "publisher_of",
    "run_hosts",
    "stop_hosts",
    "trusting",
]

_MAX_MEMBERS: Final = 10

_log = get_logger("process")


def make_worker(
    app: Declaration,
    transport: Transport,
    settings: Settings,
    *,
    member: str,
    clock: Clock,
    metrics: Metrics,
    guard: CrashGuard | None = None,
    resources: Resources = NO_RESOURCES,
) -> Worker:
    """Build a worker of *app* on *transport*, with its own publisher.

    *resources* are the values that the app's lifespans have yielded.
    """
    settings = in_namespace(settings, app.namespace)
    app = compose_handlers(app, resources)
    publisher = publisher_of(app, transport, settings, clock=clock, metrics=metrics)
    inbox = choose_inbox(app, settings, owner=member, clock=clock)
    denials = DenialJournal(transport, settings, by=app.agent_id, clock=clock, metrics=metrics)
    return Worker(
        app,
        make_plan(app, settings, clock=clock, note=denials.note),
        publisher,
        inbox=inbox,
        member=member,
        guard=guard,
        denials=denials,
    )


def publisher_of(
    app: Declaration, transport: Transport, settings: Settings, *, clock: Clock, metrics: Metrics
) -> Publisher:
    """Build a publisher in the name of *app*, with its keys and its policy."""
    return make_publisher(
        transport,
        settings,
        app.agent,
        clock=clock,
        metrics=metrics,
        signer=app.signer,
        verifier=app.verifier,
        policy=app.policy,
    )


class Host:
    """Runs one app: `start`, `run` until stopped, `stop`; then `close`, whatever happened before."""

    def __init__(
        self, app: Declaration, transport: Transport, settings: Settings, *, clock: Clock, metrics: Metrics
    ) -> None:
        self._transport = transport
        self._settings = in_namespace(settings, app.namespace)
        self._app = self.app = trusting(app, self._settings, clock)
        """The declarations of the app, with signer, verifier and policy from the settings."""
        self._clock = clock
        self._metrics = metrics
        self._guard = CrashGuard(open_process_files(self._settings, app.group), clock)
        self._opened = AsyncExitStack()
        self._worker: Worker | None = None
        self._following: asyncio.Task[None] | None = None
        self._beacon: HeartbeatSender | None = None
        self._is_stopping = False

    async def start(self) -> None:
        """Open the lifespans and join the group. Raises ConfigurationError, BusError, and the errors of a lifespan."""
        app, settings, guard = self._app, self._settings, self._guard
        check_needs(app, has_inbox=has_inbox(app, settings), high_risk=settings.trust.high_risk)
        check_artifacts(settings)
        _warn_of_trust(app)
        resources = await self._opened.enter_async_context(opened_lifespans(app))
        member = _member_name(self._clock)
        worker = make_worker(
            app,
            self._transport,
            settings,
            member=member,
            clock=self._clock,
            metrics=self._metrics,
            guard=guard,
            resources=resources,
        )
        guard.open(settings.worker.concurrency, member)
        await _bury_the_dead(
            NamespaceGroups(self._transport.admin, settings.bus.namespace), app.group, guard.gone_members()
        )
        orders = await _orders(self._transport, settings, app.group, guard)
        await worker.start(create_topics=creates_topics(settings, self._transport.features))
        self._worker = worker
        mark = await mark_of_store(worker.inbox)
        await self._warn_of_other_inboxes(worker)

        def ordered(known: Mapping[RecordKey, ParkOrder]) -> None:
            guard.ordered(known)
            worker.wake_ordered(guard.is_ordered)

        self._following = asyncio.get_running_loop().create_task(follow_orders(orders, ordered, self._clock))
        if settings.directory.enabled:
            self._beacon = self._make_beacon(worker, member, mark)
            self._beacon.start()

    async def _warn_of_other_inboxes(self, worker: Worker) -> None:
        """Warn where members of the group do not use the inbox of *worker*, which this machine alone sees."""
        inbox, admin, settings = worker.inbox, self._transport.admin, self._settings
        if inbox is None or inbox.shared or not settings.bus.url.startswith("kafka://"):
            return
        try:
            infos = await NamespaceGroups(admin, settings.bus.namespace).infos()
            members = [name for info in infos if info.name == self._app.group for name in info.members]
            others = await members_elsewhere(inbox, members)
        except BusError as error:
            _log.info("process.members_unseen", error=str(error))
            return
        if others:
            _log.warning(
                "process.inboxes_differ",
                group=self._app.group,
                members=list(others[:_MAX_MEMBERS]),
                detail="inbox.local is true, and these members have never opened this inbox: what one has handled or "
                "keeps for an approval is unknown to the other; give all of them one inbox.url",
            )

    def _make_beacon(self, worker: Worker, member: str, mark: str) -> HeartbeatSender:
        window = RunWindow(self._metrics, self._app.group)

        def progress() -> WorkProgress:
            signs = worker.signs()
            # What a probe says of it, for those who do not ask it.
            is_stuck = not answer_probe("live", [signs]).ok
            missing = tuple(sorted(worker.appender.missing))
            slots = worker.slots
            return WorkProgress(
                signs.fetched_s_ago,
                len(slots.running()),
                is_stuck,
                missing,
                signs.hold_ups,
                doing=current_tasks(slots.runs(), now_s=self._clock.monotonic_s(), now_ms=self._clock.now_ms()),
                places=slots.places,
                busy=slots.busy,
                runs=window.look(self._clock.monotonic_s()),
            )

        publisher = publisher_of(self._app, self._transport, self._settings, clock=self._clock, metrics=self._metrics)
        return HeartbeatSender(
            self._app,
            publisher,
            self._settings,
            clock=self._clock,
            progress=progress,
            learn=worker.learn_time,
            member=member,
            inbox=mark,
        )

    async def run(self, stop: asyncio.Event) -> None:
        """Work until *stop* is set. Raises what no retry can repair, after logging it."""
        if self._worker is None:
            raise ConfigurationError("the host has not started")
        try:
            await self._worker.run(stop)
        except Exception as error:
            # Log it at once: the process may end before the error reaches the top.
            _log.error("process.failed", group=self._app.group, error=f"{type(error).__name__}: {text_of(error)}")
            raise

    def end_in_order(self) -> None:
        """Record that the process was asked to end. May be called by a signal handler."""
        self._guard.end_in_order()

    def work_of(self, task: asyncio.Task[Any]) -> RunningHandler | None:
        """Return what *task* handles for this app. Callable from any thread."""
        return None if self._worker is None else self._worker.slots.work_of(task)

    def signs(self) -> WorkerSigns:
        """Return what shows whether this app's worker makes progress. Callable from any thread."""
        if self._worker is None:
            app = self._app
            return WorkerSigns(agent=app.agent_id, group=app.group, is_started=False, is_stopping=self._is_stopping)
        return self._worker.signs()

    async def stop(self) -> int:
        """Drain, commit and leave the group; return how many handlers were cut."""
        if self._following is not None:
            self._following.cancel()
        # Side by side: a log that is away costs the goodbye a second, and the drain none of its time.
        leaving = None if self._beacon is None else asyncio.get_running_loop().create_task(self._beacon.stop())
        worker, self._worker, self._is_stopping = self._worker, None, True
        try:
            return 0 if worker is None else await worker.stop(self._settings.worker.drain_timeout_s)
        finally:
            if leaving is not None:
                await asyncio.wait([leaving])

    async def close(self) -> None:
        """Close the lifespans, and note that the process ends in order."""
        try:
            await self._opened.aclose()
        finally:
            self._guard.close()


@asynccontextmanager
async def opened_hosts(
    apps: Sequence[Declaration], settings: Settings, *, clock: Clock, metrics: Metrics
) -> AsyncGenerator[tuple[Transport, Sequence[Host]]]:
    """Open the log and yield it with a host for each of *apps*, not started yet; watch the loop meanwhile.

    On leaving, the hosts and then the log are closed, each of them also where another one fails to.
    """
    check_hash_seed(os.environ)
    check_groups(apps)
    async with AsyncExitStack() as stack:
        transport = open_configured(settings, clock=clock)
        stack.push_async_callback(transport.close)
        hosts: list[Host] = []
        for app in apps:
            hosts.append(Host(app, transport, settings, clock=clock, metrics=metrics))
            stack.push_async_callback(hosts[-1].close)
        loop = stack.enter_context(LoopWatch(lambda task: find_work((host.work_of for host in hosts), task)))
        metrics.loop_lag_seconds.set_function(loop.take_lag_s)
        yield transport, hosts


async def run_hosts(hosts: Sequence[Host], stop: asyncio.Event) -> None:
    """Run *hosts* until *stop* is set; raise the first failure, with the others still at work."""
    loop = asyncio.get_running_loop()
    tasks = [loop.create_task(host.run(stop)) for host in hosts]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


async def stop_hosts(hosts: Sequence[Host]) -> int:
    """Stop *hosts* side by side; return how many handlers were cut. Raises the first failure when all have stopped."""
    results = await asyncio.gather(*(host.stop() for host in hosts), return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return sum(result for result in results if isinstance(result, int))


def check_groups(apps: Collection[Declaration]) -> None:
    """Raise ConfigurationError where two of *apps* are of one group: one process is one member of a group."""
    groups: dict[str, str] = {}
    for app in apps:
        if app.group in groups:
            raise ConfigurationError(
                f"{groups[app.group]} and {app.agent_id} are both of group {app.group}: declare the handlers of one "
                "agent in several files with a Router and app.include(...), or start the app once"
            )
        groups[app.group] = app.agent_id


def _warn_of_trust(app: Declaration) -> None:
    """Warn once about trust settings that are only half configured."""
    if app.verifier is not None and app.policy is NO_POLICY:
        _log.warning(
            "trust.no_policy",
            agent=app.agent_id,
            detail="every agent with a key may publish everything: set policy.file, or set it to allow-all",
        )
    if app.verifier is None and hasattr(app.policy, "rules"):
        _log.warning(
            "trust.policy_without_keys",
            agent=app.agent_id,
            detail="senders are not verified, so no rule about agents matches: set trust.keys",
        )


def trusting(app: Declaration, settings: Settings, clock: Clock) -> Declaration:
    """Return *app* with signer, verifier and policy of *settings* where it has none of its own.

    Raises ConfigurationError for files that cannot be used.
    """
    trust = open_trust(settings, app.agent_id, clock=clock, signer=app.signer, verifier=app.verifier, policy=app.policy)
    app = msgspec.structs.replace(app, signer=trust.signer, verifier=trust.verifier, policy=trust.policy)
    if _wants_approvals(app):
        asks = any(each.asks for each in app.subscriptions.values())
        app = msgspec.structs.replace(app, mail=mail_subscriptions(app.sagas, holds=True, asks=asks))
    return app


def _wants_approvals(app: Declaration) -> bool:
    """Tell whether a rule of the policy may want an approval of what *app* handles."""
    rules = rules_source(app.policy)()
    if rules is None:
        return False
    names = [name for name, subscription in app.subscriptions.items() if not subscription.takes_steps]
    return any(
        rule.effect == "need"
        and "handle" in rule.actions
        and (rule.groups is None or compile_globs(rule.groups).match(app.group))
        and any(rule.types is None or compile_globs(rule.types).match(name) for name in names)
        for rule in rules.rules
    )


def in_namespace(settings: Settings, namespace: str | None) -> Settings:
    """Return *settings* with the *namespace* of an app; unchanged if the app names none."""
    if namespace is None or namespace == settings.bus.namespace:
        return settings
    return msgspec.structs.replace(settings, bus=msgspec.structs.replace(settings.bus, namespace=namespace))


async def _bury_the_dead(groups: NamespaceGroups, group: str, members: Collection[str]) -> None:
    """Expel *members*, dead processes of this machine, from *group*.

    Their partitions would wait until their sessions time out.
    """
    if members:
        try:
            await groups.expel(group, members)
        except BusError as error:
            _log.info(
                "process.dead_not_expelled",
                error=str(error),
                detail="their partitions go to others when their sessions have timed out",
            )


async def _orders(transport: Transport, settings: Settings, group: str, guard: CrashGuard) -> ParkOrders:
    """Read the operators' park orders, before the first record is read."""
    orders = ParkOrders(transport, settings.bus.namespace, group)
    try:
        if await orders.read_on():
            guard.ordered(orders.known)
    except BusError as error:
        _log.warning(
            "process.park_orders_unread",
            error=str(error),
            detail="messages that were dead-lettered by hand may run",
        )
    return orders


def _member_name(clock: Clock) -> str:
    return f"{socket.gethostname()[:64]}-{os.getpid()}-{uuid7(clock.now_ms(), os.urandom(10))[-12:]}"
