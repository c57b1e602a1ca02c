"""The worker's process: composing its parts from settings, signals, and how it ends.

Owns what a process does once: open the log, build publisher and worker, serve metrics, stop on SIGTERM and SIGINT with a deadline, and exit at
once on a second signal. The only place in this package that touches signals.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from threading import Thread
from wsgiref.simple_server import WSGIServer

import msgspec
from prometheus_client import start_http_server

from bus import durations
from bus.clock import Clock, SystemClock
from bus.logs import get_logger
from bus.metrics import Metrics
from bus.names import uuid7
from bus.settings import Settings
from bus.topology import creates_topics
from bus.transports import open_transport
from bus.transports.base import Transport
from consumers.app import App
from consumers.execution import Plan
from consumers.retry import Retry, Tier
from consumers.worker import Worker
from producers.connection import make_publisher

__all__ = ["make_worker", "run_process", "serve_metrics"]

_SIGNALS = (signal.SIGTERM, signal.SIGINT)

_log = get_logger("process")


def make_worker(app: App, transport: Transport, settings: Settings, *, member: str, clock: Clock, metrics: Metrics) -> Worker:
    """A worker of *app* on *transport*, with a publisher of its own for what it sends."""
    settings = _in_namespace(settings, app.namespace)
    publisher = make_publisher(transport, settings, app.agent, clock=clock, metrics=metrics, signer=app.signer)
    plan = Plan(
        namespace=settings.bus.namespace,
        group=app.group,
        agent_id=app.agent_id,
        retry=Retry(attempts=settings.retry.attempts, backoff=settings.retry.backoff, base_s=settings.retry.base_s, cap_s=settings.retry.cap_s),
        timeout_s=settings.worker.timeout_s,
        tiers=tuple(Tier(name, durations.seconds(name)) for name in settings.retry.tiers),
    )
    return Worker(app, plan, transport, publisher, settings, member=member, clock=clock, metrics=metrics)


async def run_process(app: App, settings: Settings, *, metrics_port: int | None = None, on_ready: Callable[[], None] | None = None) -> int:
    """Work until a signal; the exit code: 0 when everything was drained, 1 when handlers were cut."""
    clock = SystemClock()
    metrics = Metrics()
    transport = open_transport(settings.bus.url, clock=clock)
    try:
        worker = make_worker(app, transport, settings, member=_member_name(clock), clock=clock, metrics=metrics)
        with serve_metrics(metrics, metrics_port):
            await worker.start(create_topics=creates_topics(settings, transport.features))
            async with _stopping() as stop:
                if on_ready is not None:
                    on_ready()
                try:
                    await worker.run(stop)
                finally:
                    cut = await worker.stop(settings.worker.drain_timeout_s)
        return 1 if cut else 0
    finally:
        await transport.close()


class serve_metrics:  # noqa: N801 - used as `with serve_metrics(...)`
    """Serve *metrics* in the Prometheus text format on *port* (0 picks a free one, None serves nothing)."""

    def __init__(self, metrics: Metrics, port: int | None) -> None:
        self._metrics = metrics
        self._port = port
        self._server: WSGIServer | None = None
        self._thread: Thread | None = None

    def __enter__(self) -> serve_metrics:
        if self._port is not None:
            server, thread = start_http_server(self._port, registry=self._metrics.registry)
            self._server, self._thread = server, thread
            _log.info("metrics.served", port=server.server_port)
        return self

    def __exit__(self, *exc_info: object) -> None:
        if self._server is not None and self._thread is not None:
            self._server.shutdown()
            self._server.server_close()
            self._thread.join()


@asynccontextmanager
async def _stopping() -> AsyncGenerator[asyncio.Event]:
    """An event that the first signal sets; the second one ends the process at once."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()

    def received(number: int) -> None:
        if stop.is_set():
            _log.warning("process.killed", signal=signal.Signals(number).name)
            # Safe at any moment: whatever is not settled is delivered again.
            os._exit(128 + number)
        _log.info("process.stopping", signal=signal.Signals(number).name)
        stop.set()

    for number in _SIGNALS:
        loop.add_signal_handler(number, received, number)
    try:
        yield stop
    finally:
        for number in _SIGNALS:
            loop.remove_signal_handler(number)


def _in_namespace(settings: Settings, namespace: str | None) -> Settings:
    if namespace is None or namespace == settings.bus.namespace:
        return settings
    return msgspec.structs.replace(settings, bus=msgspec.structs.replace(settings.bus, namespace=namespace))


def _member_name(clock: Clock) -> str:
    return f"{socket.gethostname()[:64]}-{os.getpid()}-{uuid7(clock.now_ms(), os.urandom(10))[-12:]}"
