"""Limits that all workers of a group share through their store."""

from __future__ import annotations

import asyncio

from bus.clock import SystemClock
from consumers.delivery.inbox.limiter import Limiter
from sealbus.limits import Concurrency, Rate
from tests.consumers.delivery.inbox.stores import Store


async def test_workers_share_a_rate(shared_store: Store) -> None:
    limit = [Rate("api", 600, per_s=6)]
    clock = SystemClock()
    limiters = []
    for name in ("a", "b", "c"):
        limiter = Limiter(await shared_store.open(name), scope=("agents", "group"), member=name, clock=clock)
        await limiter.open()
        limiters.append(limiter)
    begun_s, taken = clock.monotonic_s(), 0

    async def use(limiter: Limiter, name: str) -> None:
        nonlocal taken
        number = 0
        while clock.monotonic_s() - begun_s < 3:
            run, number = f"{name}{number}", number + 1
            while (wait_s := await limiter.acquire(run, limit, None)) > 0:  # noqa: ASYNC110 - as a lane does
                await asyncio.sleep(wait_s)
            if clock.monotonic_s() - begun_s < 3:
                taken += 1
            await limiter.release(run, limit)

    if shared_store.clock is None:
        await asyncio.gather(*(use(limiter, str(at)) for at, limiter in enumerate(limiters)))
        assert 60 <= taken <= 310


async def test_a_wait_for_the_store_brings_no_run_before_its_time(shared_store: Store) -> None:
    limit = [Rate("api", 10, per_s=10)]
    clock = shared_store.clock or SystemClock()
    inbox, other = await shared_store.open("a"), await shared_store.open("b")
    limiter = Limiter(inbox, scope=("agents", "group"), member="a", clock=clock)
    await limiter.open()
    begun_s = clock.monotonic_s()
    assert await limiter.acquire("1", limit, None) == 0
    busy = await other.begin()
    await busy.execute("UPDATE sealbus_rates SET free_ms = free_ms")
    asking = asyncio.create_task(limiter.acquire("2", limit, None))
    if shared_store.clock is None:
        await asyncio.sleep(0.7)  # the store's own clock
    else:
        await asyncio.sleep(0)
        shared_store.clock.advance(0.7)
    await busy.commit()
    await busy.rollback()
    wait_s = await asking
    assert clock.monotonic_s() + wait_s - begun_s >= 0.99


async def test_workers_share_places_and_a_dead_one_gives_its_own_back(shared_store: Store) -> None:
    limit = [Concurrency("gpu", 2)]
    clock = shared_store.clock or SystemClock()
    first, second = [
        Limiter(await shared_store.open(name), scope=("agents", "group"), member=name, clock=clock) for name in "ab"
    ]
    await first.open()
    await second.open()
    assert await first.acquire("1", limit, None) == 0
    assert await second.acquire("2", limit, None) == 0
    assert await first.acquire("3", limit, None) > 0
    await second.release("2", limit)
    assert await first.acquire("3", limit, None) == 0
    if shared_store.clock is not None:
        shared_store.clock.advance(61)
        assert await second.acquire("4", limit, None) == 0
