"""Whatever is killed, and whenever: every published message is handled, skipped or dead."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest
from conftest import Workers, wait_until
from ledger_app import Entry

from bus.settings.loading import load
from bus.transports import open_transport
from sealbus import App, Receipt, connect

GROUP = App("ledger@tests").group


async def publish(url: str, numbers: range) -> list[int]:
    """The numbers that were acknowledged."""
    accepted = []
    async with connect(url, agent="tests@tests", env={}) as bus:
        outcomes = bus.publish_many(Entry(number=number) for number in numbers)
        async for number, outcome in _zip(numbers, outcomes):
            if isinstance(outcome, Receipt):
                accepted.append(number)
    return accepted


async def _zip(numbers: range, outcomes: AsyncIterator[Any]) -> AsyncIterator[tuple[int, Any]]:
    iterator = iter(numbers)
    async for outcome in outcomes:
        yield next(iterator), outcome


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_no_message_is_lost_when_workers_are_killed_under_load(workers: Workers, seed: int) -> None:
    chance = random.Random(seed)
    process = workers.start()
    accepted: list[int] = []
    for round_ in range(4):
        accepted += asyncio.run(publish(workers.url, range(round_ * 1500, (round_ + 1) * 1500)))
        time.sleep(chance.uniform(0.0, 0.6))
        process.kill()
        process.wait()
        process = workers.start()
    assert len(accepted) == 6000
    wait_until(lambda: set(workers.handled()) >= set(accepted), 40, f"seed {seed}: all handled\n{workers.logs()}")
    repeated = len(workers.handled()) - len(set(workers.handled()))
    # At most what was in flight or not yet committed at each of the four kills.
    assert repeated <= 4 * 4 * 1500


@pytest.mark.slow
def test_the_survivor_of_two_has_all_partitions_within_ten_seconds(workers: Workers) -> None:
    first, second = workers.start(), workers.start()
    holders = lambda: asyncio.run(_holders(workers.url))  # noqa: E731
    wait_until(lambda: sorted(holders().values()) == [2, 2], 45, "both hold two of four partitions")
    assert second.poll() is None
    first.kill()
    took_s = wait_until(lambda: list(holders().values()) == [4], 10, "the survivor holds all four")
    assert took_s < 10


async def _holders(url: str) -> dict[str, int]:
    transport = open_transport(url)
    try:
        for group in await transport.admin.groups():
            if group.name == f"agents.{GROUP}":
                counted = {
                    member: sum(topic.endswith("ledger.entry") for topic, _ in held)
                    for member, held in group.members.items()
                }
                return {member: count for member, count in counted.items() if count}
    finally:
        await transport.close()
    return {}


@pytest.mark.slow
def test_a_stopped_worker_drains_and_nothing_is_repeated(workers: Workers) -> None:
    process = workers.start()
    accepted = asyncio.run(publish(workers.url, range(3000)))
    wait_until(lambda: len(workers.handled()) > 500, 45, "some are handled")
    process.terminate()
    assert process.wait(30) == 0
    second = workers.start()
    wait_until(lambda: set(workers.handled()) >= set(accepted), 45, "the rest is handled")
    second.terminate()
    assert second.wait(30) == 0
    assert sorted(workers.handled()) == accepted


def test_defaults_are_what_the_tests_assume() -> None:
    assert load(flags={}, env={}, file=None).settings.topics.partitions == 4
