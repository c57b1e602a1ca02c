"""What only Kafka has: its own limits, gaps in offsets, topics that vanish, records of other clients."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import structlog
from aiokafka import AIOKafkaProducer
from aiokafka.client import AIOKafkaClient
from aiokafka.codec import zstd_encode
from aiokafka.protocol.group import JoinGroupRequest, SyncGroupRequest
from aiokafka.protocol.produce import ProduceRequest
from aiokafka.record.default_records import DefaultRecordBatchBuilder
from aiokafka.record.util import calc_crc32c
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, NewPartitions, NewTopic
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from members import MIB, Listener, receive
from structlog.testing import capture_logs

from bus.errors import ConfigurationError, RecordTooLargeError, TopicMissingError
from bus.transports.base import Appended, NewRecord, Record, TopicSpec
from bus.transports.kafka.cluster.client import ClusterClient
from bus.transports.kafka.consumer import consumer as member
from bus.transports.kafka.consumer.decompression import MAX_DECOMPRESSED_BYTES
from bus.transports.partitioner import partition_of


async def everything(transport, topic: str, partition: int = 0) -> list[Record]:
    span = (await transport.admin.ranges(topic))[partition]
    records: list[Record] = []
    offset = span.start
    while batch := await transport.read(topic, partition, offset, max_records=1000, max_bytes=64 * MIB):
        records += batch
        offset = batch[-1].offset + 1
    return records


def create(admin: AdminClient, name: str, partitions: int = 1, **config: str) -> None:
    for created in admin.create_topics(
        [NewTopic(name, partitions, 1, config={key.replace("_", "."): value for key, value in config.items()})]
    ).values():
        created.result(15)


def produce(producer: Producer, topic: str, *records: tuple[bytes | None, bytes | None], **extra: object) -> None:
    for key, value in records:
        producer.produce(topic, value, key, **extra)
    assert producer.flush(20) == 0


async def test_records_of_other_clients_lie_where_ours_do(opened, topic, admin, foreign, kafka) -> None:
    transport = opened()
    create(admin, topic, 7)
    keys = [
        b"",
        b"a",
        b"task-4821",
        b"\x00\xff",
        "schlüssel-\U0001f600".encode(),
        b"x" * 300,
        *(b"%d" % i for i in range(50)),
    ]
    outcomes = await transport.append([NewRecord(topic, key, b"ours") for key in keys], timeout_s=20)
    await asyncio.to_thread(produce, foreign, topic, *((key, b"theirs") for key in keys))
    async with AIOKafkaProducer(bootstrap_servers=kafka) as plain:
        for key in keys:
            await plain.send(topic, b"plain", key)
    found = [record for partition in range(7) for record in await everything(transport, topic, partition)]
    theirs = {record.key: record.partition for record in found if record.value == b"theirs"}
    plainly = {record.key: record.partition for record in found if record.value == b"plain"}
    ours = {key: outcome.partition for key, outcome in zip(keys, outcomes, strict=True)}
    assert ours == theirs == plainly == {key: partition_of(key, 7) for key in keys}


async def test_our_records_are_read_by_another_client(opened, topic, kafka) -> None:
    transport = opened()
    await transport.admin.create_topics([TopicSpec(name=topic, partitions=1)])
    headers = (("a", b""), ("a", b"\x00\xff"), ("ü", b"x"))
    await transport.append([NewRecord(topic, b"k", b"v", headers), NewRecord(topic, None, b"w")], timeout_s=20)

    def read() -> list[tuple[object, ...]]:
        consumer = Consumer({"bootstrap.servers": kafka, "group.id": "x", "enable.auto.commit": False})
        consumer.assign([TopicPartition(topic, 0, 0)])
        messages = consumer.consume(2, 15)
        consumer.close()
        return [(message.key(), message.value(), message.headers()) for message in messages]

    assert await asyncio.to_thread(read) == [
        (b"k", b"v", [("a", b""), ("a", b"\x00\xff"), ("ü", b"x")]),
        (None, b"w", None),
    ]


async def test_the_time_of_a_record_is_the_brokers(opened, topic, foreign) -> None:
    transport = opened()
    await transport.admin.create_topics([TopicSpec(name=topic, partitions=1)])
    await asyncio.to_thread(produce, foreign, topic, (b"k", b"v"), timestamp=1_000)
    (outcome,) = await transport.append([NewRecord(topic, b"k", b"w")], timeout_s=20)
    foreign_record, own = await everything(transport, topic)
    assert abs(foreign_record.timestamp_ms - own.timestamp_ms) < 60_000
    assert own.timestamp_ms == outcome.timestamp_ms


async def test_gaps_of_transactions_are_passed_over(opened, topic, kafka) -> None:
    transport = opened()
    await transport.admin.create_topics([TopicSpec(name=topic, partitions=1)])

    def transact() -> None:
        producer = Producer({"bootstrap.servers": kafka, "transactional.id": topic})
        producer.init_transactions(20)
        for number, commits in enumerate([True, False, True]):
            producer.begin_transaction()
            for part in range(3):
                producer.produce(topic, b"%d-%d" % (number, part))
            # Else an abort forgets them before they are sent.
            producer.flush(20)
            if commits:
                producer.commit_transaction(20)
            else:
                producer.abort_transaction(20)

    await asyncio.to_thread(transact)
    wanted = [b"0-0", b"0-1", b"0-2", b"2-0", b"2-1", b"2-2"]
    listener = Listener()
    subscription = await transport.subscribe("g" + topic.replace(".", "-"), [topic], listener, member="m")
    records = await receive(subscription, 6)
    assert [record.value for record in records] == wanted
    await subscription.commit(dict.fromkeys(listener.held, records[-1].offset + 1))
    # The end lies behind a marker: reading on from the last record ends, and does not wait for what will never come.
    async with asyncio.timeout(30):
        assert [record.value for record in await everything(transport, topic)] == wanted


@pytest.mark.slow
@pytest.mark.timeout(90)
async def test_an_open_foreign_transaction_is_reported(opened, topic, kafka) -> None:
    transport = opened()
    await transport.admin.create_topics([TopicSpec(name=topic, partitions=1)])
    producer = Producer({"bootstrap.servers": kafka, "transactional.id": topic})

    def leave_open() -> None:
        producer.init_transactions(20)
        producer.begin_transaction()
        producer.produce(topic, b"open")
        producer.flush(20)

    await asyncio.to_thread(leave_open)
    await transport.append([NewRecord(topic, None, b"behind it")], timeout_s=20)
    member = await transport.subscribe("g" + topic.replace(".", "-"), [topic], Listener(), member="m")
    with capture_logs() as entries:
        async with asyncio.timeout(40):
            while not (told := [entry for entry in entries if entry["event"] == "kafka.transaction_open"]):
                assert list(await member.poll(timeout_s=0.2, max_records=9, max_bytes=MIB)) == []
    assert [entry["partitions"] for entry in told] == [[f"{topic}/0"]]
    assert await transport.admin.held_up([(topic, 0)]) == {(topic, 0): 2}
    await asyncio.to_thread(producer.abort_transaction, 20)
    async with asyncio.timeout(20):
        # The broker answers before the mark of the end is written.
        while await transport.admin.held_up([(topic, 0)]):
            pass
    assert [record.value for record in await receive(member, 1)] == [b"behind it"]


async def test_gaps_of_compaction_are_passed_over(opened, topic, admin) -> None:
    transport = opened()
    create(
        admin,
        topic,
        cleanup_policy="compact",
        segment_ms="100",
        min_cleanable_dirty_ratio="0.01",
        min_compaction_lag_ms="0",
        delete_retention_ms="100",
    )
    for number in range(6):
        await transport.append([NewRecord(topic, key, b"%d" % number) for key in (b"a", b"b")], timeout_s=20)
        await asyncio.sleep(0.15)
    # Each append has a segment of its own, and all but the last are compacted, in one go or in several: only the end is
    # the same each time, and a reading that a compaction overtakes has seen some records of before and some of after
    # it.
    remaining = [8, 9, 10, 11]
    async with asyncio.timeout(60):
        # The broker compacts when it likes.
        while [record.offset for record in await everything(transport, topic)] != remaining:  # noqa: ASYNC110
            await asyncio.sleep(0.5)
    subscription = await transport.subscribe("g" + topic.replace(".", "-"), [topic], Listener(), member="m")
    assert [record.offset for record in await receive(subscription, len(remaining))] == remaining


async def test_partitions_added_under_load_are_written_and_read_from_their_beginning(opened, topic, admin) -> None:
    transport = opened()
    await transport.admin.create_topics([TopicSpec(name=topic, partitions=2)])
    member = await transport.subscribe("g" + topic.replace(".", "-"), [topic], Listener(), member="m")
    sent: list[bytes] = []
    stop = asyncio.Event()

    async def load() -> None:
        while not stop.is_set():
            values = [b"%d" % (len(sent) + i) for i in range(20)]
            outcomes = await transport.append([NewRecord(topic, value, value) for value in values], timeout_s=20)
            assert all(isinstance(outcome, Appended) for outcome in outcomes)
            sent.extend(values)
            await asyncio.sleep(0.02)

    loading = asyncio.create_task(load())
    await asyncio.sleep(0.5)
    for grown in admin.create_partitions([NewPartitions(topic, 5)]).values():
        grown.result(15)
    got: list[Record] = []
    async with asyncio.timeout(30):
        while {record.partition for record in got} != set(range(5)):
            got += await member.poll(timeout_s=0.2, max_records=500, max_bytes=MIB)
        stop.set()
        await loading
        while {record.value for record in got} != set(sent):
            got += await member.poll(timeout_s=0.2, max_records=500, max_bytes=MIB)


@pytest.mark.slow  # waits for metadata that says that the topic is gone
async def test_a_topic_deleted_under_a_member_and_a_publisher(opened, topic, admin) -> None:
    transport = opened()
    await transport.admin.create_topics([TopicSpec(name=topic, partitions=1)])
    listener = Listener()
    member = await transport.subscribe("g" + topic.replace(".", "-"), [topic], listener, member="m")
    await transport.append([NewRecord(topic, None, b"1")], timeout_s=20)
    await receive(member, 1)
    for deleted in admin.delete_topics([topic]).values():
        deleted.result(15)
    # The controller answers before the leader has heard of it: until then what is written goes down with the topic.
    async with asyncio.timeout(60):
        outcome = None
        while not isinstance(outcome, TopicMissingError):
            (outcome,) = await transport.append([NewRecord(topic, None, b"2")], timeout_s=20)
    await transport.admin.create_topics([TopicSpec(name=topic, partitions=1)])
    (outcome,) = await transport.append([NewRecord(topic, None, b"3")], timeout_s=20)
    assert isinstance(outcome, Appended)


@pytest.mark.parametrize("limit", [20_000, 100_000])
async def test_what_the_broker_finds_too_large_is_refused_and_its_neighbours_are_appended(
    opened, topic, admin, limit
) -> None:
    transport = opened()
    create(admin, topic, max_message_bytes=str(limit))
    values = [b"a" * 500, b"b" * (limit + 1), *(b"%d" % i * 200 for i in range(300)), b"c" * (limit - 1000)]
    outcomes = await transport.append([NewRecord(topic, None, value, partition=0) for value in values], timeout_s=30)
    assert [type(outcome) for outcome in outcomes if not isinstance(outcome, Appended)] == [RecordTooLargeError]
    assert [record.value for record in await everything(transport, topic)] == [values[0], *values[2:]]


async def test_a_limit_that_is_lowered_meanwhile_costs_the_large_record_only(opened, topic, admin, monkeypatch) -> None:
    """The limit is not known: the broker refuses the batch, and the sealed neighbours must not go down with it."""

    async def unlimited(_: ClusterClient, __: str, facts: object) -> object:
        return facts

    monkeypatch.setattr(ClusterClient, "_add_limits", unlimited)
    transport = opened(compression="none")
    create(admin, topic, max_message_bytes="20000")
    values = [b"a" * 500, b"b" * 30_000, b"c" * 500, *(b"%d" % i * 300 for i in range(100, 200))]
    outcomes = await transport.append([NewRecord(topic, None, value, partition=0) for value in values], timeout_s=60)
    assert [type(outcome) for outcome in outcomes if not isinstance(outcome, Appended)] == [RecordTooLargeError]
    records = await everything(transport, topic)
    assert [record.value for record in records] == [values[0], *values[2:]]
    assert [record.offset for record in records] == [
        outcome.offset for outcome in outcomes if isinstance(outcome, Appended)
    ]


async def test_a_record_at_the_limit_is_appended_and_one_byte_more_is_not(opened, topic) -> None:
    transport = opened(max_record_bytes=300_000)
    await transport.admin.create_topics([TopicSpec(name=topic, partitions=1)])
    for more, kind in ((-1, Appended), (0, Appended), (1, RecordTooLargeError)):
        (outcome,) = await transport.append(
            [NewRecord(topic, b"k" * 10, b"v" * (299_980 + more), (("h" * 5, b"w" * 5),))], timeout_s=20
        )
        assert isinstance(outcome, kind)
    assert [len(record.value or b"") for record in await everything(transport, topic)] == [299_979, 299_980]


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    key=st.none() | st.binary(max_size=400),
    value=st.none() | st.binary(max_size=4000),
    headers=st.lists(st.tuples(st.text(max_size=20), st.binary(max_size=50)), max_size=6),
)
async def test_any_key_value_and_headers_come_back(kafka, key, value, headers) -> None:
    from bus.transports import open_transport

    transport = open_transport(f"kafka://{kafka}")
    try:
        await transport.admin.create_topics([TopicSpec(name="any.record", partitions=1)])
        (outcome,) = await transport.append([NewRecord("any.record", key, value, tuple(headers))], timeout_s=20)
        (record,) = await transport.read("any.record", 0, outcome.offset, max_records=1, max_bytes=MIB)
        assert (record.key, record.value, record.headers) == (key, value, tuple(headers))
    finally:
        await transport.close()


async def test_a_group_with_a_foreign_protocol_is_distinguished_from_a_failing_log(opened, topic, kafka) -> None:
    transport, group = opened(), "g" + topic.replace(".", "-")
    await transport.admin.create_topics([TopicSpec(name=topic, partitions=1)])
    stranger = Consumer({"bootstrap.servers": kafka, "group.id": group})
    stranger.subscribe([topic])
    try:
        while not stranger.assignment():
            await asyncio.to_thread(stranger.poll, 0.1)
        member = await transport.subscribe(group, [topic], Listener(), member="m")
        with pytest.raises(ConfigurationError, match="another program"):
            await receive(member, 1)
    finally:
        await asyncio.to_thread(stranger.close)


async def test_a_member_with_foreign_metadata_hides_no_group(opened, kafka) -> None:
    transport, client = opened(), AIOKafkaClient(bootstrap_servers=kafka, client_id="stranger")
    await client.bootstrap()
    node, member_id, group = client.get_random_node(), "", "g-own-words"

    async def joined() -> Any:
        return await client.send(
            node, JoinGroupRequest(group, 30_000, 30_000, member_id, None, "consumer", [("own", b"")])
        )

    try:
        # A new cluster makes what it needs for groups when the first is asked for.
        await transport.admin.committed(group)
        # The first answer only gives the member its id.
        member_id = (await joined()).member_id
        round_ = await joined()
        answer = await client.send(
            node, SyncGroupRequest(group, round_.generation_id, member_id, None, [(member_id, b"its own words")])
        )
        assert (round_.error_code, answer.error_code) == (0, 0)
        assert [info.members for info in await transport.admin.groups() if info.name == group] == [{"stranger": ()}]
    finally:
        await client.close()


async def test_a_member_logs_deleted_topics_and_their_return(opened, topic, admin, monkeypatch) -> None:
    # Whatever level an earlier test has left: the good news is of a lower one than the bad.
    every = structlog.make_filtering_bound_logger(0)
    monkeypatch.setattr(member, "_log", structlog.wrap_logger(structlog.PrintLogger(), wrapper_class=every))
    transport, other = opened(), f"{topic}.other"
    wanted = [TopicSpec(name=name, partitions=1) for name in (topic, other)]
    await transport.admin.create_topics(wanted)
    reader = await transport.subscribe("g" + topic.replace(".", "-"), [topic, other], Listener(), member="m")

    async def told(event: str) -> list[str]:
        async with asyncio.timeout(30):
            while not (found := [entry for entry in entries if entry["event"] == event]):
                await reader.poll(timeout_s=0.1, max_records=1, max_bytes=MIB)
        return [name for entry in found for name in entry["topics"]]

    with capture_logs() as entries:
        while len(reader.assignments()) < 2:
            await reader.poll(timeout_s=0.1, max_records=1, max_bytes=MIB)
        assert not [entry for entry in entries if "topics" in entry]
        await asyncio.to_thread(admin.delete_topics([other])[other].result, 15)
        assert await told("kafka.topics_gone") == [other]
        await opened().admin.create_topics(wanted)
        assert await told("kafka.topics_back") == [other]


async def test_the_longest_name_works(opened) -> None:
    transport = opened()
    name = "a" * 249
    await transport.admin.create_topics([TopicSpec(name=name, partitions=1)])
    (outcome,) = await transport.append([NewRecord(name, b"k", b"v")], timeout_s=20)
    assert isinstance(outcome, Appended)
    assert [record.value for record in await transport.read(name, 0, outcome.offset, max_records=9, max_bytes=MIB)] == [
        b"v"
    ]


async def test_settings_that_a_spec_does_not_speak_of_survive(opened, topic, admin) -> None:
    transport = opened()
    create(admin, topic, segment_ms="123456")
    await transport.admin.create_topics([TopicSpec(name=topic, partitions=1, retention_ms=86_400_000)])
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic)
    found = {name: entry.value for name, entry in admin.describe_configs([resource])[resource].result(15).items()}
    assert (found["segment.ms"], found["retention.ms"]) == ("123456", "86400000")


async def poisoned(kafka: str, topic: str, compression: int) -> None:
    """Append three records; a header name of the second one is no UTF-8, which no broker minds."""
    builder = DefaultRecordBatchBuilder(
        2, 0, is_transactional=0, producer_id=-1, producer_epoch=-1, base_sequence=-1, batch_size=10_000,
    )  # fmt: skip
    for number, headers in enumerate([[], [("NAME", b"x"), ("good", None)], [("good", b"y")]]):
        builder.append(number, timestamp=1, key=b"k", value=b"%d" % number, headers=headers)
    batch = bytearray(builder.build())
    at = batch.index(b"NAME")
    batch[at : at + 4] = b"\xff\xfe\xff\xfe"
    if compression:
        packed = zstd_encode(bytes(batch[61:]))
        batch[61:] = packed
        batch[21:23] = compression.to_bytes(2, "big")
        batch[8:12] = (len(batch) - 12).to_bytes(4, "big")
    batch[17:21] = calc_crc32c(bytes(batch[21:])).to_bytes(4, "big")
    client = AIOKafkaClient(bootstrap_servers=kafka)
    await client.bootstrap()
    try:
        leader = client.cluster.brokers().pop().nodeId
        request = ProduceRequest(
            transactional_id=None, required_acks=-1, timeout=10_000, topics=[(topic, [(0, bytes(batch))])]
        )
        answer = await client.send(leader, request)
        assert answer.topics[0][1][0][1] == 0
    finally:
        await client.close()


@pytest.mark.parametrize("compression", [0, 4])
async def test_a_header_that_is_no_utf8_costs_its_name_and_not_the_partition(opened, topic, kafka, compression) -> None:
    transport = opened()
    await transport.admin.create_topics([TopicSpec(name=topic, partitions=1)])
    await transport.append([NewRecord(topic, None, b"before")], timeout_s=20)
    await poisoned(kafka, topic, compression)
    await transport.append([NewRecord(topic, None, b"after")], timeout_s=20)
    wanted = [b"before", b"0", b"1", b"2", b"after"]
    assert [record.value for record in await everything(transport, topic)] == wanted
    member = await transport.subscribe("g" + topic.replace(".", "-"), [topic], Listener(), member="m")
    records = await receive(member, 5)
    assert [record.value for record in records] == wanted
    assert [record.headers for record in records[1:4]] == [(), (("\ufffd" * 4, b"x"), ("good", b"")), (("good", b"y"),)]


@pytest.mark.parametrize("compression", ["zstd", "gzip"])
async def test_a_record_that_blows_up_costs_one_without_content_and_not_the_memory(
    opened, topic, kafka, compression
) -> None:
    transport = opened()
    await transport.admin.create_topics([TopicSpec(name=topic, partitions=1)])
    await transport.append([NewRecord(topic, None, b"before")], timeout_s=20)
    async with AIOKafkaProducer(
        bootstrap_servers=kafka, compression_type=compression, max_request_size=1 << 30
    ) as producer:
        sent = await producer.send_and_wait(topic, bytes(MAX_DECOMPRESSED_BYTES + 1))
    await transport.append([NewRecord(topic, None, b"after")], timeout_s=20)
    member = await transport.subscribe("g" + topic.replace(".", "-"), [topic], Listener(), member="m")
    assert [(record.offset, record.value) for record in await receive(member, 3)] == [
        (0, b"before"),
        (sent.offset, b""),
        (2, b"after"),
    ]
    assert [record.value for record in await everything(transport, topic)] == [b"before", b"", b"after"]


async def test_records_that_blow_up_by_much_are_read_each_once_over_several_fetches(opened, topic, kafka) -> None:
    transport = opened()
    await transport.admin.create_topics([TopicSpec(name=topic, partitions=1)])
    async with AIOKafkaProducer(bootstrap_servers=kafka, compression_type="zstd", max_request_size=1 << 30) as producer:
        for number in range(8):
            await producer.send_and_wait(topic, b"%d" % number + bytes(6 * MIB))
    member = await transport.subscribe("g" + topic.replace(".", "-"), [topic], Listener(), member="m")
    assert [(record.offset, record.value[:1]) for record in await receive(member, 8)] == [
        (number, b"%d" % number) for number in range(8)
    ]
    assert [record.value[:1] for record in await everything(transport, topic)] == [
        b"%d" % number for number in range(8)
    ]


@pytest.mark.slow  # five seconds of nothing
async def test_an_idle_cluster_is_not_asked_all_the_time(opened, topic, admin) -> None:
    """A partition without anything to do costs next to nothing."""
    import time

    transport = opened()
    await transport.admin.create_topics([TopicSpec(name=topic, partitions=4)])
    member = await transport.subscribe("g" + topic.replace(".", "-"), [topic], Listener(), member="m")
    await member.poll(timeout_s=2, max_records=100, max_bytes=MIB)
    before = time.process_time()
    await member.poll(timeout_s=3, max_records=100, max_bytes=MIB)
    assert time.process_time() - before < 0.3


async def test_its_client_does_not_follow_the_topics_of_others(opened, topic) -> None:
    transport = opened()
    await transport.admin.create_topics([TopicSpec(name=topic, partitions=2)])
    assert topic in await transport.admin.topics()
    clients = [getattr(client, "_client", client) for client in transport._link._clients.values()]
    assert clients
    for client in clients:
        await client.force_metadata_update()
        assert client.cluster.brokers()
        assert not client.cluster.topics()
