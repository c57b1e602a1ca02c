"""Where a group stood is not there any more: records deleted before it had them, its offsets deleted, a topic made
anew.

Then a member stops and says that something may be lost, or begins at the beginning; it never goes on in silence behind
what it has not had.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterable, Sequence
from pathlib import Path

import pytest
from confluent_kafka import KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from members import MIB, Listener, receive

from bus.errors import OffsetOutOfRangeError
from bus.transports.base import LogSubscription, NewRecord, TopicSpec
from bus.transports.kafka import KafkaTransport

ROOT = Path(__file__).resolve().parents[2]


def group_of(topic: str) -> str:
    return "g" + topic.replace(".", "-")


def values(count: int, word: bytes = b"") -> list[bytes]:
    return [b"%s%d" % (word, number) for number in range(count)]


async def filled(transport: KafkaTransport, topic: str, records: Iterable[bytes]) -> None:
    """Make *topic*, unless it is there, with these records at its end."""
    await transport.admin.create_topics([TopicSpec(name=topic, partitions=1)])
    await transport.append([NewRecord(topic, None, value) for value in records], timeout_s=20)


async def joined(transport: KafkaTransport, topic: str, listener: Listener) -> LogSubscription:
    return await transport.subscribe(group_of(topic), [topic], listener, member="m")


async def stood(transport: KafkaTransport, topic: str, at: int, of: int) -> None:
    """The group has had *of* records, has committed *at*, and is away."""
    listener = Listener()
    member = await joined(transport, topic, listener)
    await receive(member, of)
    await member.commit(dict.fromkeys(listener.held, at))
    await member.close()


async def deleted_until(admin: AdminClient, topic: str, offset: int) -> None:
    for done in admin.delete_records([TopicPartition(topic, 0, offset)]).values():
        await asyncio.to_thread(done.result, 15)


def transact(kafka: str, topic: str, ends: Sequence[bool]) -> None:
    """A transaction of one record for each of *ends*, which says whether it is committed; each leaves a marker
    behind."""
    producer = Producer({"bootstrap.servers": kafka, "transactional.id": topic})
    producer.init_transactions(20)
    for commits in ends:
        producer.begin_transaction()
        producer.produce(topic, b"transacted")
        # Else an abort forgets it before it is sent.
        producer.flush(20)
        (producer.commit_transaction if commits else producer.abort_transaction)(20)


async def gone(admin: AdminClient, topic: str) -> None:
    for done in admin.delete_topics([topic]).values():
        await asyncio.to_thread(done.result, 15)


async def forgotten(admin: AdminClient, topic: str) -> None:
    """The group is deleted, and its offsets with it, as when they expire."""
    for done in admin.delete_consumer_groups([group_of(topic)]).values():
        await asyncio.to_thread(done.result, 15)


async def test_deleted_records_stop_the_member_instead_of_jumping(opened, topic, admin) -> None:
    transport = opened()
    await filled(transport, topic, values(10))
    await stood(transport, topic, at=3, of=10)
    await deleted_until(admin, topic, 7)
    again = await joined(transport, topic, Listener())
    with pytest.raises(OffsetOutOfRangeError, match=r"offset 3 .* 7 to 10"):
        await receive(again, 1)


async def test_records_deleted_before_a_group_had_any_stop_its_next_member(opened, topic, admin) -> None:
    transport = opened()
    await filled(transport, topic, [])
    member = await joined(transport, topic, Listener())
    await receive(member, 0)
    while not await transport.admin.committed(group_of(topic)):
        await member.poll(timeout_s=0.1, max_records=500, max_bytes=MIB)
    await member.close()
    await filled(transport, topic, values(10))
    await deleted_until(admin, topic, 7)
    again = await joined(transport, topic, Listener())
    with pytest.raises(OffsetOutOfRangeError, match=r"offset 0 .* 7 to 10"):
        await receive(again, 1)


@pytest.mark.parametrize("ends", [[True], [False], [True, False, False]], ids=["committed", "aborted", "both"])
async def test_deleted_transaction_markers_do_not_count_as_lost_records(opened, topic, admin, kafka, ends) -> None:
    transport, listener = opened(), Listener()
    await filled(transport, topic, [])
    await asyncio.to_thread(transact, kafka, topic, ends)
    member = await joined(transport, topic, listener)
    records = await receive(member, sum(ends))
    if records:
        await member.commit(dict.fromkeys(listener.held, records[-1].offset + 1))
    end = 2 * len(ends)
    async with asyncio.timeout(30):
        while await transport.admin.committed(group_of(topic)) != {(topic, 0): end}:
            assert list(await member.poll(timeout_s=0.1, max_records=500, max_bytes=MIB)) == []
    await member.close()
    await deleted_until(admin, topic, end)
    again = await joined(transport, topic, Listener())
    await filled(transport, topic, values(1))
    assert [record.value for record in await receive(again, 1)] == values(1)


async def test_records_deleted_under_a_reading_member_stop_it(opened, topic, admin) -> None:
    transport, listener = opened(), Listener()
    await filled(transport, topic, values(3))
    member = await joined(transport, topic, listener)
    await receive(member, 3)
    member.pause(listener.held)
    await filled(transport, topic, values(5))
    await deleted_until(admin, topic, 6)
    member.resume(listener.held)
    with pytest.raises(OffsetOutOfRangeError):
        await receive(member, 9)


async def test_a_group_whose_offsets_were_deleted_begins_at_the_beginning(opened, topic, admin) -> None:
    transport = opened()
    await filled(transport, topic, values(10))
    await stood(transport, topic, at=6, of=10)
    await forgotten(admin, topic)
    again = await joined(transport, topic, Listener())
    assert [record.value for record in await receive(again, 10)] == values(10)


async def test_the_offsets_of_a_group_at_work_cannot_be_deleted(opened, topic, admin) -> None:
    transport, listener = opened(), Listener()
    await filled(transport, topic, values(5))
    member = await joined(transport, topic, listener)
    await receive(member, 5)
    await member.commit(dict.fromkeys(listener.held, 5))
    with pytest.raises(KafkaException) as refused:
        await forgotten(admin, topic)
    assert refused.value.args[0].code() == KafkaError.NON_EMPTY_GROUP
    await filled(transport, topic, values(2, b"more"))
    assert [record.value for record in await receive(member, 2)] == values(2, b"more")


@pytest.mark.parametrize("count", [3, 5, 10])
async def test_a_topic_recreated_while_the_group_is_down_is_read_from_its_beginning(
    opened, topic, admin, count
) -> None:
    transport = opened()
    await filled(transport, topic, values(5, b"old"))
    await stood(transport, topic, at=5, of=5)
    await gone(admin, topic)
    await filled(opened(), topic, values(count, b"new"))
    again = await joined(opened(), topic, Listener())
    assert [record.value for record in await receive(again, count)] == values(count, b"new")


@pytest.mark.parametrize("count", [3, 10])
async def test_a_topic_recreated_during_consumption_is_read_from_its_beginning(opened, topic, admin, count) -> None:
    transport, listener = opened(), Listener()
    await filled(transport, topic, values(5, b"old"))
    member = await joined(transport, topic, listener)
    await receive(member, 5)
    await member.commit(dict.fromkeys(listener.held, 5))
    await gone(admin, topic)
    async with asyncio.timeout(30):
        while listener.held:
            await member.poll(timeout_s=0.1, max_records=500, max_bytes=MIB)
    await filled(opened(), topic, values(count, b"new"))
    assert [record.value for record in await receive(member, count)] == values(count, b"new")


async def test_a_topic_made_anew_behind_the_back_of_a_member_stops_it_when_it_is_shorter(opened, topic, admin) -> None:
    transport, listener = opened(), Listener()
    await filled(transport, topic, values(5, b"old"))
    member = await joined(transport, topic, listener)
    await receive(member, 5)
    # What is paused is not asked for: the member hears nothing of all this.
    member.pause(listener.held)
    await member.poll(timeout_s=1.5, max_records=500, max_bytes=MIB)
    await gone(admin, topic)
    await filled(opened(), topic, values(3, b"new"))
    member.resume(listener.held)
    with pytest.raises(OffsetOutOfRangeError, match=r"offset 5 .* 0 to 3"):
        await receive(member, 1)


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_a_worker_with_deleted_records_stops_with_an_alarm(kafka, admin, tmp_path) -> None:
    namespace, journal = f"c{uuid.uuid4().hex[:8]}", tmp_path / "journal"
    environment = {
        **os.environ,
        "PYTHONPATH": f"{ROOT}:{ROOT / 'tests' / 'kafka'}",
        "FAULT_JOURNAL": str(journal),
        "SEALBUS_BUS__URL": f"kafka://{kafka}",
        "SEALBUS_BUS__NAMESPACE": namespace,
        "SEALBUS_TOPICS__PARTITIONS": "1",
    }
    sealbus = [sys.executable, "-m", "consumers.cli"]
    publish = [*sealbus, "publish", "fault.item", "--app", "fault_app:app", "--as", "a@b"]
    subprocess.run([*sealbus, "topic", "apply", "fault_app:app"], env=environment, check=True, capture_output=True)
    journal.touch()
    with subprocess.Popen([*sealbus, "run", "fault_app:app"], env=environment, stderr=subprocess.DEVNULL) as worker:
        subprocess.run(publish, env=environment, input=b'{"number":1}\n' * 5, check=True, capture_output=True)
        while len(journal.read_text().splitlines()) < 5:
            time.sleep(0.1)
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(45) == 0
    subprocess.run(publish, env=environment, input=b'{"number":2}\n' * 5, check=True, capture_output=True)
    asyncio.run(deleted_until(admin, f"{namespace}.fault.item", 8))
    ended = subprocess.run(
        [*sealbus, "run", "fault_app:app"], env=environment, capture_output=True, timeout=60, check=False
    )
    assert ended.returncode == 1
    assert b"offset 5 is outside the stored offsets 8 to 10; the records between may be lost" in ended.stderr
    assert len(journal.read_text().splitlines()) == 5
