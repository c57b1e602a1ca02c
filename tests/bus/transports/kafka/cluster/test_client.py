"""Questions to a cluster that does not answer: whoever asks can be ended at any moment."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.client import AIOKafkaClient
from aiokafka.errors import KafkaConnectionError
from aiokafka.protocol.metadata import MetadataRequest

from bus.clock import ManualClock
from bus.errors import ClosedError
from bus.transports.base import PartitionRange
from bus.transports.kafka.cluster import client as linking
from bus.transports.kafka.cluster.client import ClusterClient
from bus.transports.kafka.options import KafkaOptions


class Client:
    """A library's client that takes its time to close."""

    def __init__(self) -> None:
        self.closing = asyncio.Event()
        self.may_close = asyncio.Event()

    async def close(self) -> None:
        self.closing.set()
        await self.may_close.wait()


async def failing(_: object) -> None:
    raise KafkaConnectionError


async def test_a_call_cancelled_during_a_client_replacement_stops() -> None:
    link, client = ClusterClient(KafkaOptions(bootstrap=("localhost:1",)), ManualClock()), Client()
    link._clients[AIOKafkaClient] = client
    link._advertised = lambda: ()
    asking = asyncio.create_task(link.ask("asking", failing))
    await client.closing.wait()
    asking.cancel()
    await asyncio.wait((asking,), timeout=1)
    assert asking.cancelled()
    client.may_close.set()


async def test_a_replaced_client_is_closed_although_the_caller_is_cancelled() -> None:
    link, clients = ClusterClient(KafkaOptions(bootstrap=("localhost:1",)), ManualClock()), (Client(), Client())
    link._clients = dict(zip((AIOKafkaClient, AIOKafkaAdminClient), clients, strict=True))
    link._advertised = lambda: ()
    asking = asyncio.create_task(link.ask("asking", failing))
    await clients[0].closing.wait()
    asking.cancel()
    await asyncio.wait((asking,), timeout=1)
    async with asyncio.timeout(30):
        await clients[1].closing.wait()
    for client in clients:
        client.may_close.set()


async def test_a_client_that_connects_while_the_link_is_closed_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    connecting, may_connect, client = asyncio.Event(), asyncio.Event(), Client()

    async def connect() -> None:
        connecting.set()
        await may_connect.wait()

    monkeypatch.setattr(client, "bootstrap", connect, raising=False)
    client.may_close.set()
    monkeypatch.setattr(linking, "AIOKafkaClient", lambda **_: client)
    link = ClusterClient(KafkaOptions(bootstrap=("localhost:1",)), ManualClock())
    asking = asyncio.create_task(link.ask("asking", failing))
    await connecting.wait()
    await link.close()
    may_connect.set()
    with pytest.raises(ClosedError):
        await asking
    assert client.closing.is_set()


class Node:
    """A broker that leads every partition; it notes what it is asked."""

    def __init__(self, partitions: int) -> None:
        self.asked: list[str] = []
        self.cluster = self
        self._partitions = range(partitions)

    def get_random_node(self) -> int:
        return 1

    def broker_metadata(self, node: int) -> object:
        return node

    async def send(self, node: int, request: object) -> object:
        self.asked.append(type(request).__name__)
        if isinstance(request, MetadataRequest):
            partitions = [{"partition": number, "leader": 1, "isr": [1]} for number in self._partitions]
            topic = {"topic": "a.b", "error_code": 0, "is_internal": False, "partitions": partitions}
            return SimpleNamespace(to_object=lambda: {"topics": [topic]})
        return SimpleNamespace(topics=[("a.b", [(number, 0, 7) for number in self._partitions])])


async def test_the_offsets_of_a_topic_take_one_look_at_its_leaders() -> None:
    """An idle worker asks for them every second."""
    link, node = ClusterClient(KafkaOptions(bootstrap=("localhost:1",)), ManualClock()), Node(2)
    link._clients[AIOKafkaClient] = node
    assert await link.ranges("a.b") == {number: PartitionRange(7, 7) for number in range(2)}
    assert node.asked == ["MetadataRequest", "OffsetRequest", "OffsetRequest"]
    assert link.known("a.b") is not None
    assert not link.is_stale("a.b")
