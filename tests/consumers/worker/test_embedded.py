"""Workers inside another program: `app.running` and `app.run`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest
from prometheus_client import CollectorRegistry

from consumers.worker.worker import Worker
from sealbus import App, connect, payload
from sealbus.errors import ClosedError, ConfigurationError, UnreachableError
from sealbus.telemetry import Metrics
from tests.kit import Order, handling


@payload("order.booked")
class Booked(msgspec.Struct, frozen=True, kw_only=True):
    sku: str


def shop(seen: asyncio.Queue[object]) -> App:
    app = App("shop@svc")

    @app.on(Order)
    async def book(order: Order) -> Booked:
        seen.put_nowait(order)
        return Booked(sku=order.sku)

    return app


def mail(seen: asyncio.Queue[object]) -> App:
    return handling(App("mail@svc"), Booked, seen.put_nowait)


@pytest.mark.medium
async def test_several_apps_work_beside_the_program_on_one_log() -> None:
    seen: asyncio.Queue[object] = asyncio.Queue()
    metrics = Metrics(CollectorRegistry())
    async with shop(seen).running("memory://", mail(seen), metrics=metrics) as bus:
        await bus.publish(Order())
        assert {type(await asyncio.wait_for(seen.get(), 5)) for _ in range(2)} == {Order, Booked}
        assert await bus.request(Order(sku="cup"), Booked, timeout_s=5) == Booked(sku="cup")
    names = {sample.name for family in metrics.registry.collect() for sample in family.samples}
    assert "sealbus_settled_total" in names


@pytest.mark.medium
async def test_leaving_lets_a_running_handler_finish(tmp_path: Path) -> None:
    app, begun, ended = App("shop@svc"), asyncio.Event(), []

    @app.lifespan
    async def note() -> AsyncIterator[None]:
        yield
        ended.append("closed")

    @app.on(Order)
    async def book(order: Order) -> None:
        begun.set()
        await asyncio.sleep(0.2)
        ended.append("handled")

    async with app.running(f"sqlite:///{tmp_path}/x.db") as bus:
        await bus.publish(Order())
        await asyncio.wait_for(begun.wait(), 30)
    assert ended == ["handled", "closed"]


@pytest.mark.medium
async def test_run_works_until_it_is_cancelled(tmp_path: Path) -> None:
    seen: asyncio.Queue[object] = asyncio.Queue()
    url = f"sqlite:///{tmp_path}/x.db"
    working = asyncio.create_task(shop(seen).run(url))
    async with connect(url, agent="test@svc") as bus:
        await bus.publish(Order())
        assert await asyncio.wait_for(seen.get(), 30) == Order()
    working.cancel()
    with pytest.raises(asyncio.CancelledError):
        await working


class GoneError(Exception):
    pass


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers that fail soon after their start."""

    async def run(self: Worker, stop: asyncio.Event) -> None:
        await asyncio.sleep(0.05)
        raise GoneError("the log is gone")

    monkeypatch.setattr(Worker, "run", run)


@pytest.mark.usefixtures("failing")
async def test_a_worker_that_fails_ends_the_body_with_its_error() -> None:
    with pytest.raises(GoneError, match="the log is gone"):
        async with shop(asyncio.Queue()).running("memory://"):
            await asyncio.sleep(30)
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0
    with pytest.raises(GoneError):
        await asyncio.wait_for(shop(asyncio.Queue()).run("memory://"), 30)


@pytest.mark.usefixtures("failing")
async def test_a_program_may_decide_itself_what_a_failure_means() -> None:
    told: asyncio.Queue[BaseException] = asyncio.Queue()
    async with shop(asyncio.Queue()).running("memory://", on_failure=told.put_nowait):
        assert isinstance(await asyncio.wait_for(told.get(), 5), GoneError)


async def test_a_failed_start_raises_and_cleans_up(tmp_path: Path) -> None:
    with pytest.raises(UnreachableError):
        async with shop(asyncio.Queue()).running(f"sqlite:///{tmp_path}/missing/x.db"):
            pass
    one, other = shop(asyncio.Queue()), shop(asyncio.Queue())
    with pytest.raises(ConfigurationError, match="both of group shop-svc"):
        async with one.running("memory://", other):
            pass


async def test_a_lifespan_that_fails_to_close_keeps_nothing_else_open(tmp_path: Path) -> None:
    app, closed = shop(asyncio.Queue()), []

    @app.lifespan
    async def failing() -> AsyncIterator[None]:
        yield
        raise GoneError("it does not close")

    other = mail(asyncio.Queue())

    @other.lifespan
    async def sound() -> AsyncIterator[None]:
        yield
        closed.append("sound")

    with pytest.raises(GoneError, match="it does not close"):
        async with other.running(f"sqlite:///{tmp_path}/x.db", app) as bus:
            transport = bus.transport
    assert closed == ["sound"]
    with pytest.raises(ClosedError):
        await transport.admin.topics()
