"""task.cancel: through the queue, the handler, the process and what it has asked."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from bus.vocabulary.bus import ApprovalClosed
from bus.vocabulary.task import TaskCancel, TaskRequest, TaskResult
from sealbus import App, Approval, Context, RequestFailed, Retry, RetryLater, payload
from sealbus.errors import TaskCancelled
from sealbus.sagas import Saga, SagaContext, on_answer, on_cancel, on_failure, on_start
from tests.kit import Answered, Asked, handling


@payload("stop.ended", version="1.0.0")
class Ended(msgspec.Struct, frozen=True, kw_only=True):
    how: str


CANCEL = TaskCancel(reason_code="NOT_NEEDED", grace_s=5)


async def test_cancelling_a_waiting_message_skips_it() -> None:
    app, runs = App("worker@svc"), []

    @app.on(TaskRequest, retry=Retry(attempts=9, base_s=60))
    async def work(task: TaskRequest) -> None:
        runs.append(task.goal)
        raise RetryLater("later", after_s=60)

    async with app.test() as bus:
        await bus.publish(TaskRequest(goal="x"), task_id="t1")
        await bus.settle()
        await bus.publish(CANCEL, task_id="t1")
        await bus.advance(400)
        assert runs == ["x"]
        assert bus.dead_letters == []


async def test_an_unrelated_sender_cannot_cancel_a_task() -> None:
    app = handling(App("worker@svc"), TaskRequest, TaskResult(status="completed"))
    async with app.test() as bus:
        await bus.as_agent("stranger@svc").publish(CANCEL, task_id="t1")
        await bus.settle()
        assert (await bus.request(TaskRequest(goal="x"), TaskResult, task_id="t1")).status == "completed"


async def test_a_stranger_who_cancels_does_not_hide_the_requester_who_does() -> None:
    app, runs = App("worker@svc"), []

    @app.on(TaskRequest, retry=Retry(attempts=9, base_s=60))
    async def work(task: TaskRequest) -> None:
        runs.append(task.goal)
        raise RetryLater("later", after_s=60)

    async with app.test() as bus:
        await bus.publish(TaskRequest(goal="x"), task_id="t1")
        await bus.settle()
        await bus.publish(CANCEL, task_id="t1")
        await bus.as_agent("stranger@svc").publish(CANCEL, task_id="t1")
        await bus.advance(400)
        assert runs == ["x"]


@pytest.mark.medium
async def test_a_running_handler_is_notified_and_cancelled_after_its_grace_period() -> None:
    app, seen = App("worker@svc"), []

    @app.on(TaskRequest, timeout_s=None)
    async def work(task: TaskRequest, context: Context) -> None:
        try:
            while True:
                seen.append(context.cancelled)
                await asyncio.sleep(0.01)
        except asyncio.CancelledError:
            seen.append("cut")
            raise

    async with app.test() as bus:
        await bus.publish(TaskRequest(goal="x"), task_id="t1")
        assert not await bus._work(0.2)
        assert seen[-1] is False
        await bus.publish(CANCEL, task_id="t1")
        await bus._work(0.2)
        assert seen[-1] is True
        await bus.advance(6)
        assert seen[-1] == "cut"
        assert bus.dead_letters == []


async def test_the_requester_of_a_cancelled_task_is_told_so() -> None:
    app, begun = App("worker@svc"), asyncio.Event()

    @app.on(TaskRequest, timeout_s=None)
    async def work(task: TaskRequest, context: Context) -> TaskResult:
        begun.set()
        while not context.cancelled:  # noqa: ASYNC110 - what a handler does
            await asyncio.sleep(0.01)
        raise TaskCancelled("stopped half way")

    async with app.test() as bus, asyncio.TaskGroup() as group:

        async def cancel() -> None:
            await begun.wait()
            await bus.publish(CANCEL, task_id="t1")

        group.create_task(cancel())
        with pytest.raises(RequestFailed) as failed:
            await bus.request(TaskRequest(goal="x"), TaskResult, task_id="t1", timeout_s=600)
        assert (failed.value.reason, "stopped half way" in str(failed.value)) == ("CANCELLED", True)
        assert bus.dead_letters == []


class State(msgspec.Struct):
    seen: list[str] = []


def asking(*, hears: bool) -> App:
    class Asking(Saga[State], version="1.0.0"):
        @on_start(TaskRequest)
        async def started(self, task: TaskRequest, context: SagaContext) -> None:
            context.ask("work", Asked(text=task.goal), to="helper@svc", answer_by_s=600, task_id="t1")

        @on_answer("work", Answered)
        async def answered(self, _: Answered, context: SagaContext) -> None:
            context.send(Ended(how="answered"))
            context.finish()

        @on_failure("work")
        async def lost(self, context: SagaContext) -> None:
            context.send(Ended(how="failed"))
            context.finish()

    class Hearing(Asking, version="1.0.0", name="asking"):
        @on_cancel
        async def stop(self, context: SagaContext) -> None:
            context.send(Ended(how="cancelled"))
            context.finish()

    app = App("asker@svc", types=[Asked, Ended, TaskCancel])
    app.add(Hearing if hears else Asking)
    return app


@pytest.mark.parametrize(("hears", "ended"), [(True, [Ended(how="cancelled")]), (False, [])])
async def test_a_process_ends_and_passes_the_cancellation_on(hears: bool, ended: list[Any]) -> None:
    async with asking(hears=hears).test() as bus:
        await bus.publish(TaskRequest(goal="x"), task_id="t1")
        await bus.settle()
        await bus.as_agent("stranger@svc").publish(CANCEL, task_id="t1")
        await bus.settle()
        assert await bus.database.fetch("SELECT status FROM sealbus_processes") == [("open",)]
        await bus.publish(CANCEL, task_id="t1")
        await bus.settle()
        assert await bus.database.fetch("SELECT status FROM sealbus_processes") == [("finished",)]
        assert bus.sent(Ended) == ended
        (passed_on,) = bus.messages(TaskCancel)
        assert passed_on.metadata.recipient is not None
        assert (passed_on.metadata.recipient.id, passed_on.metadata.task_id) == ("helper@svc", "t1")
        await bus.advance(700)
        bus.assert_all_handled()


async def test_cancelling_a_message_that_waits_for_approval_skips_it() -> None:
    app, runs = App("worker@svc"), []

    @app.on(TaskRequest, approval=Approval(by="human"))
    async def work(task: TaskRequest) -> None:
        runs.append(task.goal)

    async with app.test() as bus:
        await bus.publish(TaskRequest(goal="x"), task_id="t1")
        await bus.settle()
        assert len(await bus.held()) == 1
        await bus.publish(CANCEL, task_id="t1")
        await bus.settle()
        assert await bus.held() == []
        assert runs == []
        assert bus.dead_letters == []
        assert [closed.state for closed in bus.sent(ApprovalClosed)] == ["expired"]
