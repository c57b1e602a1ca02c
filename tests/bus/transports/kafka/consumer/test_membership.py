"""A member that ends: nothing it started goes on behind its back."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka import TopicPartition

from bus.clock import Clock, ManualClock, SystemClock
from bus.errors import ClosedError, UnreachableError
from bus.transports.base import Assignment
from bus.transports.kafka import transport
from bus.transports.kafka.cluster.client import ClusterClient
from bus.transports.kafka.consumer import membership
from bus.transports.kafka.consumer.held_partitions import HeldPartition
from bus.transports.kafka.consumer.membership import Membership
from bus.transports.kafka.consumer.start_positions import Position
from bus.transports.kafka.consumer.subscription import KafkaSubscription
from bus.transports.kafka.options import KafkaOptions
from bus.transports.kafka.transport import KafkaTransport


class SlowToLeave:
    """A library's consumer whose coordinator takes its time."""

    generation = 1

    def __init__(self, refreshed_s: float) -> None:
        self.refreshed_s = refreshed_s
        self.left = False

    async def kill(self) -> None:
        await asyncio.sleep(0.2)
        self.left = True


class Reachable:
    """A link to a cluster that is there."""

    def __init__(self, options: Any = None, clock: Clock | None = None) -> None:
        self.options = options
        self.clock = clock or SystemClock()

    async def is_reachable(self) -> bool:
        return True


async def nowhere(_: Sequence[HeldPartition]) -> dict[TopicPartition, Position]:
    """The positions of a member that gains nothing."""
    return {}


class Watched(Membership):
    """Joins a cluster that does not exist, and looks around all the time."""

    def __init__(self, refreshed_s: float) -> None:
        options = SimpleNamespace(poll_timeout_s=60.0, session_timeout_s=60.0)
        super().__init__(
            "g",
            ["t"],
            None,
            member="m",
            link=Reachable(options),
            changed=lambda: None,
            positions=nowhere,
        )
        self.joined: list[SlowToLeave] = []
        self._refreshed_s = refreshed_s

    async def _join(self) -> SlowToLeave:
        self.joined.append(SlowToLeave(self._refreshed_s))
        return self.joined[-1]


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(membership, "_WATCH_S", 0.01)


async def test_a_slowly_leaving_member_does_not_rejoin() -> None:
    member = Watched(refreshed_s=float("inf"))
    await member.open()
    await asyncio.sleep(0.05)
    await member.close()
    await asyncio.sleep(0.05)
    assert [consumer.left for consumer in member.joined] == [True]


def stranger(address: str) -> Membership:
    """Not yet a member of a cluster at *address*."""
    options = KafkaOptions(bootstrap=(address,))
    return Membership(
        "g",
        ["t"],
        None,
        member="m",
        link=Reachable(options),
        changed=lambda: None,
        positions=nowhere,
    )


async def test_a_failed_join_raises_that_the_cluster_is_unreachable() -> None:
    with pytest.raises(UnreachableError):
        await stranger("127.0.0.1:1").open()


async def test_cancelling_a_join_cancels_it() -> None:
    asked: asyncio.Queue[asyncio.StreamWriter] = asyncio.Queue()
    server = await asyncio.start_server(lambda _, writer: asked.put_nowait(writer), "127.0.0.1", 0)
    joining = asyncio.create_task(stranger(f"127.0.0.1:{server.sockets[0].getsockname()[1]}").open())
    silent = await asked.get()
    joining.cancel()
    await asyncio.wait([joining])
    assert joining.cancelled()
    silent.close()
    server.close()


class SlowToJoin(KafkaSubscription):
    """A member of a cluster that takes its time to let it in."""

    joining: asyncio.Event
    may_join: asyncio.Event
    left = False

    def __init__(self, *_: object, **__: object) -> None: ...

    async def open(self) -> None:
        self.joining.set()
        await self.may_join.wait()

    async def close(self) -> None:
        SlowToJoin.left = True


async def test_a_member_that_joins_during_close_leaves_again(monkeypatch: pytest.MonkeyPatch) -> None:
    SlowToJoin.joining, SlowToJoin.may_join = asyncio.Event(), asyncio.Event()
    monkeypatch.setattr(transport, "KafkaSubscription", SlowToJoin)
    monkeypatch.setattr(ClusterClient, "topics", lambda *_: asyncio.sleep(0))
    cluster = KafkaTransport(KafkaOptions(bootstrap=("localhost:1",)), clock=SystemClock())
    joining = asyncio.create_task(cluster.subscribe("g", ["t"], None, member="m"))
    await SlowToJoin.joining.wait()
    await cluster.close()
    SlowToJoin.may_join.set()
    with pytest.raises(ClosedError):
        await joining
    assert SlowToJoin.left


async def test_a_consumer_that_is_being_replaced_is_ended_as_well() -> None:
    member = Watched(refreshed_s=float("-inf"))
    await member.open()
    await asyncio.sleep(0.05)
    assert member.consumer is None
    await member.close()
    assert [consumer.left for consumer in member.joined] == [True]


class Listener:
    def __init__(self) -> None:
        self.heard: list[Assignment] = []

    def lost(self, assignments: Sequence[Assignment]) -> None:
        self.heard += assignments


def test_after_a_suspension_lost_partitions_are_reported_first() -> None:
    clock, listener, assignment = ManualClock(), Listener(), Assignment("t", 0, 1)
    options = SimpleNamespace(session_timeout_s=20.0)
    subscription = KafkaSubscription("g", ["t"], listener, member="m", link=Reachable(options, clock))
    subscription._life.holdings.add([assignment])
    assert (subscription.in_doubt(), listener.heard) == (False, [])
    clock.advance(22)
    assert (subscription.in_doubt(), listener.heard) == (False, [assignment])


class Deaf:
    """A consumer that was stopped while it waited for an assignment: its fetch never returns."""

    async def fetch(self, timeout_s: float) -> dict[Any, Any]:
        await asyncio.get_running_loop().create_future()
        return {}


class Answering:
    """Its successor."""

    def __init__(self) -> None:
        self.fetches = 0

    async def fetch(self, timeout_s: float) -> dict[Any, Any]:
        self.fetches += 1
        await asyncio.sleep(0.01)
        return {}


async def test_a_fetch_that_never_returns_does_not_keep_the_next_consumer_from_fetching() -> None:
    subscription = KafkaSubscription("g", ["t"], None, member="m", link=Reachable())
    life = subscription._life
    life.polled = lambda: None
    life.consumer = Deaf()
    await subscription.poll(timeout_s=0.02, max_records=10, max_bytes=1000)
    life.consumer = successor = Answering()
    for _ in range(3):
        await subscription.poll(timeout_s=0.05, max_records=10, max_bytes=1000)
    assert successor.fetches > 1
    subscription._closed = True
