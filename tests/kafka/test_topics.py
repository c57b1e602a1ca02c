"""Topics of a Kafka cluster as data: replication, what keeps records safe, and settings that are not ours."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from aiokafka.admin.config_resource import ConfigResourceType
from aiokafka.client import AIOKafkaClient
from aiokafka.protocol.admin import DescribeConfigsRequest
from aiokafka.protocol.metadata import MetadataRequest
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic, ResourceType
from hypothesis import given
from hypothesis import strategies as st

from bus.transports import open_transport
from bus.transports.base import TopicSpec, Transport
from bus.transports.kafka.admin.topic_config import shape, spec_of
from bus.transports.topic_settings import PARTITIONS, REPLICAS, compared

MIB = 1 << 20
SAFE = {
    "message.timestamp.type": "LogAppendTime",
    "unclean.leader.election.enable": "false",
    "max.message.bytes": str(MIB + 128 * 1024),
}

limits = st.none() | st.integers(0, 2**62)
specs = st.builds(
    TopicSpec,
    name=st.just("a.b"),
    partitions=st.integers(1, 50),
    retention_ms=limits,
    retention_bytes=limits,
    compacted=st.booleans(),
)
founds = st.builds(
    lambda numbers, retention, policy, rest: numbers | retention | {"cleanup.policy": policy} | rest,
    st.fixed_dictionaries(
        {name: st.integers(1, 50).map(str) for name in (PARTITIONS, REPLICAS, "min.insync.replicas")}
        | {"max.message.bytes": st.integers(0, 2**31 - 1).map(str)}
    ),
    st.fixed_dictionaries({name: st.integers(-1, 2**63 - 1).map(str) for name in ("retention.ms", "retention.bytes")}),
    st.sampled_from(["delete", "compact", "compact,delete", "delete,compact"]),
    st.fixed_dictionaries(
        {
            "message.timestamp.type": st.sampled_from(["CreateTime", "LogAppendTime"]),
            "unclean.leader.election.enable": st.sampled_from(["true", "false"]),
            "segment.ms": st.integers(1, 2**62).map(str),
        }
    ),
)
clusters = st.integers(1, 9)


def changes_of(spec: TopicSpec, found: dict[str, str] | None, brokers: int) -> dict[str, Any]:
    changes = compared(spec.name, found, shape(spec, found, brokers=brokers, max_record_bytes=MIB))
    assert len({change.setting for change in changes}) == len(changes)
    return {change.setting: change for change in changes}


@given(specs, founds, clusters)
def test_a_changed_topic_needs_no_second_change(spec: TopicSpec, found: dict[str, str], brokers: int) -> None:
    changes = changes_of(spec, found, brokers)
    after = found | {name: change.wanted for name, change in changes.items() if not change.by_hand}
    assert {name for name, change in changes_of(spec, after, brokers).items() if not change.by_hand} == set()


@given(specs, clusters)
def test_a_created_topic_needs_no_change(spec: TopicSpec, brokers: int) -> None:
    created = {name: change.wanted for name, change in changes_of(spec, None, brokers).items()}
    assert changes_of(spec, created, brokers) == {}
    assert spec_of(spec.name, int(created[PARTITIONS]), created) == spec


@given(specs, founds, clusters)
def test_partitions_are_never_taken_away(spec: TopicSpec, found: dict[str, str], brokers: int) -> None:
    change = changes_of(spec, found, brokers).get(PARTITIONS)
    assert (change is not None) == (spec.partitions > int(found[PARTITIONS]))
    assert change is None or int(change.wanted) == spec.partitions


@given(specs, founds, clusters)
def test_settings_that_no_spec_speaks_of_are_never_named(spec: TopicSpec, found: dict[str, str], brokers: int) -> None:
    assert "segment.ms" not in changes_of(spec, found, brokers)


@given(specs, founds, clusters)
def test_no_more_replicas_must_be_in_sync_than_there_are(spec: TopicSpec, found: dict[str, str], brokers: int) -> None:
    change = changes_of(spec, found, brokers).get("min.insync.replicas")
    insync = int(change.wanted if change else found["min.insync.replicas"])
    assert insync <= int(found[REPLICAS])


@given(specs, founds, clusters)
def test_replicas_are_left_to_an_operator(spec: TopicSpec, found: dict[str, str], brokers: int) -> None:
    by_hand = {name for name, change in changes_of(spec, found, brokers).items() if change.by_hand}
    assert by_hand == ({REPLICAS} if int(found[REPLICAS]) < min(3, brokers) else set())


@pytest.mark.parametrize(
    ("brokers", "replicas", "insync"), [(1, "1", "1"), (2, "2", "1"), (3, "3", "2"), (9, "3", "2")]
)
def test_new_topics_survive_the_loss_of_a_broker_where_there_are_three(
    brokers: int, replicas: str, insync: str
) -> None:
    wanted = shape(TopicSpec(name="a.b"), None, brokers=brokers, max_record_bytes=MIB)
    assert (wanted[REPLICAS], wanted["min.insync.replicas"]) == (replicas, insync)


class Cluster:
    """A cluster seen by a tool that is not ours, and transports on it; topics have names of their own."""

    def __init__(self, addresses: str) -> None:
        self.addresses = addresses
        self.client = AdminClient({"bootstrap.servers": addresses})
        self.prefix = f"t{uuid.uuid4().hex[:8]}"
        self._opened: list[Transport] = []

    def open(self) -> Transport:
        self._opened.append(open_transport(f"kafka://{self.addresses}", max_record_bytes=MIB + 127 * 1024))
        return self._opened[-1]

    def spec(self, **fields: Any) -> TopicSpec:
        return TopicSpec(name=f"{self.prefix}.a", **fields)

    def create(self, partitions: int = 1, replicas: int = 1, **settings: str) -> None:
        topic = NewTopic(
            self.spec().name,
            partitions,
            replicas,
            config={name.replace("_", "."): value for name, value in settings.items()},
        )
        self.client.create_topics([topic])[topic.topic].result(20)
        self.wait_until(lambda: topic.topic in self.client.list_topics(timeout=10).topics)

    def set(self, name: str, value: str) -> None:
        entry = ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ResourceType.TOPIC, self.spec().name, incremental_configs=[entry])
        for changed in self.client.incremental_alter_configs([resource]).values():
            changed.result(20)

    def settings(self) -> dict[str, str]:
        (described,) = self.client.describe_configs([ConfigResource(ResourceType.TOPIC, self.spec().name)]).values()
        return {name: entry.value for name, entry in described.result(20).items()}

    def partitions(self) -> dict[int, int]:
        """How many replicas each has."""
        topic = self.client.list_topics(self.spec().name, timeout=10).topics[self.spec().name]
        return {number: len(partition.replicas) for number, partition in topic.partitions.items()}

    @staticmethod
    def wait_until(holds: Callable[[], bool], within_s: float = 45.0) -> None:
        deadline_s = time.monotonic() + within_s
        while not holds():
            assert time.monotonic() < deadline_s, "waited too long"
            time.sleep(0.05)

    async def close(self) -> None:
        for transport in self._opened:
            await transport.close()
        mine = [name for name in self.client.list_topics(timeout=10).topics if name.startswith(self.prefix)]
        if mine:
            for deleted in self.client.delete_topics(mine).values():
                deleted.result(20)


@pytest.fixture
async def cluster(kafka: str) -> AsyncIterator[Cluster]:
    opened = Cluster(kafka)
    yield opened
    await opened.close()


@pytest.fixture
async def three(kafka_of_three: Any) -> AsyncIterator[Cluster]:
    opened = Cluster(kafka_of_three.bootstrap)
    yield opened
    await opened.close()


async def test_a_new_topic_is_set_up_so_that_nothing_acknowledged_is_lost(cluster: Cluster) -> None:
    await cluster.open().admin.create_topics([cluster.spec(partitions=2, retention_ms=86_400_000)])
    settings = cluster.settings()
    assert {name: settings[name] for name in SAFE} == SAFE
    assert settings["retention.ms"] == "86400000"
    assert cluster.partitions() == {0: 1, 1: 1}


async def test_an_existing_topic_is_brought_into_line(cluster: Cluster) -> None:
    cluster.create(max_message_bytes="1000", unclean_leader_election_enable="true", message_timestamp_type="CreateTime")
    admin = cluster.open().admin
    found = {change.setting: change.found for change in await admin.plan([cluster.spec(partitions=1)])}
    assert {name: found[name] for name in SAFE} == {
        "max.message.bytes": "1000",
        "unclean.leader.election.enable": "true",
        "message.timestamp.type": "CreateTime",
    }
    await admin.create_topics([cluster.spec(partitions=1)])
    settings = cluster.settings()
    assert {name: settings[name] for name in SAFE} == SAFE


async def test_a_larger_limit_than_wanted_stays(cluster: Cluster) -> None:
    admin = cluster.open().admin
    await admin.create_topics([cluster.spec()])
    cluster.set("max.message.bytes", "9000000")
    assert await admin.plan([cluster.spec()]) == []


async def test_a_setting_made_by_hand_survives_every_change(cluster: Cluster) -> None:
    cluster.create(segment_ms="7200000", retention_ms="1000")
    admin = cluster.open().admin
    for retention_ms in (2000, 3000):
        await admin.create_topics([cluster.spec(partitions=1, retention_ms=retention_ms)])
        cluster.set("segment.bytes", "20000000")
    settings = cluster.settings()
    assert (settings["segment.ms"], settings["segment.bytes"], settings["retention.ms"]) == (
        "7200000",
        "20000000",
        "3000",
    )


async def test_a_setting_made_by_hand_at_the_same_time_survives(cluster: Cluster) -> None:
    cluster.create()
    admin = cluster.open().admin

    async def by_hand() -> None:
        for number in range(20):
            await asyncio.to_thread(cluster.set, "segment.ms", str(7_200_000 + number))

    async def ours() -> None:
        for number in range(20):
            await admin.create_topics([cluster.spec(partitions=1, retention_ms=1000 + number)])

    await asyncio.gather(by_hand(), ours())
    settings = cluster.settings()
    assert (settings["segment.ms"], settings["retention.ms"]) == ("7200019", "1019")


async def test_more_in_sync_than_there_are_replicas_is_put_right(cluster: Cluster) -> None:
    cluster.create(min_insync_replicas="2")
    await cluster.open().admin.create_topics([cluster.spec(partitions=1)])
    assert cluster.settings()["min.insync.replicas"] == "1"


async def test_several_at_once_create_grow_and_align_without_a_failure(cluster: Cluster) -> None:
    cluster.create(partitions=1, retention_ms="1000")
    wanted = [
        cluster.spec(partitions=5, retention_ms=2000),
        *(TopicSpec(name=f"{cluster.prefix}.n{number}") for number in range(10)),
    ]
    transports = [cluster.open() for _ in range(6)]
    await asyncio.gather(*(transport.admin.create_topics(wanted) for transport in transports))
    assert await transports[0].admin.plan(wanted) == []


async def test_brokers_tell_what_no_topic_can_override(cluster: Cluster) -> None:
    (settings,) = (await cluster.open().admin.brokers()).values()
    assert set(settings) == {"auto.create.topics.enable", "offsets.retention.minutes"}


@pytest.mark.slow
@pytest.mark.timeout(180)
async def test_three_brokers_keep_three_replicas_and_two_in_sync(three: Cluster) -> None:
    await three.open().admin.create_topics([three.spec(partitions=2)])
    assert three.partitions() == {0: 3, 1: 3}
    assert three.settings()["min.insync.replicas"] == "2"


@pytest.mark.slow
@pytest.mark.timeout(180)
async def test_too_few_replicas_are_reported_and_not_made_unwritable(three: Cluster) -> None:
    three.create(replicas=1, min_insync_replicas="1")
    admin = three.open().admin
    await admin.create_topics([three.spec(partitions=1)])
    (change,) = await admin.plan([three.spec(partitions=1)])
    assert (change.setting, change.found, change.wanted, change.by_hand) == ("replicas", "1", "3", True)
    assert "kafka-reassign-partitions" in change.note
    assert three.settings()["min.insync.replicas"] == "1"


@pytest.mark.slow
async def test_every_broker_knows_a_topic_when_its_creation_has_returned(kafka_of_three: Any, three: Cluster) -> None:
    admin = three.open().admin
    client = AIOKafkaClient(bootstrap_servers=kafka_of_three.bootstrap)
    await client.bootstrap()
    try:
        for number in range(12):
            name = f"{three.prefix}.new{number}"
            await admin.create_topics([TopicSpec(name=name, partitions=3)])
            for broker in client.cluster.brokers():
                answer = await client.send(broker.nodeId, MetadataRequest([name], allow_auto_topic_creation=False))
                (topic,) = answer.to_object()["topics"]
                assert (topic["error_code"], len(topic["partitions"])) == (0, 3), broker
    finally:
        await client.close()


@pytest.mark.slow
async def test_every_broker_knows_a_change_when_it_has_returned(kafka_of_three: Any, three: Cluster) -> None:
    admin = three.open().admin
    await admin.create_topics([three.spec(partitions=1, retention_ms=1000)])
    client = AIOKafkaClient(bootstrap_servers=kafka_of_three.bootstrap)
    await client.bootstrap()
    name = three.spec().name
    try:
        for number in range(2, 32):
            await admin.create_topics([three.spec(partitions=number, retention_ms=number * 1000)])
            for broker in client.cluster.brokers():
                answer = await client.send(broker.nodeId, MetadataRequest([name], allow_auto_topic_creation=False))
                (topic,) = answer.to_object()["topics"]
                described = await client.send(
                    broker.nodeId, DescribeConfigsRequest([(ConfigResourceType.TOPIC, name, ["retention.ms"])])
                )
                ((*_, ((_, retention_ms, *_),)),) = described.resources
                assert (len(topic["partitions"]), retention_ms) == (number, str(number * 1000)), broker
    finally:
        await client.close()


@pytest.mark.slow
@pytest.mark.timeout(180)
async def test_a_broker_that_is_down_does_not_cost_new_topics_a_replica(kafka_of_three: Any, three: Cluster) -> None:
    admin = three.open().admin
    await admin.create_topics([TopicSpec(name=f"{three.prefix}.old", partitions=3)])
    node = kafka_of_three.brokers[2]
    node.stop()
    try:
        three.wait_until(lambda: len(three.client.list_topics(timeout=10).brokers) == 2)
        await admin.create_topics([three.spec(partitions=1)])
        assert three.partitions() == {0: 3}
    finally:
        node.start()
