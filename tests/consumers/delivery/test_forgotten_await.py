"""A call of the context that is never awaited does nothing, so its run fails by a text that names it."""

from __future__ import annotations

from typing import Any

import pytest

from sealbus import App, Context
from tests.kit import Done, Job


async def push(number: int) -> str:
    return f"pushed {number}"


def forgets_a_step(context: Context, job: Job) -> Any:
    return context.step("push", push, job.number)


def forgets_to_send(context: Context, job: Job) -> Any:
    return context.send_now(Done(number=job.number))


def forgets_to_ask(context: Context, job: Job) -> Any:
    return context.request(Job(number=job.number), Done)


@pytest.mark.parametrize(
    ("forget", "name"), [(forgets_a_step, "step"), (forgets_to_send, "send_now"), (forgets_to_ask, "request")]
)
async def test_what_was_not_awaited_is_named(forget: Any, name: str) -> None:
    app, runs = App("worker@svc"), []

    @app.on(Job, asks=True)
    async def handle(job: Job, context: Context) -> None:
        runs.append(job.number)
        forget(context, job)

    async with app.test() as bus:
        await bus.publish(Job(number=1))
        await bus.advance(60)
        (letter,) = bus.dead_letters
        assert letter.reason == "retries_exhausted"
        assert len(runs) == 2
        assert f"await context.{name}(...)" in letter.error


async def test_what_a_task_awaits_is_awaited() -> None:
    app, pushed = App("worker@svc"), []

    @app.on(Job)
    async def handle(job: Job, context: Context) -> None:
        pushed.append(await context.step("push", push, job.number))
        context.send(Done(number=job.number))

    async with app.test() as bus:
        await bus.publish(Job(number=1), idempotency_key="k")
        await bus.settle()
        assert (pushed, bus.dead_letters) == (["pushed 1"], [])
