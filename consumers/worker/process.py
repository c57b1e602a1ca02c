"""The worker's process: its parts composed from settings, its signals, and how it ends.

Owns what a process does once: open the log, build publisher and worker, and serve metrics. It stops with a deadline on
SIGTERM, SIGINT and an error, and exits at once on a second signal. The only module of this package that touches
signals.
"""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import socket
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from threading import Timer
from types import FrameType

import msgspec

from bus.clock import Clock, SystemClock
from bus.errors import BusError, text_of
from bus.protocol.identifiers import uuid7
from bus.settings.schema import Settings
from bus.telemetry.logs import get_logger
from bus.telemetry.metrics import Metrics
from bus.topics.specs import creates_topics
from bus.transports import open_configured
from bus.transports.base import Transport
from consumers.crashes.crash_guard import CrashGuard
from consumers.crashes.open import open_roll
from consumers.deadletters.park_orders import ParkOrders, follow_orders
from consumers.declaration import Declaration
from consumers.group_plan import make_plan
from consumers.inbox.open import choose_inbox, has_inbox
from consumers.worker.loop_watchdog import LoopWatch
from consumers.worker.metrics_server import MetricsServer
from consumers.worker.signals import ECHO_S, RepeatedSignal
from consumers.worker.startup_checks import check_hash_seed, check_needs
from consumers.worker.worker import Worker
from producers.connection import make_publisher

__all__ = ["in_namespace", "make_worker", "run_process"]

_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_TEARDOWN_S = 5.0
_USUAL_THRESHOLDS = (700, 2_000)
"""The default thresholds of Python 3.11 and 3.12, and of later versions."""
_THRESHOLD = 10_000

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
) -> Worker:
    """Build a worker of *app* on *transport*, with a publisher of its own for what it sends."""
    settings = in_namespace(settings, app.namespace)
    publisher = make_publisher(transport, settings, app.agent, clock=clock, metrics=metrics, signer=app.signer)
    inbox = choose_inbox(app, settings, owner=member, clock=clock)
    return Worker(
        app,
        make_plan(app, settings),
        transport,
        publisher,
        settings,
        inbox=inbox,
        member=member,
        clock=clock,
        metrics=metrics,
        guard=guard,
    )


async def run_process(
    app: Declaration,
    settings: Settings,
    *,
    metrics_port: int | None = None,
    metrics_host: str = "127.0.0.1",
    on_ready: Callable[[], None] | None = None,
    echo_s: float = ECHO_S,
) -> int:
    """Work until a signal; return the exit code: 0 when everything was drained, 1 when handlers were cut.

    A second signal ends the process at once, unless it comes within *echo_s* seconds of the first. Raises the error
    that ended the worker. The process then ends by the deadline that a signal would have set.
    """
    clock = SystemClock()
    metrics = Metrics()
    transport = open_configured(settings, clock=clock)
    guard = CrashGuard(open_roll(in_namespace(settings, app.namespace), app.group), clock)
    try:
        check_hash_seed(os.environ)
        check_needs(app, has_inbox=has_inbox(app, settings))
        member = _member_name(clock)
        worker = make_worker(app, transport, settings, member=member, clock=clock, metrics=metrics, guard=guard)
        with (
            MetricsServer(metrics.registry, metrics_host, metrics_port),
            _rarer_collections(),
            LoopWatch(worker.slots.work_of) as loop,
        ):
            metrics.loop_lag_seconds.set_function(loop.take_lag_s)
            guard.open(settings.worker.concurrency, member)
            await _bury_the_dead(transport, app.group, guard.gone_members())
            orders = await _orders(transport, in_namespace(settings, app.namespace), app.group, guard)
            await worker.start(create_topics=creates_topics(settings, transport.features))
            limit_s = settings.worker.drain_timeout_s + _TEARDOWN_S
            with _stopping(limit_s, echo_s, guard.end_in_order) as stop:
                if on_ready is not None:
                    on_ready()
                following = asyncio.get_running_loop().create_task(follow_orders(orders, guard.ordered, clock))
                try:
                    await worker.run(stop)
                except Exception as error:
                    # Log it at once: the deadline may end the process before the error reaches the top.
                    _log.error("process.failed", error=f"{type(error).__name__}: {text_of(error)}")
                    guard.end_in_order()
                    _end_after(limit_s)
                    raise
                finally:
                    following.cancel()
                    _log.info("process.stopping")
                    cut = await worker.stop(settings.worker.drain_timeout_s)
        return 1 if cut else 0
    finally:
        guard.close()
        await transport.close()


async def _bury_the_dead(transport: Transport, group: str, members: Collection[str]) -> None:
    """Expel *members*, dead processes of this machine, from *group*.

    Their partitions would wait until their sessions time out.
    """
    if members:
        try:
            await transport.admin.expel(group, members)
        except BusError as error:
            _log.info(
                "process.dead_not_expelled",
                error=str(error),
                detail="their partitions go to others when their sessions have timed out",
            )


async def _orders(transport: Transport, settings: Settings, group: str, guard: CrashGuard) -> ParkOrders:
    """Read what operators have set aside, before the first record is read."""
    orders = ParkOrders(transport, settings.bus.namespace, group)
    try:
        if await orders.read_on():
            guard.ordered(orders.known)
    except BusError as error:
        _log.warning(
            "process.park_orders_unread",
            error=str(error),
            detail="what was set aside with `sealbus groups --park` may run",
        )
    return orders


@contextmanager
def _rarer_collections() -> Iterator[None]:
    """Let Python's garbage collector run less often, unless the program has chosen a threshold itself.

    What is made for a message is freed without the collector when the message is settled. At its default threshold the
    collector would scan everything in flight every fifty messages, a tenth of a worker's time.
    """
    before = gc.get_threshold()
    if before[0] in _USUAL_THRESHOLDS:
        gc.set_threshold(_THRESHOLD, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)


@contextmanager
def _stopping(limit_s: float, echo_s: float, stopping: Callable[[], None]) -> Iterator[asyncio.Event]:
    """Yield an event that the first signal sets; the second signal ends the process at once.

    The process also ends *limit_s* seconds after the first. *stopping* is called with the first.

    Plain signal handlers: a handler that blocks the event loop must not keep the process alive.
    """
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    asked: list[int] = []
    insistence = RepeatedSignal(echo_s)

    def received(number: int, _: FrameType | None) -> None:
        insists = insistence.grows()
        if insists:
            os._exit(128 + number)
        if insists is not None:
            return
        asked.append(number)
        stopping()
        _end_after(limit_s)
        loop.call_soon_threadsafe(stop.set)

    before = {number: signal.signal(number, received) for number in _SIGNALS}
    try:
        yield stop
    finally:
        # After a signal the handlers stay: the teardown can hang as well.
        if not asked:
            for number, handler in before.items():
                signal.signal(number, handler)


def _end_after(limit_s: float) -> None:
    """End the process after *limit_s* seconds, if it still runs.

    In a thread: a handler that blocks the event loop, or ignores being cancelled, must not keep the process alive.
    Ending it is safe at any moment: unsettled messages are delivered again.
    """
    timer = Timer(limit_s, os._exit, (1,))
    timer.daemon = True
    timer.start()


def in_namespace(settings: Settings, namespace: str | None) -> Settings:
    """Return *settings* with the *namespace* that an app asks for; unchanged where it asks for none."""
    if namespace is None or namespace == settings.bus.namespace:
        return settings
    return msgspec.structs.replace(settings, bus=msgspec.structs.replace(settings.bus, namespace=namespace))


def _member_name(clock: Clock) -> str:
    return f"{socket.gethostname()[:64]}-{os.getpid()}-{uuid7(clock.now_ms(), os.urandom(10))[-12:]}"
