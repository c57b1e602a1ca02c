"""Requests that nobody sits and waits for, and requests to several agents in turn."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest

from bus.protocol.identifiers import uuid7
from bus.protocol.sealing import Message
from bus.topics.names import agent_slug
from bus.transports import open_transport
from bus.transports.base import NewRecord, Record, TopicSpec, Transport
from bus.vocabulary.task import StatusUpdate, TaskHandoff, TaskRequest, TaskResult, TaskSpec
from producers.requests.in_turn import ask_in_turn
from sealbus import App, BusError, Context, PublishRejected, Reject, RequestFailed, connect, payload
from sealbus.errors import ContractError
from tests.kit import Asked


@payload("turn.answered", version="1.0.0")
class Answered(msgspec.Struct, frozen=True, kw_only=True):
    by: str


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/log.db"


def researcher() -> App:
    app = App("researcher@svc", types=[StatusUpdate])

    @app.on(TaskRequest)
    async def research(task: TaskRequest, context: Context) -> TaskResult:
        if task.goal == "nonsense":
            raise Reject("makes no sense")
        return TaskResult(status="completed", summary=task.goal.upper())

    return app


async def submitted(url: str, goal: str) -> str:
    async with connect(url, agent="user@tests", env={}) as bus:
        task = await bus.submit(TaskRequest(goal=goal), to="researcher@svc", ttl_s=600)
        return task.id


@pytest.mark.medium
async def test_another_process_reopens_the_task_and_has_its_answer(url: str) -> None:
    task_id = await submitted(url, "compare databases")
    async with researcher().running(url), connect(url, agent="user@tests", env={}) as bus:
        result = await bus.task(task_id).result(TaskResult)
    assert result.summary == "COMPARE DATABASES"
    # A day later it is still there.
    async with connect(url, agent="user@tests", env={}) as bus:
        assert [event.is_last async for event in bus.task(task_id).events()] == [True]


@pytest.mark.medium
async def test_the_death_of_a_task_is_reported(url: str) -> None:
    task_id = await submitted(url, "nonsense")
    async with researcher().running(url), connect(url, agent="user@tests", env={}) as bus:
        with pytest.raises(RequestFailed) as failed:
            await bus.task(task_id).result(TaskResult)
    assert (failed.value.reason, failed.value.reporter) == ("rejected", "researcher@svc")


@pytest.mark.medium
async def test_another_agent_does_not_see_the_answer(url: str) -> None:
    task_id = await submitted(url, "secret")
    async with researcher().running(url), connect(url, agent="user@tests", env={}) as bus:
        await bus.task(task_id).result(TaskResult)
    async with connect(url, agent="other@tests", env={}) as bus:
        with pytest.raises(BusError, match="has the task id"):
            await bus.task(task_id).result(TaskResult)


class Counted:
    """A log that counts what is read of it, by topic."""

    def __init__(self, inner: Transport) -> None:
        self._inner = inner
        self.read_of: Counter[str] = Counter()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def read(self, topic: str, *arguments: Any, **options: Any) -> Sequence[Record]:
        records = await self._inner.read(topic, *arguments, **options)
        self.read_of[topic] += len(records)
        return records


@pytest.mark.medium
async def test_a_result_is_read_from_the_time_of_its_request_in_one_topic(url: str) -> None:
    transport = open_transport(url)
    reply = f"agents._reply.{agent_slug('user@tests')}"
    names = ("agents.status.update", reply)
    await transport.admin.create_topics([TopicSpec(name=name, partitions=1) for name in names])
    await transport.append([NewRecord(name, None, b"{}") for name in names for _ in range(500)], timeout_s=5)
    await transport.close()
    with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as file, file:
        file.execute("UPDATE records SET ts = ts - 3600000")
    task_id = await submitted(url, "compare databases")
    async with researcher().running(url), connect(url, agent="user@tests", env={}) as bus:
        task = bus.task(task_id)
        counted = task._transport = Counted(bus.transport)
        assert (await task.result(TaskResult)).summary == "COMPARE DATABASES"
        assert counted.read_of == {reply: 1}
        assert [event.is_last async for event in task.events()] == [True]
        assert counted.read_of == {reply: 2}


async def test_an_invalid_task_id_is_refused(url: str) -> None:
    async with connect(url, agent="user@tests", env={}) as bus:
        for text in ("", "\x00", "x" * 257):
            with pytest.raises(ContractError, match="not a task id"):
                bus.task(text)


@payload("chapter.written", version="1.0.0")
class Chapter(msgspec.Struct, frozen=True, kw_only=True):
    number: int


@payload("turn.asked", version="1.0.0", performative="request")
class Turn(msgspec.Struct, frozen=True, kw_only=True):
    pass


def writer() -> App:
    app = App("researcher@svc", types=[StatusUpdate, Chapter])

    @app.on(TaskRequest)
    async def write(task: TaskRequest, context: Context) -> TaskResult:
        await context.progress("writing", pct=10)
        for number in range(3):
            await context.send_now(Chapter(number=number), to_requester=True)
        return TaskResult(status="completed")

    @app.on(Turn)
    async def answer(turn: Turn) -> Answered:
        return Answered(by="researcher@svc")

    return app


@pytest.mark.medium
async def test_the_events_of_a_task_have_its_progress_with_own_types_also_when_it_is_reopened(url: str) -> None:
    async with writer().running(url), connect(url, agent="user@tests", env={}) as bus:
        task = await bus.submit(TaskRequest(goal="a book"), to="researcher@svc")
        live = [event async for event in task.events(Chapter)]
    assert {type(event.payload) for event in live} == {StatusUpdate, Chapter, TaskResult}
    assert [event.payload.number for event in live if isinstance(event.payload, Chapter)] == [0, 1, 2]
    assert [event.is_last for event in live] == [False] * 4 + [True]
    # Its client has ended: another one of this agent sees the same, also types that it does not know.
    async with connect(url, agent="user@tests", env={}) as bus:
        again = [event async for event in bus.task(task.id).events()]
    assert [event.message.value for event in again] == [event.message.value for event in live]
    assert [event.payload for event in again if event.message.message_type == "chapter.written"] == [None] * 3


@pytest.mark.medium
@pytest.mark.parametrize("task_id", [None, 'my "task" \\ ü', "0198b1c2-7f3a-4c11-9d52-4e1f0a6b8c3d"])
async def test_a_task_of_another_type_and_id_is_reopened(url: str, task_id: str | None) -> None:
    options = {} if task_id is None else {"task_id": task_id}
    async with writer().running(url), connect(url, agent="user@tests", env={}) as bus:
        task = await bus.submit(Turn(), to="researcher@svc", ttl_s=600, **options)
        assert task.id == (task_id or task.id)
        assert (await bus.task(task.id, request=Turn).result(Answered)).by == "researcher@svc"
        with pytest.raises(BusError, match="has the task id"):
            await bus.task(task.id).result(TaskResult)


@pytest.mark.medium
async def test_a_request_that_another_agent_names_with_the_same_task_id_is_not_the_tasks(url: str) -> None:
    task_id = uuid7(time.time_ns() // 1_000_000, bytes(10))
    async with connect(url, agent="other@tests", env={}) as bus:
        await bus.submit(TaskRequest(goal="forged"), to="researcher@svc", task_id=task_id)
    async with connect(url, agent="user@tests", env={}) as bus:
        # Its own, and not asked by `submit`.
        await bus.publish(TaskRequest(goal="mine"), to="researcher@svc", task_id=task_id)
        task = await bus.submit(TaskRequest(goal="asked"), to="researcher@svc", task_id=task_id, ttl_s=600)
    async with researcher().running(url), connect(url, agent="user@tests", env={}) as bus:
        assert (await bus.task(task_id).result(TaskResult)).summary == "ASKED"
    assert task.id == task_id


@pytest.mark.medium
async def test_a_task_is_found_in_a_topic_full_of_others(url: str) -> None:
    async with connect(url, agent="user@tests", env={}) as bus:
        others = [bus.submit(TaskRequest(goal=f"other {number}"), to="nobody@svc", ttl_s=600) for number in range(1500)]
        first = await asyncio.gather(*others[:700])
        task = await bus.submit(TaskRequest(goal="this one"), to="researcher@svc", ttl_s=600)
        await asyncio.gather(*others[700:])
        assert len({each.id for each in first}) == 700
    async with researcher().running(url), connect(url, agent="user@tests", env={}) as bus:
        assert (await bus.task(task.id).result(TaskResult)).summary == "THIS ONE"
        assert (await bus.task(first[0].id).request()).addressee == "nobody@svc"


async def test_a_type_that_states_its_task_names_the_task(url: str) -> None:
    handoff = TaskHandoff(
        task_id="t-7", from_agent="user@tests", to_agent="researcher@svc", task_spec=TaskSpec(action="draft", input={})
    )
    async with connect(url, agent="user@tests", env={}) as bus:
        assert (await bus.submit(handoff, to="researcher@svc")).id == "t-7"


@pytest.mark.medium
async def test_a_task_that_a_handler_submits_is_a_part_of_its_own(url: str) -> None:
    async with connect(url, agent="lead@svc", env={}) as own:
        lead, made = App("lead@svc"), list[Message]()

        @lead.on(Turn)
        async def divide(turn: Turn, context: Context) -> Answered:
            task = await own.submit(TaskRequest(goal="a part"), to="researcher@svc", ttl_s=600)
            await task.result(TaskResult)
            return Answered(by=task.id)

        app = App("researcher@svc")

        @app.on(TaskRequest)
        async def work(task: TaskRequest, context: Context) -> TaskResult:
            made.append(context.message)
            return TaskResult(status="completed")

        async with lead.running(url, app), connect(url, agent="user@tests", env={}) as bus:
            answer = await bus.request(Turn(), Answered, task_id="whole")
    (request,) = made
    assert (request.metadata.task_id, request.metadata.parent_task_id) == (answer.by, "whole")


# In turn.


def answering(name: str, answer: Any) -> App:
    app = App(name)

    @app.on(Asked)
    async def handle(_: Asked) -> Answered:
        if isinstance(answer, Exception):
            raise answer
        return Answered(by=name)

    return app


async def test_the_next_recipient_is_asked_when_the_first_rejects() -> None:
    async with answering("a@svc", Reject("no")).test(answering("b@svc", None)) as bus:
        assert (await bus.request(Asked(), Answered, to=["a@svc", "b@svc"], timeout_s=20)).by == "b@svc"


async def test_the_next_is_asked_ten_seconds_after_the_share_of_a_silent_one() -> None:
    async with answering("b@svc", None).test() as bus:
        started_s = bus.clock.monotonic_s()
        assert (await bus.request(Asked(), Answered, to=["a@svc", "b@svc"], timeout_s=20)).by == "b@svc"
        assert bus.clock.monotonic_s() - started_s == pytest.approx(20, abs=1)


async def test_the_failure_of_the_last_is_raised() -> None:
    async with answering("a@svc", Reject("no")).test(answering("b@svc", Reject("neither"))) as bus:
        with pytest.raises(RequestFailed) as failed:
            await bus.request(Asked(), Answered, to=["a@svc", "b@svc"], timeout_s=20)
        assert failed.value.reporter == "b@svc"


async def test_all_have_the_same_idempotency_key_and_are_asked_once() -> None:
    asked: list[tuple[str, float, float, str]] = []

    async def ask(to: str, share_s: float, grace_s: float, key: str) -> str:
        asked.append((to, share_s, grace_s, key))
        raise PublishRejected("no", ContractError("no", "", "unauthorized"))

    with pytest.raises(PublishRejected):
        await ask_in_turn(ask, ["a", "b", "c"], timeout_s=30)
    assert [(to, share_s, grace_s) for to, share_s, grace_s, _ in asked] == [("a", 10, 10), ("b", 10, 10), ("c", 10, 0)]
    assert len({key for *_, key in asked}) == 1


async def test_an_empty_list_is_refused() -> None:
    async with answering("a@svc", None).test() as bus:
        with pytest.raises(PublishRejected, match="list of agent ids"):
            await bus.request(Asked(), Answered, to=[], timeout_s=20)
