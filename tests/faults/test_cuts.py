"""A cut between real brokers cuts: they would go around the links if they learnt of each other in some other way."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from harness.clusterlogs import quiet
from harness.linked import LinkedCluster

from deploy.kafka import jars
from deploy.kafka.errors import KafkaUnavailableError

TOPIC = "cuts"
ALL = {1, 2, 3}


@pytest.fixture(scope="module", autouse=True)
def needs_kafka() -> None:
    try:
        jars.installed()
    except KafkaUnavailableError as error:
        if os.environ.get("SEALBUS_REQUIRE_KAFKA") == "1":
            raise
        pytest.skip(str(error))


def seen(cluster: LinkedCluster, by: int) -> tuple[int, set[int]]:
    """The leader and who is in sync with it, as the broker *by* knows it; nobody while it does not know the topic."""
    # A new client each time: one that knows the other brokers asks any of them.
    known = (
        AdminClient(quiet(f"127.0.0.1:{cluster.node(by).port}")).list_topics(TOPIC, timeout=10).topics[TOPIC].partitions
    )
    return (known[0].leader, set(known[0].isrs)) if known else (-1, set())


def answer(cluster: LinkedCluster, leader: int) -> str:
    """What that broker answers to a record: the name of an error, or nothing."""
    answers: list[str] = []
    producer = Producer(
        quiet(f"127.0.0.1:{cluster.node(leader).port}") | {"acks": "all", "retries": 0, "message.timeout.ms": 3000}
    )
    producer.produce(
        TOPIC, b"x", partition=0, on_delivery=lambda error, _: answers.append(error.name() if error else "")
    )
    producer.flush(10)
    return answers[0]


async def until(
    cluster: LinkedCluster, by: int, met: Callable[[int, set[int]], bool], within_s: float = 20.0
) -> tuple[int, set[int]]:
    give_up_s = time.monotonic() + within_s
    while not met(*(state := await asyncio.to_thread(seen, cluster, by))):
        assert time.monotonic() < give_up_s, state
        await asyncio.sleep(0.2)
    return state


async def deposed(cluster: LinkedCluster, leader: int, how: str) -> int:
    """Cut a leader off until another has its office, and mend that; the new leader."""
    cluster.mesh.cut(leader, how)
    await until(cluster, min(ALL - {leader}), lambda now, in_sync: now != leader and leader not in in_sync)
    cluster.mesh.mend(leader)
    return (await until(cluster, leader, lambda now, in_sync: now != leader and in_sync == ALL))[0]


@pytest.mark.slow
@pytest.mark.timeout(180)
async def test_a_leader_without_followers_recovers_when_the_network_heals(tmp_path: Path) -> None:
    cluster = LinkedCluster(tmp_path)
    try:
        await cluster.open()
        admin = AdminClient(quiet(cluster.bootstrap))
        await asyncio.to_thread(admin.create_topics([NewTopic(TOPIC, 1, 3)])[TOPIC].result, 20)
        leader, _ = await until(cluster, 1, lambda _, in_sync: in_sync == ALL)
        assert await asyncio.to_thread(answer, cluster, leader) == ""

        cluster.mesh.cut(leader, "followers")
        # Who lacks nothing counts as in sync for ever.
        assert await asyncio.to_thread(answer, cluster, leader) in {"_MSG_TIMED_OUT", "REQUEST_TIMED_OUT"}
        await until(cluster, leader, lambda now, in_sync: (now, in_sync) == (leader, {leader}))
        assert await asyncio.to_thread(answer, cluster, leader) == "NOT_ENOUGH_REPLICAS"
        cluster.calm()
        await until(cluster, leader, lambda now, in_sync: (now, in_sync) == (leader, ALL))

        for how in ("controller", "both-out", "both-in"):
            leader = await deposed(cluster, leader, how)
            assert await asyncio.to_thread(answer, cluster, leader) == ""
    finally:
        await cluster.close()
