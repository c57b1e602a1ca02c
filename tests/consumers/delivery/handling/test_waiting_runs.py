"""A run that waits for an answer is not at work: nested requests finish, whatever the limits, and limits still hold."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import msgspec
import pytest

from bus.settings.loading import load
from sealbus import App, Context, payload


@payload("wait.outer", version="1.0.0", performative="request")
class Outer(msgspec.Struct, frozen=True, kw_only=True):
    depth: int = 0


@payload("wait.inner", version="1.0.0", performative="request")
class Inner(msgspec.Struct, frozen=True, kw_only=True):
    depth: int


@payload("wait.answer", version="1.0.0", performative="inform")
class Answer(msgspec.Struct, frozen=True, kw_only=True):
    depth: int


@payload("wait.low", version="1.0.0", risk="low", performative="request")
class Low(msgspec.Struct, frozen=True, kw_only=True):
    depth: int


def settings(**worker: Any) -> Any:
    return load(flags={f"worker.{name}": value for name, value in worker.items()}, env={}, file=None).settings


def chain(depth: int, *, timeout_s: float = 30) -> App:
    """An app whose two handlers ask each other, *depth* times, under the key of the conversation."""
    app = App("chain@tests", types=[Answer])

    @app.on(Outer)
    async def outer(asked: Outer, context: Context) -> Answer:
        if asked.depth == depth:
            return Answer(depth=asked.depth)
        return await context.request(Inner(depth=asked.depth + 1), Answer, timeout_s=timeout_s)

    @app.on(Inner)
    async def inner(asked: Inner, context: Context) -> Answer:
        if asked.depth == depth:
            return Answer(depth=asked.depth)
        return await context.request(Outer(depth=asked.depth + 1), Answer, timeout_s=timeout_s)

    return app


@pytest.mark.parametrize("max_waiting", [1, 3, 1000])
@pytest.mark.parametrize("concurrency", [1, 2])
async def test_nested_requests_finish_whatever_the_limits(concurrency: int, max_waiting: int) -> None:
    async with chain(4).test(settings=settings(concurrency=concurrency, max_waiting=max_waiting)) as bus:
        answers = await asyncio.gather(*(bus.request(Outer(), Answer) for _ in range(20)))
        assert [answer.depth for answer in answers] == [4] * 20
        assert not bus.dead_letters


@pytest.mark.medium
@pytest.mark.parametrize("max_in_flight", [4, 16])
async def test_deeper_calls_are_read_though_first_messages_fill_the_window(max_in_flight: int) -> None:
    limits = settings(concurrency=2, max_waiting=2, max_in_flight=max_in_flight)
    async with chain(3).test(settings=limits) as bus:
        for _ in range(60):
            await bus.publish(Outer())
        for _ in range(40):
            await bus.settle()
            if len(bus.sent(Answer)) >= 60:
                break
            await bus.advance(61)
        assert not bus.dead_letters
        assert Counter(answer.depth for answer in bus.sent(Answer))[3] >= 60


async def test_a_nested_request_of_the_same_type_passes_the_waiting_run_in_its_lane() -> None:
    app = App("self@tests", types=[Answer])

    @app.on(Low)
    async def handle(asked: Low, context: Context) -> Answer:
        if asked.depth == 5:
            return Answer(depth=5)
        return await context.request(Low(depth=asked.depth + 1), Answer, timeout_s=20)

    async with app.test() as bus:
        assert (await bus.request(Low(depth=0), Answer, timeout_s=25)).depth == 5


async def test_messages_of_one_key_still_wait_for_each_other() -> None:
    app, order = App("order@tests", types=[Answer]), list[str]()

    @app.on(Outer)
    async def outer(asked: Outer, context: Context) -> None:
        order.append(f"begin {asked.depth}")
        await context.request(Inner(depth=0), Answer)
        order.append(f"end {asked.depth}")

    @app.on(Inner)
    async def inner(asked: Inner) -> Answer:
        return Answer(depth=0)

    async with app.test() as bus:
        for number in range(3):
            await bus.publish(Outer(depth=number), key="one")
        await bus.settle()
    assert order == [f"{what} {number}" for number in range(3) for what in ("begin", "end")]


async def test_no_more_handlers_are_at_work_than_the_limit_when_answers_come_together() -> None:
    app, at_work, most = App("limit@tests", types=[Answer]), 0, 0

    @app.on(Outer)
    async def outer(asked: Outer, context: Context) -> Answer:
        nonlocal at_work, most
        await context.request(Inner(depth=0), Answer)
        at_work += 1
        most = max(most, at_work)
        await asyncio.sleep(0.001)
        at_work -= 1
        return Answer(depth=1)

    @app.on(Inner)
    async def inner(asked: Inner) -> Answer:
        return Answer(depth=0)

    async with app.test(settings=settings(concurrency=3)) as bus:
        await asyncio.gather(*(bus.request(Outer(), Answer) for _ in range(50)))
    assert most <= 3


async def test_first_messages_wait_while_as_many_runs_wait_as_may() -> None:
    app, waiting, most = App("most@tests", types=[Answer]), 0, 0

    @app.on(Outer)
    async def outer(asked: Outer, context: Context) -> Answer:
        nonlocal waiting, most
        waiting += 1
        most = max(most, waiting)
        try:
            return await context.request(Inner(depth=0), Answer)
        finally:
            waiting -= 1

    @app.on(Inner)
    async def inner(asked: Inner) -> Answer:
        await asyncio.sleep(0.001)
        return Answer(depth=0)

    async with app.test(settings=settings(concurrency=2, max_waiting=4)) as bus:
        await asyncio.gather(*(bus.request(Outer(), Answer) for _ in range(40)))
    assert most <= 4 + 2


async def test_a_request_within_a_time_limit_of_the_handlers_own_gives_the_place_back() -> None:
    app = App("limited@tests", types=[Answer])

    @app.on(Outer)
    async def outer(asked: Outer, context: Context) -> Answer:
        for _ in range(3):
            try:
                async with asyncio.timeout(0.01):
                    await context.request(Inner(depth=0), Answer)
            except TimeoutError:
                pass
        return Answer(depth=7)

    async with app.test(settings=settings(concurrency=1)) as bus:
        await bus.publish(Outer())
        async with asyncio.timeout(30):
            while not bus.sent(Answer):
                # The handler's own limit is in real time.
                await asyncio.sleep(0.01)
                await bus.settle()
        assert [answer.depth for answer in bus.sent(Answer)] == [7]


@pytest.mark.parametrize("several", [2, 5])
async def test_several_requests_of_one_run_wait_together(several: int) -> None:
    app = App("several@tests", types=[Answer])

    @app.on(Outer)
    async def outer(asked: Outer, context: Context) -> Answer:
        asking = (context.request(Inner(depth=number), Answer, key=str(number)) for number in range(several))
        return Answer(depth=sum(answer.depth for answer in await asyncio.gather(*asking)))

    @app.on(Inner)
    async def inner(asked: Inner) -> Answer:
        return Answer(depth=asked.depth)

    async with app.test(settings=settings(concurrency=1)) as bus:
        answers = await asyncio.gather(*(bus.request(Outer(), Answer) for _ in range(9)))
        assert {answer.depth for answer in answers} == {sum(range(several))}
