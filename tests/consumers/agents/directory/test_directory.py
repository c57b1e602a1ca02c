"""The directory, with real workers on a log in a file: who stops, hangs or is forged."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from bus.settings.loading import load
from bus.settings.schema import Settings
from bus.topics.specs import directory_topics
from bus.vocabulary.agent import AgentAnnouncement, AgentDiscover, AgentHeartbeat
from consumers.agents.directory.registry import registry_app
from producers.directory import AgentEntry
from producers.sealing.seal_request import SealRequest
from sealbus import App, Bus, Outgoing, PublishRejected, connect, payload

pytestmark = pytest.mark.medium  # real clocks


@payload("who.work", version="1.2.0")
class Work(msgspec.Struct, frozen=True, kw_only=True):
    block_s: float = 0.0


@payload("who.other", version="1.0.0")
class Other(msgspec.Struct, frozen=True, kw_only=True):
    pass


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    flags = {
        "bus.url": f"sqlite:///{tmp_path}/log.db",
        "directory.beat_s": "0.2s",
        "directory.healthy_s": "3s",
    }
    return load(flags=flags, env={}, file=None).settings


def worker(name: str = "worker@svc") -> App:
    app = App(name, capabilities=["work"])

    @app.on(Work)
    async def work(asked: Work) -> None:
        time.sleep(asked.block_s)  # noqa: ASYNC251 - a loop that stands still

    return app


async def until(bus: Bus, is_so: Callable[[AgentEntry | None], bool], within_s: float = 30.0) -> AgentEntry | None:
    begun_s = time.monotonic()
    while not is_so(entry := await bus.directory.get("worker@svc")):
        assert time.monotonic() - begun_s < within_s, entry
        await asyncio.sleep(0.05)
    return entry


async def announced(settings: Settings) -> None:
    """Wait until the worker has said that it works."""
    async with connect(agent="early@svc", settings=settings) as bus:
        await until(bus, lambda entry: entry is not None and entry.is_healthy)


async def seen_late(settings: Settings) -> str:
    """What a reader that comes now makes of the worker."""
    async with connect(agent="late@svc", settings=settings) as bus:
        entry = await bus.directory.get("worker@svc")
        assert entry is not None
        return entry.health


async def test_a_worker_is_found_by_what_it_takes_and_gone_when_it_has_left(settings: Settings) -> None:
    async with connect(agent="asker@svc", settings=settings) as bus:
        assert await bus.directory.get("worker@svc") is None
        async with worker().running(settings=settings):
            entry = await until(bus, lambda entry: entry is not None and entry.is_healthy)
            assert entry is not None
            assert entry.capabilities == ("work",)
            assert [each.agent_id for each in await bus.directory.find(type="who.work")] == ["worker@svc"]
            assert await bus.directory.find(type="who.other") == []
            await bus.publish(Work(), to="worker@svc", require_receiver=True)
            with pytest.raises(PublishRejected, match=r"does not take who\.other"):
                await bus.publish(Other(), to="worker@svc", require_receiver=True)
            with pytest.raises(PublishRejected, match="is unknown: no worker"):
                await bus.publish(Work(), to="nobody@svc", require_receiver=True)
        await until(bus, lambda entry: entry is not None and entry.health == "gone")
        with pytest.raises(PublishRejected, match="is gone"):
            await bus.publish(Work(), to="worker@svc", require_receiver=True)


async def test_a_late_reader_sees_the_agents_that_are_up(settings: Settings) -> None:
    async with worker().running(settings=settings):
        await announced(settings)
        async with connect(agent="late@svc", settings=settings) as bus:
            entry = await bus.directory.get("worker@svc")
            assert entry is not None
            assert entry.is_healthy


async def test_a_late_reader_sees_the_agents_that_left(settings: Settings) -> None:
    async with worker().running(settings=settings):
        await announced(settings)
    async with connect(agent="late@svc", settings=settings) as bus:
        entry = await bus.directory.get("worker@svc")
        assert entry is not None
        assert entry.health == "gone"


async def test_a_late_reader_does_not_take_the_last_beat_of_the_dead_for_a_new_one(settings: Settings) -> None:
    async with connect(agent="worker@svc", settings=settings) as dying:
        sender = msgspec.structs.replace(dying.publisher.sealer.origin.sender, session_id="s")
        origin = msgspec.structs.replace(dying.publisher.sealer.origin, sender=sender)
        await dying.transport.admin.create_topics(directory_topics(settings))
        beat = Outgoing(AgentHeartbeat(status="healthy"), key="worker@svc#s")
        await dying.publisher.send(
            dying.publisher.sealer.seal(beat, SealRequest(topic="agents._heartbeats", origin=origin))
        )
    assert await seen_late(settings) == "healthy"
    # Each comes later, and none takes what it reads for news.
    async with asyncio.timeout(30):
        while await seen_late(settings) != "unhealthy":  # noqa: ASYNC110 - another process would see it so
            await asyncio.sleep(0.5)


def ended(entry: AgentEntry) -> bool:
    return any(each.took for each in entry.runs)


async def test_a_worker_says_what_its_handlers_do_now(settings: Settings) -> None:
    app, over = App("worker@svc"), asyncio.Event()

    @app.on(Work)
    async def work(asked: Work) -> None:
        await over.wait()

    async with app.running(settings=settings), connect(agent="asker@svc", settings=settings) as bus:
        begun_ms = time.time_ns() // 1_000_000
        receipt = await bus.publish(Work(), conversation_id="order-1")
        entry = await until(bus, lambda entry: entry is not None and bool(entry.doing))
        assert entry is not None
        (task,) = entry.doing
        assert (task.message_type, task.message_id, task.conversation_id) == (
            "who.work",
            receipt.message_id,
            "order-1",
        )
        assert begun_ms - 1_000 <= task.since_ms <= time.time_ns() // 1_000_000
        assert (entry.busy, entry.places) == (1, settings.worker.concurrency)
        over.set()
        entry = await until(bus, lambda entry: entry is not None and not entry.doing)
        assert entry is not None
        assert (entry.busy, len(entry.sealbus_versions)) == (0, 1)
        entry = await until(bus, lambda entry: entry is not None and ended(entry))
        assert entry is not None
        assert sum(each.runs for part in entry.runs for each in part.took) == 1


async def test_a_forged_heartbeat_is_not_believed(settings: Settings) -> None:
    async with connect(agent="asker@svc", settings=settings) as bus:
        async with worker().running(settings=settings) as own:
            await until(bus, lambda entry: entry is not None and entry.is_healthy)
            await own.publish(AgentHeartbeat(status="unhealthy"), key="worker@svc#x")
        sealer = bus.publisher.sealer
        # In another's name: the key says one agent, the seal another.
        forged = sealer.seal(
            Outgoing(AgentHeartbeat(status="healthy"), key="worker@svc#s"), SealRequest(topic="agents._heartbeats")
        )
        await until(bus, lambda entry: entry is not None and not entry.is_healthy)
        await bus.publisher.send(forged)
        entry = await until(bus, lambda _: bus.directory.refused == 1)
        assert entry is not None
        assert not entry.is_healthy


async def test_the_registry_answers_who_is_there(settings: Settings) -> None:
    asked = AgentDiscover(capabilities=("work",))
    async with (
        worker().running(settings=settings),
        registry_app(settings).running(settings=settings),
        connect(agent="asker@svc", settings=settings) as bus,
    ):
        # The registry reads the same heartbeats in its own time; a busy machine may hold one up.
        async with asyncio.timeout(60):
            while True:
                told = await bus.request(asked, AgentAnnouncement, timeout_s=30)
                if [(agent.agent_id, agent.status) for agent in told.agents] == [("worker@svc", "healthy")]:
                    break
                await asyncio.sleep(0.1)
    assert told.total_count == 1
