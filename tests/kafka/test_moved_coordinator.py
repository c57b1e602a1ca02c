"""The coordinator of a group moves to another broker: who asks the old one, or one that still reads its log, learns
nothing about the group."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiokafka.client import AIOKafkaClient
from aiokafka.protocol.admin import DescribeGroupsRequest
from aiokafka.protocol.commit import OffsetFetchRequest
from members import Listener, receive

from bus.transports import open_transport
from bus.transports.base import NewRecord, TopicSpec

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]  # seconds until a misled request is sent again

KEPT, COMMITTED = 10, 7


class Misled:
    """The client's sending, whose first request of a kind about *group* goes to a broker that does not coordinate
    it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, request: type[Any], group: str) -> None:
        self.misled = False
        send = AIOKafkaClient.send

        async def astray(client: AIOKafkaClient, node: int, asked: Any, **options: Any) -> Any:
            if isinstance(asked, request) and group in str(vars(asked)) and not self.misled:
                self.misled = True
                node = next(broker.nodeId for broker in client.cluster.brokers() if broker.nodeId != node)
            return await send(client, node, asked, **options)

        monkeypatch.setattr(AIOKafkaClient, "send", astray)


@pytest.fixture
async def transport(kafka_of_three: Any, topic: str) -> AsyncIterator[Any]:
    """On whose log the group of *topic* has had all there is and committed a part of it."""
    transport = open_transport(f"kafka://{kafka_of_three.bootstrap}")
    try:
        await transport.admin.create_topics([TopicSpec(name=topic, partitions=1)])
        await transport.append([NewRecord(topic, None, b"%d" % number) for number in range(KEPT)], timeout_s=20)
        listener = Listener()
        member = await transport.subscribe(topic, [topic], listener, member="m")
        await receive(member, KEPT)
        await member.commit(dict.fromkeys(listener.held, COMMITTED))
        await member.close()
        yield transport
    finally:
        await transport.close()


async def test_a_member_goes_on_where_the_group_stood(
    transport: Any, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    misled = Misled(monkeypatch, OffsetFetchRequest, topic)
    member = await transport.subscribe(topic, [topic], Listener(), member="m")
    records = await receive(member, KEPT - COMMITTED)
    assert misled.misled
    assert [record.offset for record in records] == list(range(COMMITTED, KEPT))


async def test_committed_offsets_come_from_the_coordinator(
    transport: Any, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    misled = Misled(monkeypatch, OffsetFetchRequest, topic)
    assert await transport.admin.committed(topic) == {(topic, 0): COMMITTED}
    assert misled.misled


@pytest.mark.parametrize("request_type", [OffsetFetchRequest, DescribeGroupsRequest])
async def test_groups_are_described_by_their_coordinators(
    transport: Any, topic: str, request_type: type[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    member = await transport.subscribe(topic, [topic], Listener(), member="m")
    await receive(member, KEPT - COMMITTED)
    misled = Misled(monkeypatch, request_type, topic)
    (info,) = [info for info in await transport.admin.groups() if info.name == topic]
    assert misled.misled
    assert info.committed == {(topic, 0): COMMITTED}
    assert len(info.members) == 1
