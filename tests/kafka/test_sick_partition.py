"""A partition whose broker is away: only what is appended to it waits, or is not known to be in the log."""

from __future__ import annotations

import asyncio
import time
import uuid
from typing import Any

import msgspec
import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from bus.errors import PublishRejected, PublishUnknown
from bus.settings import load
from sealbus import Bus, connect, payload

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]


@payload("sick.away")
class Away(msgspec.Struct, frozen=True):
    number: int


@payload("sick.there")
class There(msgspec.Struct, frozen=True):
    number: int


async def begin(bus: Bus, payload: msgspec.Struct) -> None:
    """The first message of its topic, which a broker may not know of for a moment."""
    while True:
        try:
            await bus.publish(payload)
        except PublishRejected:
            await asyncio.sleep(0.2)
        else:
            return


async def test_what_is_published_beside_a_topic_without_a_broker_has_its_receipt_at_once(kafka_of_three: Any) -> None:
    namespace, node = f"s{uuid.uuid4().hex[:8]}", kafka_of_three.brokers[2]
    admin = AdminClient({"bootstrap.servers": kafka_of_three.bootstrap})
    replicas = {"sick.away": node.id, "sick.there": kafka_of_three.brokers[0].id}
    topics = [NewTopic(f"{namespace}.{name}", 1, replica_assignment=[[broker]]) for name, broker in replicas.items()]
    for done in admin.create_topics(topics).values():
        await asyncio.to_thread(done.result, 15)
    flags = {"bus.url": f"kafka://{kafka_of_three.bootstrap}", "bus.namespace": namespace, "publish.timeout_s": 15}
    async with connect(agent="a@b", settings=load(flags=flags, env={}, file=None).settings) as bus:
        for kind in (Away, There):
            await begin(bus, kind(0))
        node.kill()
        try:
            away = [asyncio.create_task(bus.publish(Away(1)))]
            slowest_s = 0.0
            for number in range(150):
                began_s = time.monotonic()
                await bus.publish(There(number))
                slowest_s = max(slowest_s, time.monotonic() - began_s)
                # In one append with the next one that can be written.
                away.append(asyncio.create_task(bus.publish(Away(number))))
            assert slowest_s < 5
            assert {type(outcome) for outcome in await asyncio.gather(*away, return_exceptions=True)} == {PublishUnknown}
        finally:
            node.start()
