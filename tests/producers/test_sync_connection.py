"""`connect_sync`: publishing, asking and closing without an event loop, from any thread; and a Bus in the wrong
loop."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import pytest

from sealbus import App, Outgoing, PublishRejected, Receipt, RequestTimedOut, SyncBus, connect, connect_sync
from sealbus.errors import ClosedError, EventLoopError, UnreachableError
from tests.kit import Done, Job


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/log.db"


@pytest.fixture
def bus(url: str) -> Iterator[SyncBus]:
    with connect_sync(url, agent="shop@svc") as opened:
        yield opened


def numbers_in(url: str) -> list[int]:
    async def read() -> list[int]:
        from bus.transports import open_transport
        from bus.transports.read_all import scan_topic

        transport = open_transport(url)
        try:
            values = [record.value async for record in scan_topic(transport, "agents.job.asked")]
        finally:
            await transport.close()
        return [msgspec.json.decode(value)["data"]["number"] for value in values if value is not None]

    return asyncio.run(read())


def test_a_message_is_durable_when_publish_returns(bus: SyncBus, url: str) -> None:
    receipt = bus.publish(Job(number=7), key="customer-3")
    assert isinstance(receipt, Receipt)
    assert receipt.topic == "agents.job.asked"
    assert bus.namespace == "agents"
    assert numbers_in(url) == [7]


def test_a_refusal_is_raised_in_the_calling_thread(bus: SyncBus) -> None:
    with pytest.raises(PublishRejected):
        bus.publish(Job(number=1), ttl_s=-1)


@pytest.mark.medium
def test_threads_of_a_server_share_one_bus(bus: SyncBus, url: str) -> None:
    with ThreadPoolExecutor(16) as threads:
        receipts = list(threads.map(lambda number: bus.publish(Job(number=number)), range(2_000)))
    assert len({receipt.message_id for receipt in receipts}) == 2_000
    assert sorted(numbers_in(url)) == list(range(2_000))


def test_a_sync_stream_keeps_order_and_reads_its_source_in_the_calling_thread(bus: SyncBus, url: str) -> None:
    readers = set()

    def source() -> Iterator[Outgoing]:
        for number in range(10_000):
            readers.add(threading.get_ident())
            yield Outgoing(Job(number=number), key="one")

    outcomes = list(bus.publish_many(source()))
    assert len(outcomes) == 10_000
    assert all(isinstance(outcome, Receipt) for outcome in outcomes)
    assert readers == {threading.get_ident()}
    assert numbers_in(url) == list(range(10_000))


def test_a_slow_source_does_not_delay_receipts(bus: SyncBus) -> None:
    given: list[int] = []

    def source() -> Iterator[Job]:
        for number in range(300):
            given.append(number)
            yield Job(number=number)
            time.sleep(0.1)

    first = next(bus.publish_many(source()))
    assert isinstance(first, Receipt)
    assert len(given) < 300


def test_an_error_of_the_source_is_raised_after_what_came_before_it(bus: SyncBus) -> None:
    def source() -> Iterator[Job]:
        yield Job(number=1)
        raise OSError("the source is broken")

    outcomes = bus.publish_many(source())
    assert isinstance(next(outcomes), Receipt)
    with pytest.raises(OSError, match="the source is broken"):
        next(outcomes)


def test_a_request_is_answered(bus: SyncBus, url: str) -> None:
    app = App("worker@svc")

    @app.on(Job)
    async def run(job: Job) -> Done:
        return Done(number=job.number + 1)

    over = threading.Event()
    worker = threading.Thread(target=lambda: asyncio.run(work(app, url, over)))
    worker.start()
    try:
        assert bus.request(Job(number=1), Done, timeout_s=20) == Done(number=2)
    finally:
        over.set()
        worker.join()


async def work(app: App, url: str, over: threading.Event) -> None:
    from bus.clock import SystemClock
    from bus.settings.loading import load
    from bus.telemetry.metrics import Metrics
    from bus.transports import open_transport
    from consumers.worker.host import make_worker

    settings = load(env={}, file=None, flags={"bus.url": url}).settings
    transport = open_transport(url)
    worker = make_worker(app.declaration, transport, settings, member="one", clock=SystemClock(), metrics=Metrics())
    await worker.start(create_topics=True)
    try:
        while not over.is_set():
            await worker.cycle(0.05)
    finally:
        await worker.stop(5)
        await transport.close()


def test_a_request_that_nobody_answers_ends_by_its_deadline(bus: SyncBus) -> None:
    with pytest.raises(RequestTimedOut):
        bus.request(Job(number=1), Done, timeout_s=2)


def test_a_log_that_cannot_be_opened_is_said_and_leaves_no_thread(tmp_path: Path) -> None:
    before = threading.active_count()
    with pytest.raises(UnreachableError), connect_sync(f"sqlite:///{tmp_path}/no/folder/x.db", agent="shop@svc") as bus:
        bus.publish(Job(number=1))
    assert threading.active_count() == before


def test_after_its_block_a_bus_is_closed(url: str) -> None:
    with connect_sync(url, agent="shop@svc") as bus:
        bus.publish(Job(number=1))
    with pytest.raises(ClosedError):
        bus.publish(Job(number=2))


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_process_gets_an_error_instead_of_hanging(bus: SyncBus) -> None:
    child = os.fork()
    if child == 0:
        try:
            bus.publish(Job(number=1))
        except EventLoopError as error:
            os._exit(0 if "after the fork" in str(error) else 2)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


async def test_using_a_bus_in_another_loop_raises_at_once(url: str) -> None:
    async with connect(url, agent="shop@svc") as bus:

        def elsewhere() -> float:
            begun_s = time.monotonic()
            for call in (
                lambda: bus.publish(Job(number=1)),
                lambda: bus.request(Job(number=1), Done),
                lambda: _first(bus.publish_many([Job(number=1)])),
                bus.close,
            ):
                with pytest.raises(EventLoopError, match=r"run_coroutine_threadsafe.*connect_sync"):
                    asyncio.run(_awaited(call))
            return time.monotonic() - begun_s

        assert await asyncio.to_thread(elsewhere) < 0.4
        assert isinstance(await bus.publish(Job(number=2)), Receipt)


async def _awaited(call: object) -> None:
    await call()  # type: ignore[operator]


async def _first(outcomes: object) -> None:
    async for _ in outcomes:  # type: ignore[attr-defined]
        return
