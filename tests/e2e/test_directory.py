"""Agents that hang or are killed are unhealthy in time, and not before."""

from __future__ import annotations

import asyncio
import signal
import time

import pytest
from conftest import Workers, wait_until

from bus.settings.loading import load
from sealbus import connect

pytestmark = pytest.mark.medium  # real workers

AGENT = "ledger@tests"


async def health(url: str) -> str:
    flags = {"bus.url": url, "directory.healthy_s": "4s"}
    async with connect(agent="tests@tests", settings=load(flags=flags, env={}, file=None).settings) as bus:
        # What was there before the reader came counts by the newest append; a moment shows who is silent.
        await bus.directory.ready()
        await asyncio.sleep(4.5)
        entry = await bus.directory.get(AGENT)
        return "unknown" if entry is None else entry.health


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_an_agent_that_is_killed_or_hangs_is_unhealthy(workers: Workers, how: signal.Signals) -> None:
    workers.env |= {"SEALBUS_DIRECTORY__BEAT_S": "0.4s", "SEALBUS_DIRECTORY__HEALTHY_S": "4s"}
    process = workers.start()
    wait_until(lambda: "worker.started" in workers.logs(), 45, "it has started")
    assert asyncio.run(health(workers.url)) == "healthy"
    process.send_signal(how)
    began_s = time.monotonic()
    assert asyncio.run(health(workers.url)) == "unhealthy"
    assert time.monotonic() - began_s < 20
    if how == signal.SIGSTOP:
        process.send_signal(signal.SIGCONT)
        assert asyncio.run(health(workers.url)) == "healthy"
