"""ByteBudget in a buffer: first come, first served, and none is lost with those who go away."""

from __future__ import annotations

import asyncio
import random

import pytest

from bus.clock import ManualClock
from producers.appending.byte_budget import ByteBudget


async def turns() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def taking(room: ByteBudget, size: int, timeout_s: float = 10.0) -> asyncio.Task[bool]:
    return asyncio.get_running_loop().create_task(room.acquire(size, timeout_s=timeout_s))


async def granted() -> tuple[ByteBudget, asyncio.Task[bool]]:
    """A room, and one who was given its share of it and does not know yet."""
    room = ByteBudget(ManualClock(), 100)
    assert room.acquire_nowait(60)
    waiting = taking(room, 80)
    await turns()
    room.release(60)
    return room, waiting


async def test_budget_granted_to_a_cancelled_waiter_is_freed() -> None:
    room, waiting = await granted()
    waiting.cancel()
    await turns()
    assert waiting.cancelled()
    assert room.acquire_nowait(100)


async def test_the_byte_budget_is_granted_in_order() -> None:
    room = ByteBudget(ManualClock(), 100)
    assert room.acquire_nowait(60)
    large = taking(room, 80)
    await turns()
    assert not room.acquire_nowait(10)
    small = taking(room, 10)
    room.release(60)
    assert await large
    assert await small


async def test_a_record_larger_than_the_budget_gets_it_alone() -> None:
    room = ByteBudget(ManualClock(), 100)
    assert room.acquire_nowait(500)
    assert not room.acquire_nowait(1)
    room.release(500)
    assert room.acquire_nowait(1)
    assert not room.acquire_nowait(500)


async def test_a_closed_budget_grants_nothing() -> None:
    room = ByteBudget(ManualClock(), 100)
    assert room.acquire_nowait(60)
    waiting = taking(room, 80)
    await turns()
    room.close()
    assert not await waiting
    assert not room.acquire_nowait(1)
    assert not await room.acquire(1, timeout_s=10)


async def test_closing_withdraws_a_grant_not_yet_delivered() -> None:
    room, waiting = await granted()
    room.close()
    assert not await waiting


@pytest.mark.parametrize("seed", range(30))
async def test_random_waiters_neither_lose_nor_double_the_budget(seed: int) -> None:
    chance, clock = random.Random(seed), ManualClock()
    room = ByteBudget(clock, 1_000)
    held: list[int] = []

    async def one() -> None:
        size = chance.choice([1, 10, 300, 900, 5_000])
        if not await room.acquire(size, timeout_s=chance.choice([0.5, 3.0, 50.0])):
            return
        held.append(size)
        assert sum(held) <= 1_000 or held == [size]
        try:
            for _ in range(chance.randrange(5)):
                await asyncio.sleep(0)
        finally:
            held.remove(size)
            room.release(size)

    tasks = []
    for _ in range(300):
        tasks.append(asyncio.get_running_loop().create_task(one()))
        if chance.random() < 0.3:
            chance.choice(tasks).cancel()
        if chance.random() < 0.2:
            clock.advance(chance.random())
        if chance.random() < 0.5:
            await asyncio.sleep(0)
    async with asyncio.timeout(30):
        results = await asyncio.gather(*tasks, return_exceptions=True)
    assert {type(result) for result in results} <= {type(None), asyncio.CancelledError}
    assert room.acquire_nowait(1_000)
