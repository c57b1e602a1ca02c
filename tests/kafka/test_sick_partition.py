"""A partition whose broker is away: only what is appended to it waits, or is not known to be in the log."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Mapping, Sequence
from types import MappingProxyType

import msgspec
import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from bus.settings.loading import load
from bus.transports.kafka.producer import replacement as supply
from deploy.kafka.cluster import Cluster
from sealbus import Bus, PublishRejected, PublishUnknown, connect, payload

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


async def made(
    cluster: Cluster, replicas: Mapping[str, Sequence[int]], config: Mapping[str, str] = MappingProxyType({})
) -> str:
    """A new namespace with these topics of one partition, each on the brokers that are given."""
    namespace = f"s{uuid.uuid4().hex[:8]}"
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    topics = [
        NewTopic(f"{namespace}.{name}", 1, replica_assignment=[[*brokers]], config={**config})
        for name, brokers in replicas.items()
    ]
    for done in admin.create_topics(topics).values():
        await asyncio.to_thread(done.result, 15)
    return namespace


async def until_alone(cluster: Cluster, topic: str) -> None:
    """Wait until the leader of its partition has no other replica in sync."""
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    while len((await asyncio.to_thread(admin.list_topics, topic, 15)).topics[topic].partitions[0].isrs) > 1:  # noqa: ASYNC110 - a broker's
        await asyncio.sleep(0.2)


async def test_what_is_published_beside_a_topic_without_a_broker_has_its_receipt_at_once(
    kafka_of_three: Cluster,
) -> None:
    node = kafka_of_three.brokers[2]
    namespace = await made(kafka_of_three, {"sick.away": [node.id], "sick.there": [kafka_of_three.brokers[0].id]})
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
            assert {type(outcome) for outcome in await asyncio.gather(*away, return_exceptions=True)} == {
                PublishUnknown
            }
        finally:
            node.start()


async def test_a_topic_with_too_few_replicas_in_sync_is_named_and_costs_the_others_nothing(
    kafka_of_three: Cluster, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(supply, "_STALL_S", 2.0)
    monkeypatch.setattr(supply, "_HEALTHY_S", 1.0)
    there, node = kafka_of_three.brokers[0], kafka_of_three.brokers[2]
    namespace = await made(
        kafka_of_three, {"sick.away": [there.id, node.id], "sick.there": [there.id]}, {"min.insync.replicas": "2"}
    )
    flags = {"bus.url": f"kafka://{kafka_of_three.bootstrap}", "bus.namespace": namespace, "publish.timeout_s": 10}
    async with connect(agent="a@b", settings=load(flags=flags, env={}, file=None).settings) as bus:
        for kind in (Away, There):
            await begin(bus, kind(0))
        node.kill()
        try:
            await until_alone(kafka_of_three, f"{namespace}.sick.away")
            capsys.readouterr()
            away = asyncio.create_task(bus.publish(Away(1)))
            while not away.done():
                await bus.publish(There(1))
            with pytest.raises(PublishUnknown):
                await away
            (told,) = [line for line in capsys.readouterr().err.splitlines() if '"area": "kafka"' in line]
            assert "sick.away" in told
            assert "min.insync.replicas is 2" in told
        finally:
            node.start()
