"""A worker with plenty to do does not fetch for a few, and gets through all of it, also where the clock stands
still."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from bus.errors import DependencyDown
from consumers.app.app import App
from consumers.app.testing import TestBus
from consumers.delivery.resilience.retry import Retry
from tests.kit import Done, Job


async def publish_others(bus: TestBus) -> None:
    for number in range(20):
        await bus.publish(Done(number), ttl_s=7_200)
    await bus.settle()


@pytest.mark.medium
async def test_thousands_of_keys_are_handled_with_a_stopped_clock() -> None:
    app = App("plenty@svc")
    seen: list[int] = []

    @app.on(Job)
    async def handle(item: Job) -> None:
        seen.append(item.number)

    async with app.test() as bus:
        for number in range(3_000):
            await bus.publish(Job(number))
        await bus.settle()
    assert sorted(seen) == list(range(3_000))


@pytest.mark.medium
async def test_a_worker_that_pauses_fetching_under_load_stays_alive(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    app = App("plenty@svc")
    free = asyncio.Event()

    @app.on(Job)
    async def handle(item: Job) -> None:
        await free.wait()

    async with app.test() as bus:
        worker = bus.workers[0]
        for number in range(800):
            await bus.publish(Job(number))
        while worker.in_flight.room()[0] > 200:
            await worker.cycle(0)
        polls: list[dict[str, Any]] = []
        subscription = worker._joined()
        poll = subscription.poll

        async def counted(**options: Any) -> Any:
            polls.append(options)
            return await poll(**options)

        monkeypatch.setattr(subscription, "poll", counted)
        assert worker.lanes.ready > 256
        for _ in range(5):
            await worker.cycle(0)
        # Kafka takes a member that has not polled for five minutes for dead, and 256 handlers of LLMs can take longer.
        assert [options["max_records"] for options in polls] == [0] * 5
        free.set()
        await bus.settle()


@pytest.mark.medium
async def test_messages_waiting_for_a_dependency_do_not_block_others() -> None:
    app = App("plenty@svc")
    found_out, others = asyncio.Event(), []

    @app.on(Job)
    async def handle(item: Job) -> None:
        await found_out.wait()
        raise DependencyDown("db")

    @app.on(Done)
    async def handle_other(other: Done) -> None:
        others.append(other.number)

    async with app.test() as bus:
        for number in range(1_500):
            await bus.publish(Job(number), ttl_s=7_200)
        while len(bus.workers[0].in_flight) < 500:
            await bus.workers[0].cycle(0)
        found_out.set()
        await bus.settle()
        await publish_others(bus)
        assert sorted(others) == list(range(20))
        # Of what waits no more is taken than before.
        assert len(bus.workers[0].in_flight) <= 1_000


@pytest.mark.medium
async def test_a_key_whose_first_message_waits_for_its_retry_leaves_room_for_others() -> None:
    app = App("plenty@svc")
    others = []

    @app.on(Job, order="key_strict", retry=Retry(attempts=5, base_s=60, cap_s=300))
    async def handle(item: Job) -> None:
        raise ValueError("not yet")

    @app.on(Done)
    async def handle_other(other: Done) -> None:
        others.append(other.number)

    async with app.test() as bus:
        for key in range(40):
            # Keys of every partition.
            for number in range(60):
                await bus.publish(Job(number), key=f"key-{key}", ttl_s=86_400)
        await bus.settle()
        await publish_others(bus)
        assert sorted(others) == list(range(20))
