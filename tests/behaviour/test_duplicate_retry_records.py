"""Copies of one retry, which deaths of workers leave in its tier, become one again instead of more and more."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import msgspec
import pytest

from bus.settings.loading import load
from bus.transports.base import AppendOutcome, NewRecord, Record
from consumers.app.testing import TestBus
from sealbus import App, Context, RetryLater
from tests.kit import Job

TIER = "agents._retry.copies.5s"


def app_of(runs: list[tuple[int, int]], order: str) -> App:
    app = App("copies@tests", group="copies")

    @app.on(Job, order=order)  # type: ignore[call-overload]
    async def handle(job: Job, context: Context) -> None:
        runs.append((job.number, context.attempt))
        if context.attempt < 4:
            raise RetryLater(after_s=5)

    return app


async def retries(bus: TestBus) -> list[Record]:
    return list(await bus.transport.read(TIER, 0, 0, max_records=1_000, max_bytes=1 << 30))


async def append(bus: TestBus, *records: Record, **changed: object) -> None:
    new = [NewRecord(record.topic, record.key, record.value, record.headers, record.partition) for record in records]
    await bus.transport.append([msgspec.structs.replace(record, **changed) for record in new], timeout_s=5)


@pytest.mark.parametrize("order", ["key", "none"])
@pytest.mark.parametrize("key", [None, "idempotent"])
async def test_copies_of_a_retry_that_are_fetched_together_are_run_as_one(order: str, key: str | None) -> None:
    runs: list[tuple[int, int]] = []
    async with app_of(runs, order).test(
        settings=load(flags={"topics.partitions": 1}, env={}, file=None).settings
    ) as bus:
        await bus.publish(Job(1), idempotency_key=key)
        await bus.settle()
        (retry,) = await retries(bus)
        await append(bus, *[retry] * 30)
        await bus.advance(60)
        assert runs == [(1, 1), (1, 2), (1, 3), (1, 4)]
        assert (len(bus.workers[0].in_flight), bus.dead_letters) == (0, [])


async def test_retries_of_different_messages_are_not_duplicates() -> None:
    runs: list[tuple[int, int]] = []
    async with app_of(runs, "none").test(
        settings=load(flags={"topics.partitions": 1}, env={}, file=None).settings
    ) as bus:
        for number in (1, 2, 3):
            await bus.publish(Job(number))
        await bus.settle()
        await bus.advance(60)
        assert sorted(runs) == [(number, attempt) for number in (1, 2, 3) for attempt in (1, 2, 3, 4)]


async def test_a_forged_origin_makes_no_message_a_copy_of_another() -> None:
    runs: list[tuple[int, int]] = []
    async with app_of(runs, "none").test(
        settings=load(flags={"topics.partitions": 1}, env={}, file=None).settings
    ) as bus:
        for number in (1, 2):
            await bus.publish(Job(number))
        await bus.settle()
        first, second = await retries(bus)
        # The headers of the first with the bytes of the second: it comes after the first, and is run all the same.
        await append(bus, first, value=second.value, key=second.key)
        await bus.advance(6)
        assert sorted(runs[2:]) == [(1, 2), (2, 2), (2, 2)]


async def test_a_retry_that_arrives_before_its_acknowledgement_is_not_a_duplicate(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    runs: list[tuple[int, int]] = []
    async with app_of(runs, "none").test(
        settings=load(flags={"topics.partitions": 1}, env={}, file=None).settings
    ) as bus:
        append, acknowledged = bus.transport.append, asyncio.Event()
        await bus.publish(Job(1))
        await bus.settle()

        async def slow(records: Sequence[NewRecord], *, timeout_s: float, **_: object) -> Sequence[AppendOutcome]:
            outcomes = await append(records, timeout_s=timeout_s)
            await acknowledged.wait()
            return outcomes

        monkeypatch.setattr(bus.transport, "append", slow)
        bus.clock.advance(5.1)
        while len(await retries(bus)) < 2:
            await bus.workers[0].cycle(0)
        # The broker has it, and does not say so before it is due.
        bus.clock.advance(5.1)
        for _ in range(50):
            await bus.workers[0].cycle(0)
        acknowledged.set()
        await bus.advance(60)
        assert runs == [(1, 1), (1, 2), (1, 3), (1, 4)]


async def test_a_copy_that_comes_when_the_other_is_settled_is_run() -> None:
    runs: list[tuple[int, int]] = []
    async with app_of(runs, "none").test(
        settings=load(flags={"topics.partitions": 1}, env={}, file=None).settings
    ) as bus:
        await bus.publish(Job(1))
        await bus.settle()
        (retry,) = await retries(bus)
        await bus.advance(4)
        await append(bus, retry)
        await bus.advance(2)
        assert runs == [(1, 1), (1, 2)]
        await bus.advance(3.5)
        assert runs == [(1, 1), (1, 2), (1, 2)]
