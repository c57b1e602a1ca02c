"""A worker with plenty to do does not fetch for a few, and gets through all of it, also where the clock stands still."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from bus.payloads import payload
from consumers.app import App


@payload("plenty.item", version="1.0.0")
class Item(msgspec.Struct, frozen=True):
    number: int


async def test_thousands_of_keys_are_handled_while_the_clock_stands_still() -> None:
    app = App("plenty@svc")
    seen: list[int] = []

    @app.on(Item)
    async def handle(item: Item) -> None:
        seen.append(item.number)

    async with app.test() as bus:
        for number in range(3_000):
            await bus.publish(Item(number))
        await bus.settle()
    assert sorted(seen) == list(range(3_000))


async def test_a_worker_that_does_not_fetch_because_it_has_plenty_to_do_still_shows_that_it_lives(monkeypatch: pytest.MonkeyPatch) -> None:
    app = App("plenty@svc")
    free = asyncio.Event()

    @app.on(Item)
    async def handle(item: Item) -> None:
        await free.wait()

    async with app.test() as bus:
        worker = bus._worker
        for number in range(800):
            await bus.publish(Item(number))
        while worker.flight.room[0] > 200:
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
