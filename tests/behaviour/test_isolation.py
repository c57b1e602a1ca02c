"""What one message's code leaves behind is never seen by another's, wherever code of users runs."""

from __future__ import annotations

import asyncio
import decimal
from collections.abc import AsyncIterator
from contextvars import ContextVar
from typing import Any

import msgspec
import pytest
import structlog

from bus.settings.loading import load
from producers.sealing.run_labels import CURRENT_RUN
from sealbus import App, BlockingContext, Context, Retry, RetryLater, payload
from sealbus.sagas import Saga, SagaContext, on_message, on_start, on_timer

TENANT: ContextVar[str] = ContextVar("tenant", default="nobody")
CLEAN = {"tenant": "nobody", "bound": {}, "precision": decimal.DefaultContext.prec}


def seen() -> dict[str, Any]:
    return {
        "tenant": TENANT.get(),
        "bound": {name: value for name, value in structlog.contextvars.get_contextvars().items() if name == "left"},
        "precision": decimal.getcontext().prec,
    }


def leave(who: str) -> None:
    TENANT.set(who)
    structlog.contextvars.bind_contextvars(left=who)
    decimal.getcontext().prec = 7


SIGHTS: list[dict[str, Any]] = []


def look_and_leave(who: str) -> None:
    SIGHTS.append(seen())
    leave(who)


@pytest.fixture(autouse=True)
def nothing_seen() -> None:
    SIGHTS.clear()


@payload("iso.plain", version="1.0.0", performative="request")
class Plain(msgspec.Struct, frozen=True, kw_only=True):
    who: str

    def __post_init__(self) -> None:
        if self.who.startswith("checked"):
            look_and_leave(self.who)


@payload("iso.answer", version="1.0.0", performative="inform")
class Answer(msgspec.Struct, frozen=True, kw_only=True):
    who: str


@payload("iso.inner", version="1.0.0", performative="inform")
class Inner(msgspec.Struct, frozen=True, kw_only=True):
    who: str

    def __post_init__(self) -> None:
        if CURRENT_RUN.get() is None:
            # It is read or sealed, and not made by a handler.
            SIGHTS.append(seen())


@payload("iso.open", version="1.0.0", performative="request")
class Opened(msgspec.Struct, frozen=True, kw_only=True):
    who: str


@payload("iso.event", version="1.0.0", performative="inform")
class Event(msgspec.Struct, frozen=True, kw_only=True):
    who: str


class Book(msgspec.Struct):
    count: int = 0


class Booking(Saga[Book], version="1.0.0"):
    @on_start(Opened, key="/data/who")
    async def opened(self, message: Opened, context: SagaContext) -> None:
        look_and_leave(message.who)
        context.timer("soon", after_s=1)

    @on_message(Event, key="/data/who", admits="anyone")
    async def event(self, message: Event, context: SagaContext) -> None:
        look_and_leave(message.who)

    @on_timer("soon")
    async def soon(self, context: SagaContext) -> None:
        look_and_leave("timer")


def shop(**options: Any) -> App:
    """An app in which every kind of code of users looks, and leaves something behind."""

    def around(following: Any) -> Any:
        async def handle(message: Any, context: Context) -> Any:
            look_and_leave("middleware")
            TENANT.set("nobody")
            structlog.contextvars.unbind_contextvars("left")
            decimal.getcontext().prec = decimal.DefaultContext.prec
            return await following(message, context)

        return handle

    app = App("iso@tests", types=[Answer], middleware=[around])

    async def provided(context: Context) -> AsyncIterator[str]:
        SIGHTS.append(seen())
        yield "given"

    @app.on(Plain, provide={"given": provided}, **options)
    async def plain(message: Plain, context: Context, *, given: str) -> Answer:
        look_and_leave(message.who)
        if message.who.startswith("retried") and context.attempt < 3:
            raise RetryLater("again")
        if message.who.startswith("failing"):
            raise ValueError("as it is")
        await asyncio.sleep(0)
        await asyncio.to_thread(leave, message.who)
        return Answer(who=message.who)

    return app


def without_middleware(**options: Any) -> App:
    app = App("iso@tests", types=[Answer])

    @app.on(Plain, retry=Retry(attempts=3, base_s=0.01), **options)
    async def plain(message: Plain, context: Context) -> Answer:
        look_and_leave(message.who)
        if message.who.startswith("retried") and context.attempt < 3:
            raise RetryLater("again")
        if message.who.startswith("failing"):
            raise ValueError("as it is")
        await asyncio.sleep(0)
        return Answer(who=message.who)

    return app


@pytest.mark.parametrize("make", [shop, without_middleware])
@pytest.mark.parametrize("kind", ["plain", "retried", "failing", "checked"])
@pytest.mark.parametrize("key", [None, "one"])
@pytest.mark.parametrize("dedup", ["key", "always"])
async def test_no_run_sees_what_another_has_left(make: Any, kind: str, key: str | None, dedup: str) -> None:
    async with make(dedup=dedup).test() as bus:
        before = len(SIGHTS)
        for number in range(8):
            await bus.publish(Plain(who=f"{kind} {number}"), key=key)
        TENANT.set("nobody")
        structlog.contextvars.unbind_contextvars("left")
        decimal.getcontext().prec = decimal.DefaultContext.prec
        del SIGHTS[before:]
        await bus.advance(400)
    assert len(SIGHTS) >= 8
    assert [sight for sight in SIGHTS if sight != CLEAN] == []


async def test_no_blocking_run_sees_what_another_has_left() -> None:
    app = App("iso@tests")

    @app.on(Plain, blocking=True)
    def plain(message: Plain, context: BlockingContext) -> Answer:
        look_and_leave(message.who)
        return Answer(who=message.who)

    async with app.test() as bus:
        for number in range(12):
            await bus.publish(Plain(who=f"run {number}"))
        await bus.settle()
    assert SIGHTS == [CLEAN] * 12


async def test_no_step_of_a_process_sees_what_another_has_left() -> None:
    app = App("iso@tests")
    app.add(Booking)
    async with app.test() as bus:
        for number in range(6):
            await bus.publish(Opened(who=f"p{number}"))
        await bus.settle()
        for number in range(6):
            await bus.publish(Event(who=f"p{number}"))
        await bus.advance(3)
    assert len(SIGHTS) == 18
    assert [sight for sight in SIGHTS if sight != CLEAN] == []


async def test_checks_policies_and_reports_begin_in_the_workers_own_context() -> None:
    class Looking:
        def refusal(self, *_: object) -> str | None:
            look_and_leave("policy")
            return None

    def check(message: Plain, _: object) -> str | None:
        look_and_leave("check")
        return "makes no sense" if message.who.endswith("3") else None

    app = App("iso@tests", policy=Looking())

    @app.on(Plain, checks=[check])
    async def plain(message: Plain) -> Answer:
        look_and_leave(message.who)
        return Answer(who=message.who)

    async with app.test() as bus:
        for number in range(8):
            await bus.publish(Plain(who=f"run {number}"))
        await bus.settle()
    # Within one judgement one may see the other; two messages never do.
    assert {sight["tenant"] for sight in SIGHTS} <= {"nobody", "policy", "check"}


async def test_the_reply_reader_runs_outside_every_runs_context() -> None:
    app = App("iso@tests", types=[Inner])

    @app.on(Plain)
    async def plain(message: Plain, context: Context) -> Inner:
        leave(message.who)
        if message.who == "inner":
            return Inner(who="inner")
        answer = await context.request(Plain(who="inner"), Inner)
        assert TENANT.get() == message.who
        return answer

    async with app.test() as bus:
        for number in range(4):
            await bus.request(Plain(who=f"run {number}"), Inner)
    # Each answer is read once by who asked; what is sealed is seen in its own run.
    assert SIGHTS.count(CLEAN) >= 8


def test_context_changes_of_one_handler_run_are_invisible_to_others() -> None:
    async def run() -> None:
        app, wrong, count = App("iso@tests", types=[Answer]), list[str](), 0

        @app.on(Plain)
        async def plain(message: Plain, context: Context) -> None:
            nonlocal count
            count += 1
            sender = context.message.metadata.sender.id or ""
            if seen() != CLEAN:
                wrong.append(sender)
            if message.who == "dirty":
                leave(sender)
                await asyncio.sleep(0)
                if TENANT.get() != sender:
                    wrong.append(sender)

        settings = load(flags={"worker.concurrency": 16}, env={}, file=None).settings
        async with app.test(settings=settings) as bus:
            for number in range(2_000):
                await bus.publish(Plain(who="dirty" if number % 10 == 0 else "clean"), key=f"k{number % 97}")
            await bus.settle()
        assert count == 2_000
        assert wrong == []

    asyncio.run(run())
