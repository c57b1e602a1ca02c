"""How far a group is behind, measured from what it has committed or taken, beside the committing. Measuring also notes
what its tiers hold."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from unittest import mock

import pytest

from bus.clock import ManualClock
from bus.errors import UnreachableError
from bus.telemetry.metrics import Metrics
from bus.transports import open_transport
from bus.transports.base import Assignment, NewRecord, Record, TopicSpec, Transport
from consumers.app.app import App
from consumers.app.testing import TestBus
from consumers.delivery.resilience.retry import Tier
from consumers.delivery.state.partition import Partition
from consumers.worker import lag
from consumers.worker.lag import measure, show_lag
from tests.kit import Job, handling

GROUP = "readers"
PLACE = Assignment("a.b", 0, 1)
RECORDS = 700


class Nobody:
    """Takes no notice of partitions."""

    def assigned(self, assignments: Sequence[Assignment]) -> None: ...

    async def revoked(self, assignments: Sequence[Assignment]) -> None: ...

    def lost(self, assignments: Sequence[Assignment]) -> None: ...


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def transport(clock: ManualClock) -> AsyncIterator[Transport]:
    """A log with one partition of so many records."""
    transport = open_transport("memory://", clock=clock)
    await transport.admin.create_topics([TopicSpec(name=PLACE.topic, partitions=1)])
    await transport.append([NewRecord(PLACE.topic, b"k", b"v")] * RECORDS, timeout_s=5)
    yield transport
    await transport.close()


def arrived() -> Partition:
    """A partition of which nothing has been delivered to this member yet."""
    return Partition(PLACE, expected_type="a", own=False, tier=None)


async def commit(transport: Transport, offset: int) -> None:
    """Another member of the group takes what there is, commits, and leaves."""
    member = await transport.subscribe(GROUP, [PLACE.topic], Nobody(), member="other")
    while not await member.poll(timeout_s=0, max_records=1, max_bytes=1000):
        pass
    assert not await member.commit(dict.fromkeys(member.assignments(), offset))
    await member.close()


async def test_the_lag_includes_records_of_a_retry_tier_not_fetched_yet(
    clock: ManualClock, transport: Transport
) -> None:
    tier = Partition(PLACE, expected_type=None, own=True, tier=Tier("5s", 5.0))
    await measure(transport, [tier, arrived()], clock, GROUP)
    clock.advance(3)
    assert tier.seen.waited_s(RECORDS - 1, clock.monotonic_s()) == 3
    assert tier.seen.waited_s(RECORDS, clock.monotonic_s()) == 0


@pytest.mark.parametrize(("committed", "messages", "seconds"), [(RECORDS, 0, 0.0), (RECORDS - 10, 10, 60.0)])
async def test_before_the_first_delivery_the_lag_counts_from_the_committed_offset(
    clock: ManualClock, transport: Transport, committed: int, messages: int, seconds: float
) -> None:
    await commit(transport, committed)
    clock.advance(60)
    (found,) = await measure(transport, [arrived()], clock, GROUP)
    assert (found.messages, found.seconds) == (messages, seconds)


async def test_the_lag_of_a_group_that_has_never_committed_is_all_that_is_kept(
    clock: ManualClock, transport: Transport
) -> None:
    (found,) = await measure(transport, [arrived()], clock, GROUP)
    assert found.messages == RECORDS


async def test_offsets_without_records_do_not_count_as_lag(clock: ManualClock, transport: Transport) -> None:
    """As those of the markers that transactions leave behind, which nobody settles."""

    async def nothing(*_: object, **__: object) -> list[Record]:
        return []

    await commit(transport, RECORDS - 1)
    with mock.patch.object(transport, "read", nothing):
        (found,) = await measure(transport, [arrived()], clock, GROUP)
    assert (found.messages, found.seconds) == (0, 0.0)


async def test_the_lag_counts_from_settled_records_before_their_commit(
    clock: ManualClock, transport: Transport
) -> None:
    await commit(transport, 100)
    partition = arrived()
    for offset in range(100, 200):
        partition.frontier.deliver(offset)
        partition.frontier.settle(offset)
    (found,) = await measure(transport, [partition], clock, GROUP)
    assert found.messages == RECORDS - 200


async def test_the_groups_commits_are_looked_up_once_for_all_partitions_and_not_again(
    clock: ManualClock, transport: Transport
) -> None:
    await commit(transport, RECORDS)
    partitions = [arrived(), arrived()]
    with mock.patch.object(transport.admin, "committed", wraps=transport.admin.committed) as committed:
        for _ in range(3):
            assert [found.messages for found in await measure(transport, partitions, clock, GROUP)] == [0, 0]
        assert committed.call_count == 1


async def test_while_the_groups_commits_cannot_be_looked_up_the_gauges_stay_as_they_are(
    clock: ManualClock, transport: Transport
) -> None:
    async def away(_: str) -> Mapping[tuple[str, int], int]:
        raise UnreachableError("nobody there")

    metrics = Metrics()
    metrics.lag_messages.labels(GROUP, PLACE.topic, 0).set(7)
    with mock.patch.object(transport.admin, "committed", away):
        await show_lag(transport, [arrived()], clock, metrics, GROUP, namespace="agents")
    assert (
        metrics.registry.get_sample_value(
            "sealbus_lag_messages", {"group": GROUP, "topic": PLACE.topic, "partition": "0"}
        )
        == 7
    )


def app_of() -> App:
    return handling(App("worker@svc"), Job)


async def moved_on(bus: TestBus, running: asyncio.Task[None], rounds: int) -> None:
    """Time goes by for a worker that runs by itself."""
    for _ in range(rounds):
        if not running.done():
            bus.clock.advance(0.25)
            await asyncio.sleep(0.001)


async def test_commits_go_on_while_the_lag_is_being_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    measuring = asyncio.Event()

    async def slow(*_: object) -> list[lag.Lag]:
        measuring.set()
        await asyncio.get_running_loop().create_future()
        return []

    monkeypatch.setattr(lag, "measure", slow)
    app, stop = app_of(), asyncio.Event()
    async with app.test() as bus:
        running = asyncio.create_task(bus.workers[0].run(stop))
        await moved_on(bus, running, 40)
        assert measuring.is_set()
        await bus.publish(Job())
        await moved_on(bus, running, 40)
        committed = await bus.transport.admin.committed(f"agents.{app.group}")
        assert sum(offset for (topic, _), offset in committed.items() if topic == "agents.job.asked") == 1
        stop.set()
        await moved_on(bus, running, 10)
        await running


async def test_a_measuring_that_dies_ends_the_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken(*_: object) -> list[lag.Lag]:
        raise ZeroDivisionError

    monkeypatch.setattr(lag, "measure", broken)
    async with app_of().test() as bus:
        running = asyncio.create_task(bus.workers[0].run(asyncio.Event()))
        await moved_on(bus, running, 60)
        with pytest.raises(ZeroDivisionError):
            await running
