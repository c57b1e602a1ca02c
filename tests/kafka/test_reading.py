"""Reading without a group on Kafka, where whoever reads changes their mind in the middle."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from members import MIB

from bus.transports.base import NewRecord, TopicSpec
from bus.transports.kafka import KafkaTransport
from bus.transports.kafka.cluster.client import ClusterClient
from bus.transports.kafka.consumer import reader as reading

_COUNT = 20


@pytest.fixture
async def transport(opened: Callable[[], KafkaTransport], topic: str) -> KafkaTransport:
    """One with a topic of twenty records."""
    transport = opened()
    await transport.admin.create_topics([TopicSpec(name=topic, partitions=1)])
    await append(transport, topic, _COUNT)
    return transport


async def append(transport: KafkaTransport, topic: str, count: int) -> None:
    await transport.append([NewRecord(topic, None, b"v") for _ in range(count)], timeout_s=20)


async def offsets(
    transport: KafkaTransport, topic: str, offset: int, *, max_records: int = 100, wait_s: float = 0.0
) -> Sequence[int]:
    found = await transport.read(topic, 0, offset, max_records=max_records, max_bytes=MIB, wait_s=wait_s)
    return [record.offset for record in found]


async def test_records_fetched_for_a_cancelled_reader_do_not_reach_the_next(transport, topic, monkeypatch) -> None:
    monkeypatch.setattr(reading, "_FETCH_S", 2.0)
    waiting = asyncio.create_task(offsets(transport, topic, _COUNT, wait_s=30))
    await asyncio.sleep(0.5)
    spans = ClusterClient.spans

    async def late(link: ClusterClient, places: Sequence[Any]) -> Any:
        # While the next reader asks where the partition ends, the fetch of the one before brings what has come.
        await append(transport, topic, 1)
        await asyncio.sleep(0.5)
        return await spans(link, places)

    monkeypatch.setattr(ClusterClient, "spans", late)

    waiting.cancel()

    assert (await offsets(transport, topic, 3))[0] == 3


async def test_a_reader_cancelled_on_its_way_to_another_place_leaves_nothing_out(transport, topic, monkeypatch) -> None:
    assert await offsets(transport, topic, 0, max_records=5) == list(range(5))
    with monkeypatch.context() as patched:
        patched.setattr(ClusterClient, "spans", lambda *_: asyncio.sleep(30))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(offsets(transport, topic, 0), 0.5)

    assert (await offsets(transport, topic, 5))[0] == 5
