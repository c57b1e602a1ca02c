"""A message with a key waits for the inbox and no slot with it: what is held up meanwhile, and what is not."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest

from bus.settings.loading import load
from consumers.app.testing import TestBus
from consumers.delivery.inbox.base import End, Inbox, InboxKey
from sealbus import App
from sealbus.errors import InboxError
from tests.kit import Job


class Slow:
    """A store whose answers come when they are let through; what it is asked with `await` is answered at once."""

    def __init__(self, inbox: Inbox) -> None:
        self.inbox = inbox
        self.claims: list[Callable[[], object]] = []
        self.results: list[Callable[[], object]] = []
        self.failing: Exception | None = None
        self.released: list[str] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inbox, name)

    def claim_soon(self, asks: Any, told: Any) -> None:
        for ask in asks:
            self.claims.append(partial(self.inbox.claim_soon, [ask], told))

    def finish_soon(self, ends: Any, told: Any) -> None:
        for end in ends:
            self.results.append(
                partial(self.inbox.finish_soon, [end], told)
                if self.failing is None
                else partial(_fail, end, self.failing, told)
            )

    async def release(self, key: InboxKey, token: int) -> None:
        await self.inbox.release(key, token)
        self.released.append(key.idempotency_key)

    async def let(self, waiting: list[Callable[[], object]]) -> None:
        """Answer all that has been asked."""
        asked, waiting[:] = list(waiting), []
        for answer in asked:
            answer()
        await turns()


def _fail(end: End, error: Exception, told: Any) -> None:
    end.answer = error
    told([end])


async def turns() -> None:
    for _ in range(30):
        await asyncio.sleep(0)


class Case:
    def __init__(self, concurrency: int = 2) -> None:
        self.runs: list[int] = []
        self.most = self.at_work = 0
        self.app = App("parker@tests")
        self.settings = load(
            flags={"bus.url": "memory://", "worker.concurrency": concurrency}, env={}, file=None
        ).settings

        @self.app.on(Job)
        async def handle(order: Job) -> None:
            self.at_work += 1
            self.most = max(self.most, self.at_work)
            await asyncio.sleep(0)
            self.at_work -= 1
            self.runs.append(order.number)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[tuple[TestBus, Slow]]:
        async with self.app.test(settings=self.settings) as bus:
            claims = bus.workers[0]._claims
            assert claims is not None
            slow = Slow(claims.inbox)
            claims.inbox = slow
            yield bus, slow
            for _ in range(100):
                await slow.let(slow.claims)
                await slow.let(slow.results)


async def test_no_more_claims_are_asked_for_than_there_are_slots_and_no_more_handlers_run() -> None:
    case = Case(concurrency=2)
    async with case.running() as (bus, slow):
        for number in range(7):
            await bus.publish(Job(number), idempotency_key=f"k{number}")
        await bus.workers[0].cycle(0)
        await turns()
        assert (len(slow.claims), case.runs) == (2, [])
        for _ in range(10):
            await slow.let(slow.claims)
            assert len(slow.claims) <= 2
        assert (sorted(case.runs), case.most) == (list(range(7)), 2)
        assert len(slow.results) == 7, "results hold up no other key"


async def test_messages_without_a_key_pass_those_that_wait_for_a_claim() -> None:
    case = Case(concurrency=2)
    async with case.running() as (bus, slow):
        await bus.publish(Job(1), idempotency_key="k1")
        await bus.publish(Job(2))
        await bus.workers[0].cycle(0)
        await turns()
        assert (len(slow.claims), case.runs) == (1, [2])


async def test_the_next_message_of_a_key_waits_until_the_result_is_durable() -> None:
    case = Case()
    async with case.running() as (bus, slow):
        for number in range(2):
            await bus.publish(Job(number), key="one", idempotency_key=f"k{number}")
        await bus.workers[0].cycle(0)
        await turns()
        await slow.let(slow.claims)
        assert (case.runs, len(slow.claims), len(slow.results)) == ([0], 0, 1)
        await slow.let(slow.results)
        assert len(slow.claims) == 1
        await slow.let(slow.claims)
        assert case.runs == [0, 1]


async def test_nothing_is_committed_before_its_result_is_durable() -> None:
    case = Case()
    async with case.running() as (bus, slow):
        await bus.publish(Job(1), idempotency_key="k1")
        worker = bus.workers[0]
        await worker.cycle(0)
        await turns()
        await slow.let(slow.claims)
        assert case.runs == [1]
        assert (len(worker.in_flight), worker.slots.running()) == (1, [])
        await slow.let(slow.results)
        assert len(worker.in_flight) == 0


async def test_quiet_waits_for_claims_and_for_results() -> None:
    case = Case()
    async with case.running() as (bus, slow):
        await bus.publish(Job(1), idempotency_key="k1")
        await bus.workers[0].cycle(0)
        quiet = asyncio.create_task(bus.workers[0].slots.quiet())
        await turns()
        assert not quiet.done()
        await slow.let(slow.claims)
        assert not quiet.done()
        await slow.let(slow.results)
        await asyncio.wait_for(quiet, 30)


async def test_a_partition_that_goes_waits_for_the_result_and_gives_the_claim_back() -> None:
    case = Case(concurrency=1)
    async with case.running() as (bus, slow):
        for number in range(2):
            await bus.publish(Job(number), idempotency_key=f"k{number}")
        worker = bus.workers[0]
        await worker.cycle(0)
        await turns()
        await slow.let(slow.claims)
        # One has run and its result is not durable, the other has asked for its claim.
        assert (len(case.runs), len(slow.results), len(slow.claims)) == (1, 1, 1)
        leaving = asyncio.create_task(worker.revoked([partition.assignment for partition in worker._partitions.all()]))
        await turns()
        await slow.let(slow.claims)
        await asyncio.sleep(0.05)
        assert not leaving.done()
        await slow.let(slow.results)
        await asyncio.wait_for(leaving, 30)
        assert (len(case.runs), len(worker.in_flight)) == (1, 0)
        assert slow.released == [f"k{1 - case.runs[0]}"]


@pytest.mark.parametrize("error", [InboxError("no answer"), ValueError("something else")])
async def test_a_result_that_the_store_did_not_take_is_insisted_on_or_ends_the_worker(error: Exception) -> None:
    case = Case()
    async with case.running() as (bus, slow):
        await bus.publish(Job(1), idempotency_key="k1")
        worker = bus.workers[0]
        await worker.cycle(0)
        await turns()
        slow.failing = error
        await slow.let(slow.claims)
        await slow.let(slow.results)
        if isinstance(error, InboxError):
            assert (case.runs, len(worker.in_flight), worker.slots.failure) == ([1], 1, None)
            bus.clock.advance(1)
            await turns()
            assert (case.runs, len(worker.in_flight), worker.slots.failure) == ([1], 0, None)
        else:
            assert worker.slots.failure is error
            worker.slots.failure = None


async def test_a_repetition_is_not_run_again() -> None:
    case = Case()
    async with case.running() as (bus, slow):
        for _ in range(2):
            await bus.publish(Job(1), key="one", idempotency_key="k1")
        await bus.workers[0].cycle(0)
        for _ in range(4):
            await turns()
            await slow.let(slow.claims)
            await slow.let(slow.results)
        assert (case.runs, len(bus.workers[0].in_flight)) == ([1], 0)


async def test_claimed_messages_are_parsed_late_but_soon() -> None:
    case = Case(concurrency=2)
    async with case.running() as (bus, slow):
        for number in range(300):
            await bus.publish(Job(number), idempotency_key=f"k{number}")
        fetching = asyncio.create_task(bus.workers[0].cycle(0))
        for _ in range(5):
            await asyncio.sleep(0)
        assert 0 < len(bus.workers[0].in_flight) < 300
        await asyncio.wait_for(fetching, 30)
        assert len(bus.workers[0].in_flight) == 300
        for _ in range(200):
            await slow.let(slow.claims)
            await slow.let(slow.results)
        assert sorted(case.runs) == list(range(300))
