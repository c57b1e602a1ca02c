"""Following a topic as it grows."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from bus.topics.topic_reader import follow_topic
from bus.transports import open_transport
from bus.transports.base import NewRecord, TopicSpec


async def test_partitions_that_are_added_are_followed_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bus.topics.topic_reader._WAIT_S", 0.02)
    transport = open_transport("memory://")
    await transport.admin.create_topics([TopicSpec(name="a.b", partitions=1)])
    pages: Any = follow_topic(transport, "a.b", {0: 0})
    try:
        await transport.append([NewRecord("a.b", None, b"before", partition=0)], timeout_s=5)
        assert [record.value for record in await anext(pages)] == [b"before"]
        await transport.admin.create_topics([TopicSpec(name="a.b", partitions=4)])
        await transport.append([NewRecord("a.b", None, b"after", partition=3)], timeout_s=5)
        async with asyncio.timeout(30):
            assert [record.value for record in await anext(pages)] == [b"after"]
    finally:
        await pages.aclose()
        await transport.close()
