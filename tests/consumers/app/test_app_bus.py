"""`App.test()`: a bus in memory whose clock only the test moves."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from bus.transports.base import Record
from sealbus import App, Bus, Context, Outgoing, PublishRejected, Receipt, Retry, RetryLater, payload
from tests.kit import Answered, Asked


@payload("bus.tallied", version="1.0.0")
class Tally(msgspec.Struct):
    number: int
    seen: list[int] = []


def echo() -> App:
    app = App("echo@tests")

    @app.on(Asked)
    async def answer(asked: Asked) -> Answered:
        return Answered(asked.text)

    return app


async def test_a_leap_of_the_clock_by_hours_changes_nothing_about_the_membership() -> None:
    async with echo().test() as bus:
        bus.clock.advance(36_000)
        await bus.publish(Asked("later"))
        await bus.settle()
        assert bus.sent(Answered) == [Answered("later")]


async def test_an_answer_to_an_unopened_address_is_dropped_without_creating_a_topic() -> None:
    async with echo().test() as bus:
        before = set(await bus.transport.admin.topics())
        for address in ("_reply.asker-0123abcd", "_mail.planner"):
            await bus.publish(Asked("hello"), reply_to=f"agents.{address}")
        await bus.settle()
        assert not bus.dead_letters
        assert set(await bus.transport.admin.topics()) == before


async def test_what_is_sent_leaves_as_it_was_when_it_was_sent() -> None:
    app = App("counter@tests")

    @app.on(Asked)
    async def count(asked: Asked, context: Context) -> None:
        tally = Tally(0)
        for number in (1, 2, 3):
            tally.number = number
            tally.seen.append(number)
            context.send(tally)
        tally.number = "no number"

    async with app.test() as bus:
        await bus.publish(Asked("count"))
        await bus.settle()
        assert not bus.dead_letters
        assert bus.sent(Tally) == [Tally(1, [1]), Tally(2, [1, 2]), Tally(3, [1, 2, 3])]


async def test_what_was_collected_is_not_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A long test settles often: its time would grow with the square of its length."""
    async with echo().test() as bus:
        read, counts = bus.transport.read, list[int]()

        async def counted(topic: str, partition: int, offset: int, **limits: Any) -> Sequence[Record]:
            records = await read(topic, partition, offset, **limits)
            counts[-1] += len(records)
            return records

        monkeypatch.setattr(bus.transport, "read", counted)
        for number in range(10):
            counts.append(0)
            await bus.publish(Asked(f"{number}"))
            await bus.settle()
            bus.clock.advance(1)
        assert bus.sent(Answered) == [Answered(f"{number}") for number in range(10)]
        assert set(counts) == {counts[0]}


async def test_settle_says_which_handlers_wait_for_something_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("consumers.app.testing._PATIENCE_S", 0.05)
    app = App("stuck@tests")

    @app.on(Asked)
    async def wait(asked: Asked) -> None:
        await asyncio.get_running_loop().create_future()

    async with app.test() as bus:
        await bus.publish(Asked("never"))
        with pytest.raises(TimeoutError, match=r"question\.asked"):
            await bus.settle()


def test_a_test_that_fails_while_a_handler_runs_comes_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("consumers.app.testing._PATIENCE_S", 0.05)
    app, ended = App("slow@tests"), []

    @app.on(Asked)
    async def wait(asked: Asked) -> None:
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            ended.append(asked)

    async def fail() -> None:
        async with app.test() as bus:
            await bus.publish(Asked("hello"))
            await bus.settle()

    with pytest.raises(TimeoutError):
        asyncio.run(fail())
    assert ended == [Asked("hello")]


async def test_an_advance_goes_through_every_retry_that_falls_due() -> None:
    app = App("again@tests")
    runs = []

    @app.on(Asked, retry=Retry(attempts=4, backoff="constant", base_s=20, cap_s=20))
    async def fail(asked: Asked) -> None:
        runs.append(asked.text)
        raise RetryLater

    async with app.test() as bus:
        await bus.publish(Asked("x"), ttl_s=3600)
        await bus.advance(300)
        assert len(runs) == 4
        assert [letter.reason for letter in bus.dead_letters] == ["retries_exhausted"]


async def test_two_apps_can_be_tested_at_the_same_time() -> None:
    async with echo().test() as one, echo().test() as two:
        await one.publish(Asked("one"))
        await one.settle()
        await two.settle()
        assert one.sent(Answered) == [Answered("one")]
        assert two.sent(Answered) == []


@pytest.mark.parametrize(
    "option", ["conversation_id", "message_id", "task_id", "run_id", "correlation_id", "idempotency_key", "key"]
)
async def test_an_empty_option_is_refused_and_not_taken_for_absent(option: str) -> None:
    async with echo().test() as bus:
        with pytest.raises(PublishRejected, match=option):
            await bus.publish(Asked("x"), **{option: ""})


async def test_a_source_that_is_cancelled_from_inside_does_not_end_the_stream_silently() -> None:
    async def source() -> object:
        yield Outgoing(Asked("first"))
        raise asyncio.CancelledError

    async with echo().test() as bus:
        stream = Bus(bus.publisher, bus.transport).publish_many(source())
        assert isinstance(await anext(stream), Receipt)
        with pytest.raises(asyncio.CancelledError):
            await anext(stream)
