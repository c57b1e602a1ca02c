"""What a worker says of itself, where its log takes nothing."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from bus.clock import ManualClock
from bus.errors import NotPermittedError
from bus.settings.loading import load
from bus.transports import open_transport
from consumers.worker.heartbeats import HeartbeatSender, WorkProgress
from producers.connection import make_publisher
from sealbus import App
from sealbus.telemetry import Metrics


async def test_a_failed_announcement_is_repeated_with_the_next_heartbeat(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, settings = ManualClock(), load(flags={}, env={}, file=None).settings
    transport = open_transport("memory://", clock=clock)
    publisher = make_publisher(transport, settings, "shop@svc", clock=clock, metrics=Metrics())
    tried = 0

    async def refused(*_: Any, **__: Any) -> Any:
        nonlocal tried
        tried += 1
        raise NotPermittedError("no right to write there")

    monkeypatch.setattr(publisher, "send", refused)
    missing = ("agents.order.placed",)
    beacon = HeartbeatSender(
        App("shop@svc").declaration,
        publisher,
        settings,
        clock=clock,
        progress=lambda: WorkProgress(0.0, 0, missing=missing),
    )
    beacon.start()
    for _ in range(200):
        await asyncio.sleep(0)
    # A card and a beat, and nothing more before time passes.
    assert tried == 2
    await beacon.stop()
    await publisher.close()
    await transport.close()
