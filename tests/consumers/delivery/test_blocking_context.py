"""Blocking handlers have the bus by plain calls, and nothing hangs past its time."""

from __future__ import annotations

import asyncio
import threading
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from bus.errors import DeadlineError
from sealbus import App, BlockingContext, Context, Retry, connect, payload
from sealbus.errors import ConfigurationError


@payload("block.ask", version="1.0.0", performative="request")
class Ask(msgspec.Struct, frozen=True, kw_only=True):
    n: int = 0


@payload("block.lookup", version="1.0.0", performative="request")
class Lookup(msgspec.Struct, frozen=True, kw_only=True):
    n: int


@payload("block.answer", version="1.0.0", performative="inform")
class Answer(msgspec.Struct, frozen=True, kw_only=True):
    n: int


CALLS: list[int] = []


def paid(n: int) -> int:
    CALLS.append(n)
    return n * 10


@pytest.fixture(autouse=True)
def nothing_paid() -> None:
    CALLS.clear()


def lookups(app: App) -> App:
    @app.on(Lookup)
    async def look_up(lookup: Lookup) -> Answer:
        return Answer(n=lookup.n + 1)

    return app


async def test_it_asks_steps_sends_and_transacts_by_plain_calls() -> None:
    app = lookups(App("block@tests", types=[Answer]))

    @app.on(Ask, blocking=True, retry=Retry(attempts=2, base_s=0.01))
    def handle(ask: Ask, context: BlockingContext) -> Answer:
        answer = context.request(Lookup(n=ask.n), Answer, timeout_s=20)
        step = context.step("paid", paid, answer.n)
        context.send_now(Answer(n=-1))
        if context.attempt == 2:
            assert context.resumed() == {"n": step}
        context.checkpoint({"n": step})
        context.check(Answer(n=step))
        transaction = context.transaction()
        transaction.execute("CREATE TABLE IF NOT EXISTS kept (n INTEGER)")
        transaction.execute("INSERT INTO kept VALUES ($1)", step)
        assert transaction.fetch("SELECT n FROM kept") == [(step,)]
        if context.attempt == 1:
            raise ConnectionError("once")
        return Answer(n=step)

    async with app.test() as bus:
        await bus.publish(Ask(n=1), idempotency_key="one")
        await bus.settle()
        await bus.advance(5)
        assert Answer(n=20) in bus.sent(Answer)
    assert CALLS == [2]


@pytest.mark.medium
async def test_many_blocking_runs_that_ask_the_same_app_all_finish() -> None:
    app = lookups(App("block@tests", types=[Answer]))

    @app.on(Ask, blocking=True)
    def handle(ask: Ask, context: BlockingContext) -> Answer:
        return context.request(Lookup(n=ask.n), Answer, timeout_s=20)

    async with app.test() as bus:
        answers = await asyncio.gather(*(bus.request(Ask(n=number), Answer) for number in range(90)))
    assert [answer.n for answer in answers] == [number + 1 for number in range(90)]


async def test_waiting_calls_end_when_the_run_is_cancelled() -> None:
    app, said = App("block@tests", types=[Answer]), list[Any]()

    @app.on(Ask, blocking=True, timeout_s=5, retry=Retry(attempts=1))
    def handle(ask: Ask, context: BlockingContext) -> None:
        try:
            context.request(Lookup(n=1), Answer, timeout_s=60)
        except DeadlineError as error:
            said.append(error)
        try:
            context.send_now(Answer(n=1))
        except DeadlineError as error:
            said.append(error)
            raise

    async with app.test() as bus:
        await bus.publish(Ask())
        await bus.advance(6)
        assert [letter.reason for letter in bus.dead_letters if letter.topic.endswith("block.ask")] == [
            "retries_exhausted"
        ]
    assert len(said) == 2
    assert isinstance(said[1], DeadlineError)


async def test_a_test_ends_although_a_blocking_handler_still_waits() -> None:
    app = App("block@tests", types=[Answer])

    @app.on(Ask, blocking=True)
    def handle(ask: Ask, context: BlockingContext) -> None:
        context.request(Lookup(n=1), Answer, timeout_s=3_000)

    begun_s = time.monotonic()
    async with app.test() as bus:
        await bus.publish(Ask())
        await bus.settle()
    assert time.monotonic() - begun_s < 60
    assert not [thread for thread in threading.enumerate() if thread.name == "handler-handle" and thread.is_alive()]


async def test_a_coroutine_method_that_is_called_off_its_loop_is_an_error_at_once() -> None:
    app, said = App("block@tests", types=[Answer]), list[str]()

    @app.on(Ask, retry=Retry(attempts=5, base_s=0.01))
    async def handle(ask: Ask, context: Context) -> None:
        def work() -> None:
            for call in (
                lambda: context.request(Lookup(n=1), Answer),
                lambda: context.step("paid", paid, 1),
                lambda: context.send_now(Answer(n=1)),
                context.transaction,
                lambda: context.checkpoint(1),
            ):
                with pytest.raises(Exception, match="belongs to the worker's event loop") as error:
                    call()
                said.append(type(error.value).__name__)
            asyncio.run(later())

        async def later() -> None:
            await context.request(Lookup(n=1), Answer)

        await asyncio.to_thread(work)

    async with app.test() as bus:
        await bus.publish(Ask(), idempotency_key="one")
        await bus.advance(5)
        assert [letter.attempts for letter in bus.dead_letters] == [2]
    assert said == ["EventLoopError"] * 10


async def test_a_blocking_context_in_a_coroutine_is_an_error_at_once() -> None:
    app = App("block@tests", types=[Answer])

    @app.on(Ask, blocking=True, retry=Retry(attempts=1))
    def handle(ask: Ask, context: BlockingContext) -> None:
        async def inside() -> None:
            context.request(Lookup(n=1), Answer)

        asyncio.run(inside())

    async with app.test() as bus:
        await bus.publish(Ask())
        await bus.settle()
        assert "EventLoopError" in bus.dead_letters[0].error


async def test_its_context_is_typed_as_such() -> None:
    app = App("block@tests")
    with pytest.raises(ConfigurationError, match=r"context: BlockingContext"):

        @app.on(Ask, blocking=True)
        def wrong(ask: Ask, context: int) -> None: ...

    with pytest.raises(ConfigurationError, match=r"context: Context"):

        @app.on(Lookup)
        async def also_wrong(lookup: Lookup, context: BlockingContext) -> None: ...


@pytest.mark.medium
async def test_on_a_worker_it_asks_by_plain_calls_too(tmp_path: Path) -> None:
    app = lookups(App("block@tests", types=[Answer]))

    @app.on(Ask, blocking=True)
    def handle(ask: Ask, context: BlockingContext) -> Answer:
        return context.request(Lookup(n=ask.n), Answer, timeout_s=20)

    url = f"sqlite:///{tmp_path}/b.db"
    async with app.running(url), connect(url, agent="cli@tests") as bus:
        assert await bus.request(Ask(n=4), Answer, timeout_s=30) == Answer(n=5)


@pytest.mark.parametrize("call", ["step", "steps", "checkpoint", "resumed", "request"])
async def test_a_call_that_would_wait_for_the_runs_own_transaction_is_refused(call: str) -> None:
    app = lookups(App("block@tests", types=[Answer]))

    @app.on(Ask, retry=Retry(attempts=5))
    async def handle(ask: Ask, context: Context) -> None:
        transaction = await context.transaction()
        await transaction.execute("CREATE TABLE IF NOT EXISTS kept (n INTEGER)")
        match call:
            case "step":
                await context.step("paid", paid, 1)
            case "steps":
                await context.steps("paid", [paid], keys=[1])
            case "checkpoint":
                await context.checkpoint(1)
            case "resumed":
                await context.resumed()
            case _:
                await context.request(Lookup(n=1), Answer)

    async with app.test() as bus:
        await bus.publish(Ask(), idempotency_key="one")
        await bus.settle()
        assert [(letter.reason, letter.attempts, letter.pointer) for letter in bus.dead_letters] == [
            ("rejected", 1, call)
        ]
    assert CALLS == []
