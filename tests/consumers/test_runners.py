"""A handler's end, however unusual, is an outcome of its message and never the end of a runner."""

from __future__ import annotations

import asyncio
import sys
from typing import NoReturn

import msgspec
import pytest

from sealbus import App, Retry, payload


@payload("runner.job", version="1.0.0")
class Job(msgspec.Struct, frozen=True):
    how: str


async def awaits_something_cancelled() -> None:
    inner = asyncio.ensure_future(asyncio.sleep(60))
    inner.cancel()
    await inner


async def exits() -> NoReturn:
    sys.exit(3)


@pytest.mark.parametrize("end", [awaits_something_cancelled, exits])
async def test_an_unusual_end_of_a_handler_is_retried_and_then_dead(end: object) -> None:
    app = App("runner@tests")
    runs = []

    @app.on(Job, retry=Retry(attempts=3, backoff="constant", base_s=0.1, cap_s=0.1))
    async def handle(job: Job) -> None:
        runs.append(job.how)
        if job.how == "odd":
            await end()  # type: ignore[operator]

    async with app.test() as bus:
        await bus.publish(Job(how="odd"), key="same")
        await bus.publish(Job(how="plain"), key="same")
        await bus.settle()
        await bus.advance(1)
        assert runs == ["odd", "odd", "odd", "plain"]
        assert [(letter.reason, letter.error) for letter in bus.dead] == [("retries_exhausted", "HandlerGoneError")]


async def test_a_handler_that_overruns_its_timeout_is_cancelled_and_retried() -> None:
    app = App("runner@tests")
    cancelled = []

    @app.on(Job, retry=Retry(attempts=2, backoff="constant", base_s=0.1, cap_s=0.1), timeout_s=5)
    async def handle(job: Job) -> None:
        try:
            await asyncio.get_running_loop().create_future()
        except asyncio.CancelledError:
            cancelled.append(job.how)
            raise

    async with app.test() as bus:
        await bus.publish(Job(how="slow"))
        await bus.advance(11)
        assert len(cancelled) == 2
        assert [letter.error for letter in bus.dead] == ["HandlerTimeoutError"]
