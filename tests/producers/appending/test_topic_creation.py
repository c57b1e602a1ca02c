"""A topic is made on first use, and a publish keeps its own deadline whatever that takes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import msgspec
import pytest

from bus.clock import ManualClock
from bus.errors import ClosedError, DeadlineError, UnreachableError
from bus.settings.loading import load
from bus.telemetry.metrics import Metrics
from bus.transports.base import Appended, AppendOutcome, Features, NewRecord, TopicSpec
from producers.connection import Bus, make_publisher
from producers.outcomes import PublishRejected, Receipt
from tests.kit import Answered, Asked


class FakeAdmin:
    """Has every topic that it was asked for, and answers when it is told to."""

    def __init__(self) -> None:
        self.asked = 0
        self.at_work = 0
        self.most_at_work = 0
        self.made: dict[str, TopicSpec] = {}
        self.answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def topics(self) -> Mapping[str, TopicSpec]:
        self.asked += 1
        self.at_work += 1
        self.most_at_work = max(self.most_at_work, self.at_work)
        try:
            await asyncio.shield(self.answer)
        finally:
            self.at_work -= 1
        return self.made

    async def create_topics(self, specs: Sequence[TopicSpec]) -> Sequence[str]:
        self.made |= {spec.name: spec for spec in specs}
        return [spec.name for spec in specs]


class FakeLog:
    features = Features(
        name="fake", durable=True, between_processes=False, max_record_bytes=1 << 30, creates_topics_at_start=True
    )

    def __init__(self) -> None:
        self.admin = FakeAdmin()
        self.records: list[NewRecord] = []
        self.timeouts_s: list[float] = []

    async def append(self, records: Sequence[NewRecord], *, timeout_s: float, **_: object) -> Sequence[AppendOutcome]:
        self.records += records
        self.timeouts_s.append(timeout_s)
        return [Appended(record.topic, 0, 0, 0) for record in records]

    async def close(self) -> None:
        return None


class Case:
    def __init__(self) -> None:
        self.log, self.clock = FakeLog(), ManualClock()
        settings = load(flags={}, env={}, file=None).settings
        publisher = make_publisher(self.log, settings, "a@tests", clock=self.clock, metrics=Metrics())
        self.publisher = publisher
        self.bus = Bus(publisher, self.log)

    async def publishing(self, payload: msgspec.Struct, timeout_s: float) -> asyncio.Task[Receipt]:
        """A publish that waits for its topic."""
        task = asyncio.get_running_loop().create_task(self.bus.publish(payload, timeout_s=timeout_s))
        await turns()
        return task


async def turns() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def rejection(task: Awaitable[Any]) -> BaseException | None:
    with pytest.raises(PublishRejected) as caught:
        await task
    return caught.value.__cause__


async def publish(case: Case) -> None:
    await case.bus.publish(Asked(), timeout_s=0.5)


async def publish_many(case: Case) -> None:
    async for outcome in case.bus.publish_many([Asked()], timeout_s=0.5):
        assert isinstance(outcome, PublishRejected)
        raise outcome


async def submit(case: Case) -> None:
    await case.publisher.submit(case.publisher.sealer.seal_plain(Asked()), timeout_s=0.5)


@pytest.mark.parametrize("send", [publish, publish_many, submit])
async def test_a_publish_ends_at_its_own_deadline_while_its_topic_is_not_known_yet(
    send: Callable[[Case], Awaitable[None]],
) -> None:
    case = Case()
    task = asyncio.ensure_future(send(case))
    await turns()
    case.clock.advance(0.49)
    await turns()
    assert not task.done()
    case.clock.advance(0.02)
    await turns()
    assert task.done()
    assert isinstance(await rejection(task), DeadlineError)
    assert case.log.records == []


async def test_a_topic_lookup_continues_for_callers_with_longer_timeouts() -> None:
    case = Case()
    hasty, patient = await case.publishing(Asked(), 0.5), await case.publishing(Asked(), 5)
    case.clock.advance(1)
    assert isinstance(await rejection(hasty), DeadlineError)
    case.log.admin.answer.set_result(None)
    assert isinstance(await patient, Receipt)
    assert case.log.admin.asked == 1


async def test_the_lookup_of_a_cancelled_caller_serves_the_next() -> None:
    case = Case()
    task = await case.publishing(Asked(), 5)
    task.cancel()
    await turns()
    assert task.cancelled()
    case.log.admin.answer.set_result(None)
    await turns()
    await case.bus.publish(Asked())
    assert case.log.admin.asked == 1


async def test_all_who_wait_for_a_topic_share_one_question_and_its_failure() -> None:
    case = Case()
    tasks = [await case.publishing(Asked(), 60) for _ in range(6)]
    case.log.admin.answer.set_exception(UnreachableError("no broker"))
    for task in tasks:
        assert isinstance(await rejection(task), UnreachableError)
    assert case.log.admin.asked == 1


async def test_after_a_failure_the_next_one_asks_again() -> None:
    case = Case()
    task = await case.publishing(Asked(), 60)
    case.log.admin.answer.set_exception(UnreachableError("no broker"))
    assert isinstance(await rejection(task), UnreachableError)
    case.log.admin.answer = asyncio.get_running_loop().create_future()
    case.log.admin.answer.set_result(None)
    await case.bus.publish(Asked())
    assert set(case.log.admin.made) == {"agents.question.asked", "agents.question.asked.dlq"}


async def test_the_log_is_asked_one_question_at_a_time() -> None:
    case = Case()
    tasks = [await case.publishing(each, 60) for each in (Asked(), Answered())]
    case.log.admin.answer.set_result(None)
    await asyncio.gather(*tasks)
    assert (case.log.admin.asked, case.log.admin.most_at_work) == (2, 1)


async def test_the_time_that_a_topic_took_is_no_time_to_send_in() -> None:
    case = Case()
    task = await case.publishing(Asked(), 5)
    case.clock.advance(4)
    case.log.admin.answer.set_result(None)
    await task
    (timeout_s,) = case.log.timeouts_s
    # With the second that a transport may take beyond the deadline.
    assert timeout_s == pytest.approx(1 + 1)


@pytest.mark.parametrize("timeout_s", [0.5, 60])
async def test_closing_ends_lookups_and_fails_their_callers(timeout_s: float) -> None:
    case = Case()
    before = asyncio.all_tasks()
    task = await case.publishing(Asked(), timeout_s)
    case.clock.advance(1)
    await turns()
    await case.bus.close()
    assert isinstance(await rejection(task), DeadlineError if timeout_s < 1 else ClosedError)
    assert isinstance(await rejection(case.bus.publish(Asked())), ClosedError)
    assert asyncio.all_tasks() == before
    assert case.clock.next_due_s() is None
