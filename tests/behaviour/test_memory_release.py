"""What a message took in memory is free when it is settled, whatever became of it: a worker's garbage collector looks
for cycles rarely."""

from __future__ import annotations

import asyncio
import gc
import sys
import threading
import weakref
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
import structlog
from structlog.typing import EventDict

from bus.errors import Reject, RetryLater, trace_of
from bus.transports.base import NewRecord
from consumers.app.app import App
from consumers.delivery.context import Context
from consumers.delivery.resilience.retry import Retry
from consumers.delivery.state.delivery import Delivery
from producers.connection import connect
from producers.outcomes import PublishRejected
from tests.kit import Done, Job

pytestmark = pytest.mark.medium  # handlers that time out


async def well(asked: Job) -> Done:
    return Done(number=asked.number)


async def badly(asked: Job) -> None:
    raise ValueError(asked.number)


async def with_a_cause(asked: Job, context: Context) -> None:
    try:
        await badly(asked)
    except ValueError as error:
        raise RuntimeError(context.attempt) from error


async def never(asked: Job) -> None:
    raise Reject("never")


async def later(asked: Job) -> None:
    raise RetryLater(10)


async def wrongly(asked: Job) -> Done:
    return Done(number="x")


async def too_long(asked: Job) -> None:
    await asyncio.Event().wait()


def blocking(asked: Job) -> None:
    raise ValueError(asked.number)


_EARLIER: list[Delivery] = []


@pytest.fixture(autouse=True)
def _no_collector_and_no_log() -> Iterator[None]:
    """A log that nobody has configured shows the locals of every frame, and holds them in cycles of its own."""
    processors = structlog.get_config()["processors"]
    before = processors.copy()
    processors[:] = [trace]
    gc.collect()
    gc.disable()
    _EARLIER[:] = deliveries()
    yield
    _EARLIER.clear()
    gc.enable()
    processors[:] = before


def trace(logger: object, method: str, event: EventDict) -> EventDict:
    """What the log of a program does with an exception."""
    if (error := sys.exc_info()[1]) is not None:
        trace_of(error)
    raise structlog.DropEvent


def deliveries() -> list[Delivery]:
    return [each for each in gc.get_objects() if isinstance(each, Delivery)]


def held() -> list[Delivery]:
    """Those of this test: an earlier one may have left some with whoever reports it."""
    # A thread keeps the error of its handler until its last line, which may come after the worker has gone on.
    for thread in threading.enumerate():
        if thread.name.startswith("handler-"):
            thread.join(60)
    return [each for each in deliveries() if not any(each is earlier for earlier in _EARLIER)]


@pytest.mark.parametrize("handler", [well, badly, with_a_cause, never, later, wrongly, too_long, blocking])
@pytest.mark.parametrize(("order", "keyed"), [("key", False), ("none", False), ("key", True), ("key_strict", True)])
async def test_whatever_a_handler_does(handler: Any, order: Any, keyed: bool) -> None:
    app = App("worker@svc", types=[Done])
    app.on(Job, retry=Retry(attempts=3, base_s=0.1), timeout_s=1, order=order, blocking=handler is blocking)(handler)  # type: ignore[call-overload]
    async with app.test() as bus:
        for number in range(3):
            await bus.publish(Job(number=number), ttl_s=600, idempotency_key=f"once-{number}" if keyed else None)
        for _ in range(10):
            await bus.advance(60)
        assert len(bus.dead_letters) in (0, 3)
        # What the test's own bus keeps, to show it, has traces; from Python 3.12 on they keep the callers of a handler.
        bus._failures.clear()  # type: ignore[attr-defined]
        assert held() == []


@pytest.mark.parametrize("value", [b"", b"{", b"x" * 2_000_000, b'{"data":{}}'])
async def test_a_record_that_no_gate_lets_pass(value: bytes) -> None:
    app = App("worker@svc")
    app.on(Job)(well)
    async with app.test() as bus:
        await bus.transport.append([NewRecord("agents.job.asked", b"k", value, ())] * 3, timeout_s=1)
        await bus.settle()
        assert len(bus.dead_letters) == 3
        assert held() == []


async def test_a_record_that_no_letter_can_hold() -> None:
    app = App("worker@svc")
    app.on(Job)(well)
    async with app.test() as bus:
        await bus.transport.append([NewRecord("agents.job.asked", b"k", b"x" * 2_000_000, ())] * 3, timeout_s=1)
        bus.transport.features = msgspec.structs.replace(bus.transport.features, max_record_bytes=1_000_000)
        await bus.settle()
        assert [len(letter.record.value or b"") < 1_000 for letter in bus.dead_letters] == [True] * 3
        assert held() == []


async def test_a_request_that_the_log_refuses() -> None:
    async with connect("memory://", agent="asker@svc") as bus:
        bus.transport.features = msgspec.structs.replace(bus.transport.features, max_record_bytes=1)
        try:
            await bus.request(Job(), Done, timeout_s=5)
        except PublishRejected as error:
            refused = weakref.ref(error)
        assert refused() is None
