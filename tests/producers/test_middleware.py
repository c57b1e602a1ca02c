"""What a program puts around its publishes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from consumers.delivery.declaration import Handling
from producers.middleware import Publishing
from sealbus import (
    App,
    Context,
    Outgoing,
    PublishRejected,
    PublishUnknown,
    Receipt,
    RequestTimedOut,
    connect,
    connect_sync,
    payload,
)
from tests.kit import Job


@payload("order.booked")
class Booked(msgspec.Struct, frozen=True, kw_only=True):
    number: int
    task_id: str | None = None


def in_task(task_id: str, seen: list[object]) -> Any:
    def wrap(following: Publishing) -> Publishing:
        async def publish(draft: Outgoing) -> Receipt:
            seen.append(task_id)
            try:
                receipt = await following(msgspec.structs.replace(draft, task_id=task_id))
            except PublishRejected:
                seen.append("rejected")
                raise
            seen.append(receipt.offset)
            return receipt

        return publish

    return wrap


async def test_a_publish_goes_through_the_middleware_outermost_first() -> None:
    seen: list[object] = []
    around = [in_task("outer", seen), in_task("inner", seen)]
    async with connect("memory://", agent="shop@svc", env={}, middleware=around) as bus:
        await bus.publish(Job(number=1), key="k")
        with pytest.raises(PublishRejected):
            await bus.publish(Job(number=2), ttl_s=-1)
    assert seen == ["outer", "inner", 0, 0, "outer", "inner", "rejected", "rejected"]


async def test_each_of_many_goes_through_it_and_outcomes_keep_their_order() -> None:
    seen: list[object] = []
    async with connect("memory://", agent="shop@svc", env={}, middleware=[in_task("t", seen)]) as bus:
        source = [Outgoing(Job(number=n), key="k", ttl_s=-1 if n == 3 else 60) for n in range(1_000)]
        outcomes = [outcome async for outcome in bus.publish_many(source)]
        assert [isinstance(outcome, Receipt) for outcome in outcomes] == [n != 3 for n in range(1_000)]
        offsets = [outcome.offset for outcome in outcomes if isinstance(outcome, Receipt)]
        assert offsets == list(range(999))
    assert seen.count("t") == 1_000


async def test_a_stream_that_is_left_publishes_no_more() -> None:
    begun: list[object] = []
    async with connect("memory://", agent="shop@svc", env={}, middleware=[in_task("t", begun)]) as bus:
        stream = bus.publish_many(Job(number=n) for n in range(100_000))
        async for _ in stream:
            break
        await stream.aclose()  # type: ignore[attr-defined]
    assert begun.count("t") <= 512


# Requests.


@asynccontextmanager
async def booking(tmp_path: Path) -> AsyncGenerator[str]:
    """A worker that answers orders but number 0; yields its log."""
    app, url = App("books@svc"), f"sqlite:///{tmp_path / 'log.db'}"

    @app.on(Job)
    async def book(order: Job, context: Context) -> Booked | None:
        return Booked(number=order.number, task_id=context.message.metadata.task_id) if order.number else None

    async with app.running(url):
        yield url


def publishing_by(step: Callable[[Publishing, Outgoing], Awaitable[Receipt]]) -> Callable[[Publishing], Publishing]:
    def wrap(following: Publishing) -> Publishing:
        async def publish(draft: Outgoing) -> Receipt:
            return await step(following, draft)

        return publish

    return wrap


@pytest.mark.medium
async def test_a_request_goes_through_the_middleware_and_is_answered(tmp_path: Path) -> None:
    seen: list[object] = []
    around = [in_task("outer", seen), in_task("inner", seen)]
    async with booking(tmp_path) as url, connect(url, agent="shop@svc", env={}, middleware=around) as bus:
        assert await bus.request(Job(number=1), Booked, timeout_s=20) == Booked(number=1, task_id="inner")
        with pytest.raises(PublishRejected):
            await bus.request(Job(number=2), Booked, max_hops=-1)
        await asyncio.sleep(0)
    assert seen[:2] == ["outer", "inner"]
    assert seen[-4:] == ["outer", "inner", "rejected", "rejected"]


@pytest.mark.medium
async def test_middleware_that_sends_a_request_again_gets_the_answer_to_the_last_one(tmp_path: Path) -> None:
    async def twice(following: Publishing, draft: Outgoing) -> Receipt:
        await following(msgspec.structs.replace(draft, payload=Job(number=0)))
        return await following(draft)

    async with (
        booking(tmp_path) as url,
        connect(url, agent="shop@svc", env={}, middleware=[publishing_by(twice)]) as bus,
    ):
        assert await bus.request(Job(number=7), Booked, timeout_s=20) == Booked(number=7)
        assert len(bus.requests.waiting) == 0


async def test_a_request_that_nobody_answers_ends_at_its_deadline_with_middleware_too() -> None:
    seen: list[object] = []
    async with connect("memory://", agent="shop@svc", env={}, middleware=[in_task("t", seen)]) as bus:
        with pytest.raises(RequestTimedOut):
            await bus.request(Job(number=1), Booked, timeout_s=1)
    assert seen[0] == "t"


async def _hangs_before(_: Publishing, draft: Outgoing) -> Receipt:
    await asyncio.sleep(60)
    raise AssertionError(draft)


async def _hangs_after(following: Publishing, draft: Outgoing) -> Receipt:
    await following(draft)
    return await _hangs_before(following, draft)


async def _publishes_nothing(_: Publishing, __: Outgoing) -> Receipt:
    return Receipt("m", "t", 0, 0, 0)


async def _fails(_: Publishing, __: Outgoing) -> Receipt:
    raise KeyError("no tenant")


async def _delays(following: Publishing, draft: Outgoing) -> Receipt:
    return await following(msgspec.structs.replace(draft, delay_s=5))


@pytest.mark.parametrize(
    ("step", "error"),
    [
        (_hangs_before, PublishRejected),
        (_hangs_after, PublishUnknown),
        (_publishes_nothing, PublishRejected),
        (_delays, PublishRejected),
        (_fails, KeyError),
    ],
)
async def test_a_request_whose_middleware_does_not_publish_it_ends_all_the_same(
    step: Callable[[Publishing, Outgoing], Awaitable[Receipt]], error: type[Exception]
) -> None:
    async with connect("memory://", agent="shop@svc", env={}, middleware=[publishing_by(step)]) as bus:
        async with asyncio.timeout(30):
            with pytest.raises(error):
                await bus.request(Job(number=1), Booked, timeout_s=1)
        assert len(bus.requests.waiting) == 0


def test_a_bus_without_a_loop_has_middleware_too() -> None:
    seen: list[object] = []
    with connect_sync("memory://", agent="shop@svc", env={}, middleware=[in_task("t", seen)]) as bus:
        bus.publish(Job(number=1), key="k")
        list(bus.publish_many([Job(number=2)]))
    assert [each for each in seen if each == "t"] == ["t", "t"]


async def test_the_middleware_of_handlers_sees_what_a_handler_queues_and_returns() -> None:
    seen: list[object] = []

    def watched(following: Handling) -> Handling:
        async def handler(payload: object, context: Context) -> object:
            returned = await following(payload, context)
            seen.extend(output.draft.payload for output in context.outputs)
            seen.append(returned)
            return returned

        return handler

    app = App("books@svc", types=[Booked], middleware=[watched])

    @app.on(Job)
    async def book(order: Job, context: Context) -> Booked:
        context.send(Booked(number=1))
        return Booked(number=2)

    async with app.test() as bus:
        await bus.publish(Job(number=1))
        await bus.settle()
    assert seen == [Booked(number=1), Booked(number=2)]
