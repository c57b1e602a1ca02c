"""Requests that nobody sits and waits for, and requests to several agents in turn."""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest

from bus.topics.names import agent_slug
from bus.transports import open_transport
from bus.transports.base import NewRecord, Record, TopicSpec, Transport
from bus.vocabulary.task import StatusUpdate, TaskRequest, TaskResult
from producers.requests.in_turn import ask_in_turn
from producers.requests.submitted import TaskKey
from sealbus import App, Context, PublishRejected, Reject, RequestFailed, connect, payload
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
        task = await bus.submit(TaskRequest(goal=goal), to="researcher@svc", task_id="t1", ttl_s=600)
        return task.id


@pytest.mark.medium
async def test_another_process_reopens_the_task_and_has_its_answer(url: str) -> None:
    handle = await submitted(url, "compare databases")
    async with researcher().running(url), connect(url, agent="user@tests", env={}) as bus:
        result = await bus.task(handle).result(TaskResult)
    assert result.summary == "COMPARE DATABASES"
    # A day later it is still there.
    async with connect(url, agent="user@tests", env={}) as bus:
        assert [event.is_last async for event in bus.task(handle).events()] == [True]


@pytest.mark.medium
async def test_the_death_of_a_task_is_reported(url: str) -> None:
    handle = await submitted(url, "nonsense")
    async with researcher().running(url), connect(url, agent="user@tests", env={}) as bus:
        with pytest.raises(RequestFailed) as failed:
            await bus.task(handle).result(TaskResult)
    assert (failed.value.reason, failed.value.reporter) == ("rejected", "researcher@svc")


@pytest.mark.medium
async def test_another_agent_does_not_see_the_answer(url: str) -> None:
    handle = await submitted(url, "secret")
    async with researcher().running(url), connect(url, agent="user@tests", env={}) as bus:
        await bus.task(handle).result(TaskResult)
    async with connect(url, agent="other@tests", env={}) as bus:
        task = bus.task(handle)
        assert await task._news({}, [task._topic]) == []


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
@pytest.mark.parametrize("has_time", [True, False], ids=["handle", "handle of an older program"])
async def test_a_result_is_read_from_the_time_of_its_request_in_one_topic(url: str, has_time: bool) -> None:
    transport = open_transport(url)
    reply = f"agents._reply.{agent_slug('user@tests')}"
    names = ("agents.status.update", reply)
    await transport.admin.create_topics([TopicSpec(name=name, partitions=1) for name in names])
    await transport.append([NewRecord(name, None, b"{}") for name in names for _ in range(500)], timeout_s=5)
    await transport.close()
    with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as file, file:
        file.execute("UPDATE records SET ts = ts - 3600000")
    handle = await submitted(url, "compare databases")
    if not has_time:
        key = TaskKey.read(handle)
        assert key.appended_ms > 0
        handle = msgspec.structs.replace(key, appended_ms=0).text
    async with researcher().running(url), connect(url, agent="user@tests", env={}) as bus:
        task = bus.task(handle)
        counted = task._transport = Counted(bus.transport)
        assert (await task.result(TaskResult)).summary == "COMPARE DATABASES"
        assert counted.read_of == {reply: 1}
        assert [event.is_last async for event in task.events()] == [True]
        assert counted.read_of == {reply: 2}


async def test_an_invalid_handle_is_refused(url: str) -> None:
    async with connect(url, agent="user@tests", env={}) as bus:
        for text in ("", "nonsense", "e30"):
            with pytest.raises(ContractError, match="not the handle"):
                bus.task(text)


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
