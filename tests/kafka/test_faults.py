"""Faults while messages are published and handled: nothing accepted is lost, nothing rejected appears, commits pass
nothing unsettled.

The shorter faults run everywhere; `SEALBUS_FAULTS=all` runs every one (about 20 minutes).
"""

from __future__ import annotations

import asyncio
import os
import signal
import uuid
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from ledger import GROUP, TOPIC, Ledger, Worker

from bus.topics.names import reply_topic
from bus.topics.specs import group_topics, message_topics, namespace_topics, reply_topics
from bus.transports import open_transport
from deploy.kafka.cluster import Cluster

RATE = 500.0
HEAL_S = 60.0
pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

Fault = Callable[[Cluster, Ledger, list[Worker]], Awaitable[None]]


def leader_of(cluster: Cluster, topic: str, partition: int = 0) -> int:
    metadata = AdminClient({"bootstrap.servers": cluster.bootstrap}).list_topics(topic, timeout=10)
    return int(metadata.topics[topic].partitions[partition].leader)


def node_of(cluster: Cluster, number: int):
    return next(node for node in cluster.brokers if node.id == number)


async def away(nodes, for_s: float, *, how: str) -> None:
    for node in nodes:
        await asyncio.to_thread(getattr(node, how))
    await asyncio.sleep(for_s)
    for node in nodes:
        if how == "freeze":
            node.thaw()
        else:
            await asyncio.to_thread(node.start)


async def kill_leader(cluster: Cluster, ledger: Ledger, _: list[Worker]) -> None:
    await away([node_of(cluster, leader_of(cluster, ledger.topic))], 10, how="kill")


async def stop_leader(cluster: Cluster, ledger: Ledger, _: list[Worker]) -> None:
    await away([node_of(cluster, leader_of(cluster, ledger.topic))], 30, how="stop")


async def kill_coordinator(cluster: Cluster, ledger: Ledger, _: list[Worker]) -> None:
    # The coordinator of a group leads one of the partitions of its offsets.
    partition = hash_of(ledger.group) % 4
    await away([node_of(cluster, leader_of(cluster, "__consumer_offsets", partition))], 10, how="kill")


async def stop_two(cluster: Cluster, _: Ledger, __: list[Worker]) -> None:
    await away(cluster.brokers[:2], 30, how="stop")


async def stop_all(cluster: Cluster, _: Ledger, __: list[Worker]) -> None:
    await away(cluster.brokers, 30, how="stop")


async def kill_all_for_a_moment(cluster: Cluster, _: Ledger, __: list[Worker]) -> None:
    await away(cluster.brokers, 5, how="kill")


async def freeze_leader_5(cluster: Cluster, ledger: Ledger, _: list[Worker]) -> None:
    await away([node_of(cluster, leader_of(cluster, ledger.topic))], 5, how="freeze")


async def freeze_leader_15(cluster: Cluster, ledger: Ledger, _: list[Worker]) -> None:
    await away([node_of(cluster, leader_of(cluster, ledger.topic))], 15, how="freeze")


async def freeze_leader_45(cluster: Cluster, ledger: Ledger, _: list[Worker]) -> None:
    await away([node_of(cluster, leader_of(cluster, ledger.topic))], 45, how="freeze")


async def one_after_another(cluster: Cluster, _: Ledger, __: list[Worker]) -> None:
    """Clients that ask only the last broker they know lose their way here."""
    first, second, third = cluster.brokers
    for node in (first, second):
        await asyncio.to_thread(node.stop)
        await asyncio.sleep(8)
    await asyncio.to_thread(third.stop)
    await asyncio.to_thread(first.start)
    await asyncio.to_thread(second.start)
    await asyncio.sleep(20)
    await asyncio.to_thread(third.start)


async def kill_worker(_: Cluster, ledger: Ledger, workers: list[Worker]) -> None:
    workers[0].signal(signal.SIGKILL)
    await asyncio.sleep(3)
    workers[0] = ledger.worker()
    await workers[0].start()


async def freeze_worker(_: Cluster, __: Ledger, workers: list[Worker]) -> None:
    workers[0].signal(signal.SIGSTOP)
    await asyncio.sleep(20)
    workers[0].signal(signal.SIGCONT)


async def leaderless(cluster: Cluster, ledger: Ledger, _: list[Worker]) -> None:
    """The topic has one replica: without its broker no partition of it has a leader, for longer than any timeout."""
    await away([node_of(cluster, leader_of(cluster, ledger.topic))], 40, how="kill")


def hash_of(group: str) -> int:
    value = 0
    for unit in group.encode("utf-16-be")[1::2]:
        value = (31 * value + unit) & 0xFFFFFFFF
    return (value if value < 1 << 31 else value - (1 << 32)) & 0x7FFFFFFF


OFTEN: list[Fault] = [kill_leader, kill_all_for_a_moment, freeze_leader_15, kill_worker]
RARELY: list[Fault] = [
    stop_leader, kill_coordinator, stop_two, stop_all, freeze_leader_5, freeze_leader_45, one_after_another,
    freeze_worker, leaderless,
]  # fmt: skip
FAULTS = OFTEN + (RARELY if os.environ.get("SEALBUS_FAULTS") == "all" else [])


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
async def test_publishing_and_handling_go_on_by_themselves(
    kafka_of_three: Cluster, tmp_path: Path, fault: Fault
) -> None:
    ledger = Ledger(tmp_path, kafka_of_three.bootstrap, f"f{uuid.uuid4().hex[:8]}")
    await prepare(kafka_of_three, ledger, replicas=1 if fault is leaderless else 3)
    workers = [ledger.worker(), ledger.worker()]
    for worker in workers:
        await worker.start()
    for worker in workers:
        await worker.until_assigned()
    stop = asyncio.Event()
    load = asyncio.create_task(ledger.publish(RATE, stop))
    try:
        await asyncio.sleep(5)
        assert ledger.receipts, "nothing was accepted before the fault"
        await fault(kafka_of_three, ledger, workers)
        accepted = len(ledger.receipts)
        await asyncio.sleep(15)
        healed_s = await until_flowing(ledger, accepted)
        stop.set()
        await load
        lag_s = await ledger.until_handled(HEAL_S)
        await asyncio.sleep(1.5)
        await ledger.check()
        print(
            f"{fault.__name__}: {len(ledger.receipts)} accepted, {len(ledger.rejected)} rejected, "
            f"{len(ledger.unknown)} unknown, "
            f"{len(list(ledger.handled()))} handled, {ledger.commits} commits; flowing after {healed_s:.1f} s, lag "
            f"gone after {lag_s:.1f} s"
        )
    finally:
        stop.set()
        await asyncio.gather(load, return_exceptions=True)
        for worker in workers:
            if worker.process.returncode is None:
                worker.process.kill()
            await worker.process.wait()
        for node in kafka_of_three.brokers:
            if node.running:
                node.thaw()
            else:
                await asyncio.to_thread(node.start)


async def until_flowing(ledger: Ledger, accepted: int) -> float:
    """Seconds until acknowledgements come at the rate of publishing again."""
    loop = asyncio.get_running_loop()
    started_s = loop.time()
    while True:
        before = len(ledger.receipts)
        await asyncio.sleep(1)
        if len(ledger.receipts) - before >= RATE / 4 and len(ledger.receipts) > accepted:
            return loop.time() - started_s
        assert loop.time() - started_s < HEAL_S, (
            f"publishing stands still; the last reasons: {list(ledger.unknown.values())[-3:]}"
        )


async def prepare(cluster: Cluster, ledger: Ledger, *, replicas: int) -> None:
    if replicas < 3:
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
        config = {"message.timestamp.type": "LogAppendTime"}
        for done in admin.create_topics([NewTopic(ledger.topic, 4, replicas, config=config)]).values():
            done.result(20)
    settings = ledger.settings()
    transport = open_transport(ledger.url)
    try:
        await transport.admin.create_topics(
            [
                *message_topics(settings, [TOPIC, "task.cancel"]),
                *group_topics(settings, GROUP),
                *reply_topics(settings, [reply_topic(ledger.namespace, "fault@test")]),
                *namespace_topics(settings),
            ]
        )
    finally:
        await transport.close()
