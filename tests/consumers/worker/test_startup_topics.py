"""What a worker does to topics at its start: it makes those that are missing, and changes none."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
import structlog
from structlog.testing import capture_logs

from bus.clock import ManualClock
from bus.settings.loading import load
from bus.transports import open_transport
from bus.transports.base import Transport
from consumers.worker import startup_topics as provisioning
from consumers.worker.host import make_worker
from sealbus import App
from sealbus.errors import UnreachableError
from sealbus.telemetry import Metrics
from tests.kit import Job

app = App("provisioned@tests")


@app.on(Job)
async def handle(_: Job) -> None: ...


async def start_and_stop(transport: Transport, **flags: object) -> None:
    settings = load(flags={name.replace("__", "."): value for name, value in flags.items()}, env={}, file=None).settings
    worker = make_worker(app.declaration, transport, settings, member="m", clock=ManualClock(), metrics=Metrics())
    await worker.start(create_topics=True)
    await worker.stop(0)


@pytest.mark.parametrize(("setting", "value"), [("topics__retention_s", "14d"), ("topics__partitions", 8)])
async def test_a_worker_with_other_settings_leaves_topics_as_they_are_and_names_them(
    setting: str, value: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Whatever level an earlier test has left.
    every = structlog.make_filtering_bound_logger(0)
    monkeypatch.setattr(provisioning, "_log", structlog.wrap_logger(structlog.PrintLogger(), wrapper_class=every))
    transport = open_transport("memory://", clock=ManualClock())
    await start_and_stop(transport, topics__retention_s="90d", topics__partitions=2)
    before = await transport.admin.topics()
    with capture_logs() as logs:
        await start_and_stop(transport, **{"topics__retention_s": "90d", "topics__partitions": 2} | {setting: value})
    assert await transport.admin.topics() == before
    (told,) = [line for line in logs if line["event"] == "worker.topics_differ"]
    assert "agents.job.asked" in told["topics"]
    await transport.close()


async def test_missing_topics_are_created_beside_existing_ones() -> None:
    transport = open_transport("memory://", clock=ManualClock())
    await start_and_stop(transport, retry__tiers="5s")
    with capture_logs() as logs:
        await start_and_stop(transport, retry__tiers="5s,30s")
    assert f"agents._retry.{app.group}.30s" in await transport.admin.topics()
    assert not [line for line in logs if line["event"] == "worker.topics_differ"]
    await transport.close()


async def test_a_start_that_fails_leaves_nothing_of_the_inbox_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    transport = open_transport("memory://", clock=ManualClock())

    async def fail(*_: object, **__: object) -> None:
        raise UnreachableError("gone")

    monkeypatch.setattr(transport, "subscribe", fail)
    for _ in range(3):
        with pytest.raises(UnreachableError):
            await start_and_stop(transport, inbox__url=f"sqlite:///{tmp_path}/inbox.db")
    assert not [thread for thread in threading.enumerate() if "inbox" in thread.name]
    monkeypatch.undo()
    await start_and_stop(transport, inbox__url=f"sqlite:///{tmp_path}/inbox.db")
    await transport.close()
