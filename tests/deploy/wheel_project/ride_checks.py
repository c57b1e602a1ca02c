"""The user's own test of the agent."""

from __future__ import annotations

import asyncio
from pathlib import Path

from consumers.driver import Arrived, Ride, app
from producers.rides import stops


async def driven() -> list[Arrived]:
    async with app.test() as bus:
        for stop in stops(2):
            await bus.publish(Ride(stop=stop))
        await bus.settle()
        assert not bus.dead_letters
        return sorted(bus.sent(Arrived), key=lambda arrived: arrived.stop)


def test_rides_arrive() -> None:
    assert asyncio.run(driven()) == [Arrived(stop="north", last=False), Arrived(stop="south", last=True)]


async def test_plain_pytest_runs_coroutine_functions(tmp_path: Path) -> None:
    assert tmp_path.is_dir()
    assert len(await driven()) == 2
