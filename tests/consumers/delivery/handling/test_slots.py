"""A handler's end, however unusual, is an outcome of its message and never the end of a slot."""

from __future__ import annotations

import asyncio
import contextlib
import re
import sys
import threading
from typing import Any, NoReturn, cast

import msgspec
import pytest
import structlog

from bus.clock import ManualClock
from bus.settings.loading import load
from bus.transports.base import NewRecord
from consumers.delivery.handling.exclusive import ExclusiveGate
from consumers.delivery.handling.slots import HandlerSlot, HandlerSlots
from consumers.delivery.state.lanes import Lane, Lanes
from sealbus import App, Context, Retry, payload
from tests.kit import handling


@payload("runner.job", version="1.0.0")
class Job(msgspec.Struct, frozen=True):
    how: str


@payload("runner.answer", version="1.0.0")
class Answer(msgspec.Struct, frozen=True):
    how: str


async def awaits_something_cancelled() -> None:
    inner = asyncio.ensure_future(asyncio.sleep(60))
    inner.cancel()
    await inner


async def exits() -> NoReturn:
    sys.exit(3)


class PanicException(BaseException):
    """What PyO3 raises where compiled code panics."""


async def panics() -> NoReturn:
    raise PanicException


async def panics_in_two_tasks() -> NoReturn:
    raise BaseExceptionGroup("two", [PanicException(), ValueError()])


@pytest.mark.parametrize("end", [awaits_something_cancelled, exits, panics, panics_in_two_tasks])
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
        assert [(letter.reason, re.split(r"[:\n]", letter.error)[0]) for letter in bus.dead_letters] == [
            ("retries_exhausted", "HandlerGoneError")
        ]


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
        assert [letter.error.partition(":")[0] for letter in bus.dead_letters] == ["HandlerTimeoutError"]


async def test_a_handler_that_goes_on_after_its_timeout_is_not_stuck_in_silence() -> None:
    app = App("runner@tests")
    enough = asyncio.Event()

    @app.on(Job, timeout_s=5)
    async def handle(job: Job) -> None:
        # Such as a loop that tries again whatever it was that failed.
        while not enough.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await enough.wait()

    async with app.test() as bus:
        receipt = await bus.publish(Job(how="deaf"))
        with structlog.testing.capture_logs() as logs:
            told = []
            for seconds in (6, 2, 50, 20):
                await bus._work(0.05)
                bus.clock.advance(seconds)
                told.append(len(logs))
        enough.set()
        await bus.settle()
        assert told == [0, 1, 1, 2]
        assert {(line["event"], line["message_id"]) for line in logs} == {("handler.does_not_end", receipt.message_id)}
        assert all(line["conversation_id"] for line in logs)
        # Where it stands, once: what the worker does to call it is of no use.
        assert "in handle\n    await enough.wait()" in logs[0]["stack"]
        assert "in call\n" not in logs[0]["stack"]
        assert "stack" not in logs[1]
        assert not bus.dead_letters


async def test_of_a_thread_that_goes_on_after_its_timeout_the_log_has_the_stack() -> None:
    app = App("runner@tests")
    enough = threading.Event()

    @app.on(Job, timeout_s=5, blocking=True)
    def handle(job: Job) -> None:
        enough.wait(60)

    async with app.test() as bus:
        await bus.publish(Job(how="deaf"))
        with structlog.testing.capture_logs() as logs:
            for seconds in (6, 2):
                await bus._work(0.05)
                bus.clock.advance(seconds)
        enough.set()
        await bus.settle()
    assert "in handle\n    enough.wait(60)" in logs[0]["stack"]


async def test_a_handler_that_cancels_itself_is_a_failure_of_its_message() -> None:
    app = App("runner@tests")

    @app.on(Job, retry=Retry(attempts=1))
    async def handle(job: Job) -> None:
        task = asyncio.current_task()
        assert task is not None
        if job.how == "odd":
            task.cancel()
            await asyncio.sleep(1)

    async with app.test() as bus:
        await bus.publish(Job(how="odd"), key="same")
        await bus.publish(Job(how="plain"), key="same")
        await bus.settle()
        assert [(letter.reason, re.split(r"[:\n]", letter.error)[0]) for letter in bus.dead_letters] == [
            ("retries_exhausted", "HandlerGoneError")
        ]


async def test_a_handler_that_cancels_itself_and_returns_is_done() -> None:
    app = App("runner@tests", types=[Answer])

    @app.on(Job)
    async def handle(job: Job) -> Answer:
        task = asyncio.current_task()
        assert task is not None
        if job.how == "odd":
            task.cancel()
        return Answer(job.how)

    async with app.test() as bus:
        await bus.publish(Job(how="odd"), key="same")
        await bus.publish(Job(how="plain"), key="same")
        await bus.settle()
        assert {answer.how for answer in bus.sent(Answer)} == {"odd", "plain"}
        assert not bus.dead_letters


@pytest.mark.parametrize(
    "ends_in", [ValueError("no"), SystemExit(1), asyncio.CancelledError()], ids=lambda ends_in: type(ends_in).__name__
)
async def test_a_handler_that_cancels_itself_and_raises_is_a_failure_of_its_message(ends_in: BaseException) -> None:
    app = App("runner@tests", types=[Answer])

    @app.on(Job, retry=Retry(attempts=1))
    async def handle(job: Job) -> Answer:
        task = asyncio.current_task()
        assert task is not None
        if job.how == "odd":
            task.cancel()
            raise ends_in
        return Answer(job.how)

    async with app.test() as bus:
        await bus.publish(Job(how="odd"), key="same")
        await bus.publish(Job(how="plain"), key="same")
        await bus.settle()
        assert [letter.reason for letter in bus.dead_letters] == ["retries_exhausted"]
        assert bus.sent(Answer) == [Answer("plain")]


async def test_a_runner_that_something_else_cancels_is_not_gone_in_silence() -> None:
    async def driven(lane: Lane[Any], slot: HandlerSlot) -> None:
        assert slot.task is not None
        slot.task.cancel()
        await asyncio.sleep(1)

    lanes: Lanes[Any] = Lanes()
    slots = HandlerSlots(lanes, driven, concurrency=1, clock=ManualClock())
    lanes.add("key", "delivery", 5)
    slots.wake_slots()
    async with asyncio.timeout(30):
        while slots.failure is None:  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0)
    assert isinstance(slots.failure, RuntimeError)
    await slots.close()


class UnprintableError(Exception):
    def __init__(self, ends_in: BaseException | str) -> None:
        self.ends_in = ends_in

    def __str__(self) -> str:
        if isinstance(self.ends_in, BaseException):
            raise self.ends_in
        return self.ends_in

    __repr__ = __str__


class UntraceableError(UnprintableError):
    @property
    def __notes__(self) -> None:
        raise SystemExit


class Odd(str):
    __slots__ = ()

    def __format__(self, _: str) -> str:
        raise SystemExit


@pytest.mark.parametrize("details", [False, True])
@pytest.mark.parametrize("kind", [UnprintableError, UntraceableError])
@pytest.mark.parametrize(
    "ends_in", [AttributeError("there is no response"), SystemExit(1), KeyboardInterrupt(), Odd()], ids=repr
)
async def test_an_exception_that_cannot_be_printed_is_a_dead_letter_like_any_other(
    ends_in: BaseException | str, kind: type[UnprintableError], details: bool
) -> None:
    app = handling(
        App("runner@tests"), Job, kind(ends_in), retry=Retry(attempts=2, backoff="constant", base_s=0.1, cap_s=0.1)
    )
    async with app.test(settings=load(flags={"deadletter.details": details}, env={}, file=None).settings) as bus:
        await bus.publish(Job(how="odd"))
        await bus.advance(5)
        assert [(letter.reason, re.split(r"[:\n]", letter.error)[0]) for letter in bus.dead_letters] == [
            ("retries_exhausted", kind.__name__)
        ]


async def test_a_bad_output_is_rejected_at_once_and_says_which_field() -> None:
    app = App("runner@tests")
    runs = []

    @app.on(Job)
    async def handle(job: Job, context: Context) -> None:
        runs.append(job)
        context.send(Job(how=5))

    async with app.test() as bus:
        await bus.publish(Job(how="x"))
        await bus.settle()
        assert [(letter.reason, letter.pointer) for letter in bus.dead_letters] == [("rejected", "/data/how")]
        assert len(runs) == 1


async def test_a_forged_origin_in_a_retry_tier_costs_one_dead_letter_beside_the_tier() -> None:
    app = handling(App("runner@tests"), Job)
    async with app.test() as bus:
        topic = f"agents._retry.{app.group}.5s"
        forged = [
            NewRecord(topic, b"k", b"{}", (("sb-origin-topic", origin),))
            for origin in (b"other.x.one", b"agents.zzz", b"\xff")
        ]
        await bus.transport.append(forged, timeout_s=1)
        await bus.advance(10)
        assert [(letter.record.topic, letter.reason) for letter in bus.dead_letters] == [
            (f"{topic}.dlq", "malformed")
        ] * 3


async def test_where_handlers_wait_all_of_them_begin_within_a_few_turns_of_the_loop() -> None:
    lanes: Lanes[Any] = Lanes()
    begun: list[object] = []
    never = asyncio.get_running_loop().create_future()

    async def drive(lane: Lane[Any], _: HandlerSlot) -> None:
        begun.append(lane.key)
        await never

    slots = HandlerSlots(lanes, drive, concurrency=64, clock=ManualClock())
    for key in range(100):
        lanes.add(key, None, 5)
    slots.wake_slots()
    for _ in range(8):
        await asyncio.sleep(0)
    assert begun == list(range(64))
    await slots.close()


async def test_where_handlers_do_not_wait_one_runner_is_enough() -> None:
    lanes: Lanes[Any] = Lanes()
    drivers: set[HandlerSlot] = set()

    async def drive(lane: Lane[Any], slot: HandlerSlot) -> None:
        drivers.add(slot)
        lanes.finish(lane)

    slots = HandlerSlots(lanes, drive, concurrency=64, clock=ManualClock())
    for key in range(100):
        lanes.add(key, None, 5)
    slots.wake_slots()
    await slots.quiet()
    assert not len(lanes)
    assert len(drivers) <= 2
    await slots.close()


@pytest.mark.parametrize("has_waited", [True, False])
async def test_a_run_that_waits_for_an_answer_keeps_nobody_from_running_alone(has_waited: bool) -> None:
    lanes: Lanes[Any] = Lanes()
    gate = ExclusiveGate()
    seen: list[int] = []

    async def drive(lane: Lane[Any], slot: HandlerSlot) -> None:
        async def handler() -> None:
            seen.append(gate.inside)
            slot.begin_wait()
            seen.append(gate.inside)
            await gate.enter(alone=True)
            gate.leave(alone=True)
            await slot.end_wait()
            seen.append(gate.inside)

        if has_waited:
            await gate.enter(alone=False)
            slot.inside = True
        await slot.call(handler, (), 60.0, cast("Any", None), has_row=False)
        if has_waited:
            slot.inside = False
            gate.leave(alone=False)
        lanes.finish(lane)

    slots = HandlerSlots(lanes, drive, concurrency=1, clock=ManualClock(), exclusive=gate)
    lanes.add("key", None, 5)
    slots.wake_slots()
    await asyncio.wait_for(slots.quiet(), 10)
    assert (seen, gate.inside) == ([1, 0, 1], 0)
    await slots.close()
