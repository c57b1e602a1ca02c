"""Limits of named resources: rates and places that all workers of a group share."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from bus.settings.loading import load
from sealbus import App, RetryLater, payload
from sealbus.errors import ConfigurationError
from sealbus.limits import Concurrency, Rate


@payload("limits.call", version="1.0.0", performative="request")
class Call(msgspec.Struct, frozen=True, kw_only=True):
    number: int
    tokens: int = 1


def calling(*limits: Any, work: Callable[[Call], Any] | None = None) -> tuple[App, list[int]]:
    app, runs = App("caller@svc"), list[int]()

    @app.on(Call, limits=limits, order="none")
    async def call(request: Call) -> None:
        runs.append(request.number)
        if work is not None:
            await work(request)

    return app, runs


async def test_a_rate_is_held_and_nobody_loses_an_attempt() -> None:
    app, runs = calling(Rate("api", 60))
    async with app.test() as bus:
        for number in range(90):
            await bus.publish(Call(number=number))
        await bus.advance(30)
        assert 29 <= len(runs) <= 32
        await bus.advance(30)
        assert 59 <= len(runs) <= 62
        await bus.advance(60)
        assert sorted(runs) == list(range(90))
        bus.assert_all_handled()


async def test_what_waits_in_the_log_for_its_turn_comes_back_in_time() -> None:
    app, runs = calling(Rate("api", 6, per_s=1))
    # So small that most of the messages have no room to wait in the worker.
    small = load(flags={"worker.max_in_flight": 32, "worker.max_waiting": 32}, env={}, file=None).settings
    async with app.test(settings=small) as bus:
        for number in range(300):
            await bus.publish(Call(number=number))
        for _ in range(53):
            await bus.advance(1)
        assert sorted(runs) == list(range(300))


async def test_limits_hold_also_where_nothing_else_is_recorded() -> None:
    app, runs = App("caller@svc"), list[int]()

    @app.on(Call, limits=[Rate("api", 60)], order="none", dedup="off")
    async def call(request: Call) -> None:
        runs.append(request.number)

    async with app.test() as bus:
        for number in range(90):
            await bus.publish(Call(number=number))
        await bus.advance(30)
        assert 29 <= len(runs) <= 32


async def test_a_cost_is_counted_in_units() -> None:
    app, runs = calling(Rate("tokens", 600, cost=lambda request: request.tokens))
    async with app.test() as bus:
        for number in range(20):
            await bus.publish(Call(number=number, tokens=100))
        await bus.advance(59)
        assert 5 <= len(runs) <= 7
        await bus.advance(160)
        assert len(runs) == 20


async def test_a_run_that_fails_pays_again() -> None:
    failing = iter([True, False])

    async def work(_: Call) -> None:
        if next(failing):
            raise RetryLater("later")

    app, runs = calling(Rate("api", 1, per_s=10), work=work)
    async with app.test() as bus:
        await bus.publish(Call(number=1))
        await bus.advance(5)
        assert runs == [1]
        await bus.advance(10)
        assert runs == [1, 1]


async def test_so_many_run_at_once() -> None:
    at_once: list[int] = []
    inside = 0

    async def work(_: Call) -> None:
        nonlocal inside
        inside += 1
        at_once.append(inside)
        await asyncio.sleep(0.01)
        inside -= 1

    app, runs = calling(Concurrency("gpu", 3), work=work)
    async with app.test() as bus:
        for number in range(12):
            await bus.publish(Call(number=number))
        await bus.advance(60)
        assert len(runs) == 12
        assert max(at_once) <= 3


@pytest.mark.parametrize(
    ("limits", "said"),
    [
        ("openai", "a list"),
        ([60], "takes Rate and Concurrency"),
        ([Rate("", 60)], "illegal name"),
        ([Rate("a", 0)], "numbers above 0"),
        ([Rate("a", 60, cost=-1)], "above 0"),
        ([Concurrency("a", 0)], "1 or more"),
        ([Rate("a", 60), Concurrency("a", 1)], "two limits"),
    ],
)
def test_a_wrong_limit_is_refused_where_it_is_declared(limits: Any, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        App("caller@svc").on(Call, limits=limits)
