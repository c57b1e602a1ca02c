"""The worker's process: its hosts on one log, its signals, and how it ends.

Owns what a process does once: serve metrics, and end. It stops with a deadline on SIGTERM, SIGINT, SIGHUP and an error,
and exits at once on a second signal. The only module of this package that touches signals.
"""

from __future__ import annotations

import asyncio
import gc
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from threading import Timer
from types import FrameType

from bus.clock import SystemClock
from bus.settings.schema import Settings
from bus.telemetry.logs import get_logger
from bus.telemetry.metrics import Metrics
from consumers.delivery.declaration import Declaration
from consumers.worker.health import HealthAnswer, Probe, answer_probe
from consumers.worker.host import Host, opened_hosts, run_hosts, stop_hosts
from consumers.worker.metrics_server import MetricsServer
from consumers.worker.signals import ECHO_S, RepeatedSignal, ending_signals

__all__ = ["run_process"]

_TEARDOWN_S = 5.0
_USUAL_THRESHOLDS = (700, 2_000)
"""The default thresholds of Python 3.11 and 3.12, and of later versions."""
_THRESHOLD = 10_000

_log = get_logger("process")


async def run_process(
    apps: Sequence[Declaration],
    settings: Settings,
    *,
    metrics_port: int | None = None,
    metrics_host: str = "127.0.0.1",
    on_ready: Callable[[], None] | None = None,
    echo_s: float = ECHO_S,
) -> int:
    """Run *apps* until a signal; return the exit code: 0 when everything was drained, 1 when handlers were cut.

    A second signal ends the process at once, unless it comes within *echo_s* seconds of the first. Raises the error
    that ended a worker. The process then ends by the deadline that a signal would have set.
    """
    metrics = Metrics()
    async with opened_hosts(apps, settings, clock=SystemClock(), metrics=metrics) as (_, hosts):

        def health(probe: Probe) -> HealthAnswer:
            return answer_probe(probe, [host.signs() for host in hosts])

        with MetricsServer(metrics.registry, metrics_host, metrics_port, health), _rarer_collections():
            cut = await _work(hosts, settings.worker.drain_timeout_s + _TEARDOWN_S, on_ready, echo_s)
    return 1 if cut else 0


async def _work(hosts: Sequence[Host], limit_s: float, on_ready: Callable[[], None] | None, echo_s: float) -> int:
    """Start *hosts*, run them until a signal or the first failure, stop them; return how many handlers were cut."""
    try:
        for host in hosts:
            await host.start()

        def ending() -> None:
            for host in hosts:
                host.end_in_order()

        with _stopping(limit_s, echo_s, ending) as stop:
            if on_ready is not None:
                on_ready()
            try:
                await run_hosts(hosts, stop)
            except Exception:
                ending()
                _end_after(limit_s)
                raise
            finally:
                _log.info("process.stopping")
                cut = await stop_hosts(hosts)
    except BaseException:
        # Those that had started before another failed to.
        await stop_hosts(hosts)
        raise
    return cut


@contextmanager
def _rarer_collections() -> Iterator[None]:
    """Make Python's garbage collector run less often, unless the program has set a threshold itself.

    The objects of a message are freed without the collector when the message is settled. At its default threshold the
    collector would scan everything in flight every fifty messages, which takes a tenth of a worker's time.
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

    before = {number: signal.signal(number, received) for number in ending_signals()}
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
