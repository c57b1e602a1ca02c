"""Nobody works for nobody: who asked and leaves has its request cancelled, and a run ends with its message."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from sealbus import App, Bus, BusError, Context, RequestTimedOut, Retry, connect, connect_sync, payload
from sealbus.vocabulary import TaskCancel
from tests.kit import Done, Job

pytestmark = pytest.mark.medium  # servers, processes or real waits


@payload("leave.deeper", version="1.0.0", performative="request")
class Deeper(msgspec.Struct, frozen=True, kw_only=True):
    n: int = 0


class Work:
    """What the handlers saw."""

    def __init__(self) -> None:
        self.begun = asyncio.Event()
        self.ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.deeper: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.saw_cancelled = False


def slow(work: Work, **options: Any) -> App:
    app = App("slow@svc", types=[Done])

    @app.on(Job, retry=Retry(attempts=1), **options)
    async def handle(ask: Job, context: Context) -> Done:
        work.begun.set()
        try:
            if ask.number:
                await context.request(Deeper(), Done, timeout_s=60)
            while not context.cancelled:  # noqa: ASYNC110 - the form of the documents
                await asyncio.sleep(0.01)
            work.saw_cancelled = True
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            if not work.ended.done():
                work.ended.set_result("cut")
            raise
        return Done()

    @app.on(Deeper, retry=Retry(attempts=1))
    async def deeper(ask: Deeper, context: Context) -> Done:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            if not work.deeper.done():
                work.deeper.set_result("cut")
            raise
        return Done()

    return app


async def ask_until_begun(bus: Bus, work: Work) -> None:
    """Send a request within a time limit that ends as soon as the handler is at work."""

    async def expire() -> None:
        await work.begun.wait()
        limit.reschedule(asyncio.get_running_loop().time())

    async with asyncio.timeout(None) as limit, asyncio.TaskGroup() as group:
        group.create_task(expire())
        await bus.request(Job(), Done, timeout_s=60)


@asynccontextmanager
async def running(app: App, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[str, Bus]]:
    monkeypatch.setenv("SEALBUS_PUBLISH__CANCEL_GRACE_S", "0.2s")
    url = f"sqlite:///{tmp_path}/leave.db"
    async with app.running(url), connect(url, agent="asker@svc") as bus:
        yield url, bus


@pytest.mark.medium
async def test_a_caller_that_is_cancelled_has_its_request_cancelled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = Work()
    async with running(slow(work), tmp_path, monkeypatch) as (_, bus):
        asking = asyncio.create_task(bus.request(Job(), Done, timeout_s=60))
        await asyncio.wait_for(work.begun.wait(), 30)
        asking.cancel()
        assert await asyncio.wait_for(work.ended, 30) == "cut"
        assert work.saw_cancelled


@pytest.mark.medium
async def test_a_callers_own_time_limit_cancels_its_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    work = Work()
    async with running(slow(work), tmp_path, monkeypatch) as (_, bus):
        with pytest.raises(TimeoutError):
            await ask_until_begun(bus, work)
        assert await asyncio.wait_for(work.ended, 30) == "cut"


@pytest.mark.medium
async def test_closing_a_bus_cancels_its_open_requests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    work = Work()
    async with running(slow(work), tmp_path, monkeypatch) as (url, _):
        async with connect(url, agent="other@svc") as bus:
            asking = asyncio.create_task(bus.request(Job(), Done, timeout_s=60))
            await asyncio.wait_for(work.begun.wait(), 30)
        await asyncio.wait([asking])
        assert await asyncio.wait_for(work.ended, 30) == "cut"


@pytest.mark.medium
async def test_requests_of_a_cancelled_run_are_cancelled_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    work = Work()
    async with running(slow(work), tmp_path, monkeypatch) as (_, bus):
        asking = asyncio.create_task(bus.request(Job(number=1), Done, timeout_s=60))
        await asyncio.wait_for(work.begun.wait(), 30)
        asking.cancel()
        assert await asyncio.wait_for(work.deeper, 30) == "cut"


@pytest.mark.medium
async def test_a_submitted_task_is_cancelled_by_its_id(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    work = Work()
    async with running(slow(work), tmp_path, monkeypatch) as (_, bus):
        task = await bus.submit(Job(), to="slow@svc", ttl_s=60)
        await asyncio.wait_for(work.begun.wait(), 30)
        await bus.task(task.id, request=Job).cancel(grace_s=0)
        assert await asyncio.wait_for(work.ended, 30) == "cut"


@pytest.mark.medium
async def test_a_task_that_is_cancelled_before_it_runs_never_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work, url = Work(), f"sqlite:///{tmp_path}/leave.db"
    async with connect(url, agent="asker@svc") as bus:
        task = await bus.submit(Job(), to="slow@svc", ttl_s=60)
        await task.cancel()
        async with slow(work).running(url):
            async for event in task.events():
                assert event.payload.error_code == "CANCELLED"
                break
    assert not work.begun.is_set()


@pytest.mark.medium
async def test_only_the_requester_cancels_a_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    work = Work()
    async with running(slow(work), tmp_path, monkeypatch) as (url, bus):
        task = await bus.submit(Job(), to="slow@svc", ttl_s=60)
        await asyncio.wait_for(work.begun.wait(), 30)
        async with connect(url, agent="mallory@svc") as other:
            with pytest.raises(BusError, match="has the task id"):
                await other.task(task.id, request=Job).cancel(grace_s=0)
            cancel, request = TaskCancel(reason_code="NOT_NEEDED", grace_s=0), await task.request()
            await other.publish(cancel, task_id=request.message_id, conversation_id=request.conversation_id)
        await bus.task(task.id, request=Job).cancel(grace_s=0)
        await asyncio.wait_for(work.ended, 30)


@pytest.mark.medium
async def test_an_interrupted_thread_has_its_request_cancelled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    work = Work()
    async with running(slow(work), tmp_path, monkeypatch) as (url, _):

        def ask() -> None:
            with connect_sync(url, agent="thread@svc") as bus:
                thread = threading.Thread(target=lambda: asked(bus), daemon=True)
                thread.start()
                while not work.begun.is_set():
                    time.sleep(0.01)

        def asked(bus: Any) -> None:
            with pytest.raises(Exception, match="closed"):
                bus.request(Job(), Done, timeout_s=60)

        await asyncio.to_thread(ask)
        assert await asyncio.wait_for(work.ended, 30) == "cut"


async def test_a_run_is_cut_when_its_message_expires_and_not_later() -> None:
    app, left, ended = App("cut@tests", types=[Done]), list[float](), list[float]()

    @app.on(Job, timeout_s=None, retry=Retry(attempts=1))
    async def handle(ask: Job, context: Context) -> Done:
        left.append(context.remaining_s)
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(clock.monotonic_s())
        return Done()

    async with app.test() as bus:
        clock = bus.clock
        begun_s = clock.monotonic_s()
        asking = asyncio.create_task(bus.request(Job(), Done, timeout_s=2))
        await bus.advance(2.5)
        assert left == [2.0]
        assert ended[0] - begun_s == pytest.approx(2.0, abs=0.05)
        with pytest.raises(RequestTimedOut):
            await asking
