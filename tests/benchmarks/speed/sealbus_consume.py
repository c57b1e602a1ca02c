"""Consuming with sealbus: the worker that `sealbus run` runs, in this process, with a handler that counts.

Owns sealbus's side of the families that consume. Everything is on and at its default: every gate, the payload as its
type, order per key, retries at hand, offsets committed when handlers are through. Does not own the worker without
verification (`speed.unverified`).
"""

from __future__ import annotations

import asyncio
import os
import signal

from speed import unverified
from speed.measurement import Answer, Task, settle_memory
from speed.ours import settings_of
from speed.payloads import Report
from speed.tally import Tally

from bus.telemetry.logs import configure
from consumers.delivery.declaration import Dedup
from consumers.worker.process import run_process
from sealbus import App

__all__ = ["inbox_off", "inbox_on", "no_verification", "worker"]


async def worker(task: Task) -> Answer:
    """Verified, typed, in order per key."""
    return await _run(task, "key")


async def no_verification(task: Task) -> Answer:
    """The same worker without any verification: see `speed.unverified`."""
    unverified.install()
    return await _run(task, "key")


async def inbox_on(task: Task) -> Answer:
    """Messages with idempotency keys, remembered in the inbox."""
    return await _run(task, "key")


async def inbox_off(task: Task) -> Answer:
    """Messages with idempotency keys that nobody remembers."""
    return await _run(task, "off")


async def _run(task: Task, dedup: Dedup) -> Answer:
    configure("error")
    tally = Tally(task)
    app = App("reader@svc", group=task.group or None)

    @app.on(Report, dedup=dedup)
    async def handle(report: Report) -> None:
        tally.add()

    async def end() -> None:
        await tally.done.wait()
        # The way a worker is ended: it drains, commits and leaves its group.
        os.kill(os.getpid(), signal.SIGTERM)

    settle_memory()
    ending = asyncio.create_task(end())
    try:
        await run_process([app.declaration], settings_of(task))
    finally:
        ending.cancel()
    return tally.answer()
