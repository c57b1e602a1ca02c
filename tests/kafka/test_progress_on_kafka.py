"""Progress on a real Kafka, with a PostgreSQL inbox: requests, processes, and tasks that are reopened."""

from __future__ import annotations

import uuid
from typing import Any

import msgspec
import pytest

from bus.settings.loading import load
from bus.settings.schema import Settings
from bus.transports.read_all import scan_topic
from consumers.deadletters.letters import read_dead_letter
from sealbus import App, Bus, Context, connect, payload
from sealbus.sagas import Saga, SagaContext, on_answer, on_failure, on_progress, on_start
from sealbus.vocabulary import StatusUpdate, TaskAccepted, TaskArtifact, TaskClarification, TaskRequest, TaskResult
from tests.databases import Postgres
from tests.kit import Job

EACH = 100
KINDS = ("status.update", "task.accepted", "task.clarification", "task.artifact", "chapter.written")


@payload("chapter.written")
class Chapter(msgspec.Struct, frozen=True):
    number: int


@payload("saga.ended", version="1.0.0")
class Ended(msgspec.Struct, frozen=True):
    heard: int


class State(msgspec.Struct, kw_only=True):
    heard: int = 0


class Hearing(Saga[State], version="1.0.0", name="hearing"):
    @on_start(Job)
    async def wanted(self, job: Job, context: SagaContext) -> None:
        context.ask("work", TaskRequest(goal="it"), to="worker@svc", answer_by_s=120, task_id="t-3")

    @on_progress("work", Chapter)
    async def heard(self, chapter: Chapter, context: SagaContext) -> None:
        self.state.heard += 1

    @on_answer("work", TaskResult)
    async def done(self, result: TaskResult, context: SagaContext) -> None:
        context.answer(Ended(heard=self.state.heard))
        context.finish()

    @on_failure("work")
    async def lost(self, context: SagaContext) -> None:
        context.answer(Ended(heard=-1))
        context.finish()


def worker() -> App:
    app = App("worker@svc", types=[StatusUpdate, Chapter])

    @app.on(TaskRequest, timeout_s=120)
    async def work(task: TaskRequest, context: Context) -> TaskResult:
        for number in range(EACH):
            await context.progress(f"page {number}", pct=number)
            for part in (
                StatusUpdate(
                    task_id=context.message.metadata.task_id or context.message.message_id,
                    new_status="running",
                    timestamp=context.message.metadata.timestamp,
                ),
                TaskAccepted(understood_goal="it"),
                TaskClarification(questions=("which?",)),
                TaskArtifact(artifact_id="a", index=number, content="text"),
                Chapter(number=number),
            ):
                await context.send_now(part, to_requester=True)
        return TaskResult(status="completed", summary=task.goal)

    return app


def settings_of(kafka: str, store: str) -> Settings:
    flags = {
        "bus.url": f"kafka://{kafka}",
        "bus.namespace": f"p{uuid.uuid4().hex[:8]}",
        "inbox.url": store,
        "topics.create": True,
        "topics.partitions": 3,
    }
    return load(flags=flags, env={}, file=None).settings


async def letters(bus: Bus) -> list[str]:
    found = []
    for topic in await bus.transport.admin.topics():
        if topic.startswith(f"{bus.namespace}.") and topic.endswith(".dlq"):
            found += [read_dead_letter(record).reason async for record in scan_topic(bus.transport, topic)]
    return found


def count_of(events: list[Any]) -> dict[str, int]:
    return {kind: sum(event.message.message_type == kind for event in events) for kind in KINDS}


@pytest.mark.medium
@pytest.mark.timeout(300)
async def test_progress_ends_and_fails_nothing(kafka: str, postgres: Postgres) -> None:
    settings = settings_of(kafka, await postgres.create_database())
    asker = App("asker@svc", types=[Ended, TaskRequest])
    asker.add(Hearing)
    shown: list[Any] = []
    async with asker.running(None, worker(), settings=settings), connect(agent="user@tests", settings=settings) as bus:
        result = await bus.request(
            TaskRequest(goal="it"),
            TaskResult,
            to="worker@svc",
            task_id="t-1",
            timeout_s=120,
            idle_s=60,
            on_progress=shown.append,
            progress_types=[Chapter],
        )
        assert result.summary == "it"
        counted = count_of(shown)
        # Those that `progress` sends are merged.
        assert EACH < counted.pop("status.update") < 2 * EACH
        assert set(counted.values()) == {EACH}
        assert [event.payload.number for event in shown if isinstance(event.payload, Chapter)] == list(range(EACH))

        # Without on_progress nothing of it comes, and with a saga only what it has a method for takes a step.
        assert (await bus.request(TaskRequest(goal="it"), TaskResult, task_id="t-2", timeout_s=120)).summary == "it"
        assert (await bus.request(Job(), Ended, timeout_s=240)).heard == EACH

        task = await bus.submit(TaskRequest(goal="a day later"), to="worker@svc", ttl_s=600)
        live = [event async for event in task.events(Chapter)]
        assert await letters(bus) == []
    async with connect(agent="user@tests", settings=settings) as bus:
        reopened = bus.task(task.id)
        assert (await reopened.result(TaskResult)).summary == "a day later"
        again = [event async for event in reopened.events(Chapter)]
    assert count_of(again) == count_of(live)
    assert again[-1].is_last
