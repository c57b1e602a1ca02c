"""A worker inside another program: `App.running` and `App.run`.

Owns starting it beside the program's own work, ending it with that work, and telling the program when it fails. It
touches neither signals nor the garbage collector, which are the program's.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from bus.clock import SystemClock
from bus.errors import text_of
from bus.settings.loading import load_project
from bus.settings.schema import Settings
from bus.settings.sources import given_to
from bus.telemetry.logs import configure_unless_done, get_logger
from bus.telemetry.metrics import Metrics
from consumers.delivery.declaration import Declaration
from consumers.worker.host import Host, in_namespace, opened_hosts, publisher_of, run_hosts, stop_hosts
from producers.connection import Bus

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["running"]

_log = get_logger("embedded")


@asynccontextmanager
async def running(
    apps: Sequence[Declaration],
    url: str | None,
    *,
    config: Path | None,
    settings: Settings | None,
    metrics: Metrics | None,
    on_failure: Callable[[BaseException], None] | None,
) -> AsyncGenerator[Bus]:
    """Run *apps* beside the body, and yield a `Bus` of the first one on the same log.

    On leaving, running handlers are drained. A worker that fails ends the body: it is cancelled, and the failure is
    raised instead; with *on_failure*, that is called and the body goes on.
    """
    if settings is None:
        settings = load_project(flags=given_to("the App", url=url), env=os.environ, file=config).settings
    configure_unless_done("warning")
    clock, metrics = SystemClock(), metrics or Metrics()
    async with opened_hosts(apps, settings, clock=clock, metrics=metrics) as (transport, hosts):
        first = hosts[0].app
        publisher = publisher_of(
            first, transport, in_namespace(settings, first.namespace), clock=clock, metrics=metrics
        )
        bus = Bus(publisher, transport, verifier=first.verifier, policy=first.policy)
        try:
            async with _beside(hosts, on_failure):
                yield bus
        finally:
            await bus.stop_reading()
            await publisher.close()


@asynccontextmanager
async def _beside(hosts: Sequence[Host], on_failure: Callable[[BaseException], None] | None) -> AsyncGenerator[None]:
    """Run *hosts* beside the body."""
    stop = asyncio.Event()
    try:
        for host in hosts:
            await host.start()
        work = asyncio.get_running_loop().create_task(run_hosts(hosts, stop))
        body = _Body(stop, on_failure)
        work.add_done_callback(body.work_ended)
        try:
            yield
        except asyncio.CancelledError:
            body.raise_failure()
            raise
        finally:
            for host in hosts:
                host.end_in_order()
            stop.set()
            await asyncio.wait([work])
        body.raise_failure()
    finally:
        await asyncio.shield(asyncio.ensure_future(stop_hosts(hosts)))


class _Body:
    """The program's own work beside a worker, which a failure of the worker cancels."""

    def __init__(self, stop: asyncio.Event, on_failure: Callable[[BaseException], None] | None) -> None:
        self._stop = stop
        self._on_failure = on_failure
        self._task = asyncio.current_task()
        self._failure: BaseException | None = None
        self._cancelled = False

    def work_ended(self, work: asyncio.Task[None]) -> None:
        """Tell the program of a failure."""
        if work.cancelled() or (error := work.exception()) is None:
            return
        if self._on_failure is None:
            self._failure = error
            if self._task is not None and not self._stop.is_set():
                self._cancelled = self._task.cancel()
            return
        try:
            self._on_failure(error)
        except Exception as wrong:  # noqa: BLE001 - the program's own function must not end the event loop
            _log.error("embedded.on_failure_failed", error=text_of(wrong))

    def raise_failure(self) -> None:
        """Raise the worker's failure, unless the program itself was cancelled, too."""
        cancels = self._task.uncancel() if self._cancelled and self._task is not None else 0
        self._cancelled = False
        if self._failure is not None and not cancels:
            raise self._failure
