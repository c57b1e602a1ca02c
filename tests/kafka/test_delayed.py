"""A delayed message on Kafka: through real retry topics, by real clocks, and never early."""

from __future__ import annotations

import asyncio
import time
import uuid
from typing import Any

import msgspec
import pytest

from bus.settings.loading import load
from sealbus import App, payload


@payload("alarm.set")
class Alarm(msgspec.Struct, frozen=True, kw_only=True):
    name: str


@pytest.mark.slow  # waits for real seconds
async def test_it_waits_in_the_retry_topics_of_kafka(kafka: str) -> None:
    flags = {
        "bus.url": f"kafka://{kafka}",
        "bus.namespace": f"n{uuid.uuid4().hex[:12]}",
        "topics.create": True,
        "retry.tiers": "1s",
        "inbox.url": "off",
    }
    settings = load(flags=flags, env={}, file=None).settings
    app = App("alarms@svc")
    rung: asyncio.Queue[Any] = asyncio.Queue()

    @app.on(Alarm)
    async def ring(alarm: Alarm) -> None:
        rung.put_nowait((alarm.name, time.time()))

    async with app.running(settings=settings) as bus:
        # A busy broker takes seconds for what is asked first.
        await bus.publish(Alarm(name="first"))
        assert (await asyncio.wait_for(rung.get(), 60))[0] == "first"
        begun_s = time.time()
        await bus.publish(Alarm(name="late"), delay_s=4)
        await bus.publish(Alarm(name="soon"))
        assert (await asyncio.wait_for(rung.get(), 20))[0] == "soon"
        name, at_s = await asyncio.wait_for(rung.get(), 20)
        assert (name, at_s - begun_s >= 4) == ("late", True)
        assert at_s - begun_s < 15
