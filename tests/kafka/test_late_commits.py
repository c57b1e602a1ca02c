"""A commit that waits inside the client library for its coordinator is not sent for what was lost meanwhile, and one
that a new round overtakes is made after it."""

from __future__ import annotations

import asyncio
import gc
import math
from typing import Any

import pytest
from aiokafka.errors import GroupCoordinatorNotAvailableError, NotCoordinatorForGroupError, RebalanceInProgressError
from aiokafka.protocol.commit import OffsetCommitRequest
from confluent_kafka import Consumer, TopicPartition
from members import MIB, Listener, receive

from bus.errors import DeadlineError, UnreachableError
from bus.transports.base import NewRecord, Record, TopicSpec


def committed(kafka: str, group: str, place: tuple[str, int]) -> int:
    consumer = Consumer({"bootstrap.servers": kafka, "group.id": group, "enable.auto.commit": False})
    (found,) = consumer.committed([TopicPartition(*place)], timeout=10)
    consumer.close()
    return int(found.offset)


async def joined(transport: Any, topic: str, count: int) -> tuple[Any, Listener]:
    """The only member of the topic's group, which has read all its *count* records."""
    await transport.admin.create_topics([TopicSpec(name=topic)])
    await transport.append([NewRecord(topic, None, b"%d" % n) for n in range(count)], timeout_s=20)
    listener = Listener()
    member = await transport.subscribe(f"{topic}-group", [topic], listener, member="one")
    await receive(member, count)
    return member, listener


class Slow:
    """The library's one try of a commit; the first one is answered late, as by a coordinator that was frozen and is
    none any more."""

    def __init__(self, coordinator: Any) -> None:
        self._try = coordinator._do_commit_offsets
        self.tries = 0
        self.answered = asyncio.Event()
        coordinator._do_commit_offsets = self

    async def __call__(self, *arguments: Any) -> None:
        self.tries += 1
        if self.tries == 1:
            await self.answered.wait()
            raise GroupCoordinatorNotAvailableError
        await self._try(*arguments)


class Overtaken:
    """The library's one try of a commit; a new round overtakes the first *tries*, and begins only after the answer."""

    def __init__(self, coordinator: Any, tries: float) -> None:
        self._coordinator = coordinator
        self._try = coordinator._do_commit_offsets
        self._tries = tries
        coordinator._do_commit_offsets = self

    async def __call__(self, *arguments: Any) -> None:
        self._tries -= 1
        if self._tries >= 0:
            self._coordinator.request_rejoin()
            raise RebalanceInProgressError
        await self._try(*arguments)


@pytest.mark.parametrize("others", [True, False], ids=["lost", "kept"])
async def test_a_delayed_commit_covers_only_partitions_still_owned(
    opened: Any, topic: str, kafka: str, others: bool
) -> None:
    transport, group = opened(), f"{topic}-group"
    await transport.admin.create_topics([TopicSpec(name=topic, partitions=2)])
    await transport.append(
        [NewRecord(topic, None, b"%d" % n, partition=p) for n in range(10) for p in (0, 1)], timeout_s=20
    )
    first, second = Listener(), Listener()
    one = await transport.subscribe(group, [topic], first, member="one")
    await receive(one, 20)
    coordinator = one._life.consumer._consumer._coordinator
    slow = Slow(coordinator)
    before = list(first.held)
    committing = asyncio.create_task(one.commit(dict.fromkeys(before, 3)))
    await asyncio.sleep(0.2)
    place = (topic, 0)
    if others:
        # The new coordinator does not know it; it comes back under another id, and another member has a part.
        coordinator.reset_generation()
        coordinator.request_rejoin()
        two = await opened().subscribe(group, [topic], second, member="two")
        got: list[Record] = []
        async with asyncio.timeout(30):
            while not second.held:
                got += await two.poll(timeout_s=0.1, max_records=500, max_bytes=MIB)
                await one.poll(timeout_s=0.1, max_records=500, max_bytes=MIB)
        (mine,) = second.held
        assert len(got + await receive(two, 10 - len(got))) == 10
        await two.commit({mine: 10})
        place = (topic, mine.partition)
    slow.answered.set()
    assert await committing == (before if others else [])
    assert await asyncio.to_thread(committed, kafka, group, place) == (10 if others else 3)


async def test_a_commit_that_a_new_round_overtakes_is_made_after_it(opened: Any, topic: str, kafka: str) -> None:
    member, listener = await joined(opened(), topic, 10)
    Overtaken(member._life.consumer._consumer._coordinator, 2)
    assert await member.commit(dict.fromkeys(listener.held, 3)) == []
    assert await asyncio.to_thread(committed, kafka, f"{topic}-group", (topic, 0)) == 3


async def test_a_commit_that_is_always_overtaken_raises(
    opened: Any, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bus.transports.kafka.consumer.subscription._OVERTAKEN_S", 0.5)
    member, listener = await joined(opened(), topic, 1)
    Overtaken(member._life.consumer._consumer._coordinator, math.inf)
    with pytest.raises(UnreachableError, match=r"rebalancing.*tried again"):
        await member.commit(dict.fromkeys(listener.held, 1))


async def test_an_abandoned_commit_reports_nothing(opened: Any, topic: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bus.transports.kafka.consumer.consumer._COMMIT_S", 0.2)
    member, listener = await joined(opened(), topic, 1)
    coordinator = member._life.consumer._consumer._coordinator
    send, answered, failed = coordinator._send_req, asyncio.Event(), asyncio.Event()

    async def refused(request: object) -> Any:
        if not isinstance(request, OffsetCommitRequest):
            return await send(request)
        await answered.wait()
        failed.set()
        raise NotCoordinatorForGroupError

    complaints: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
    with monkeypatch.context() as patched:
        patched.setattr(coordinator, "_send_req", refused)
        with pytest.raises(DeadlineError):
            await member.commit(dict.fromkeys(listener.held, 1))
        answered.set()
        await failed.wait()
    await asyncio.sleep(0)
    gc.collect()
    assert complaints == []
