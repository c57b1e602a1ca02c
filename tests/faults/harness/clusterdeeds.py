"""Doing to brokers and links what a timeline says, and undoing it.

Owns choosing whom it hits at that moment (who leads what) and the table of these deeds.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING

from confluent_kafka.admin import AdminClient, NewPartitions
from harness.clusterlogs import quiet
from harness.deeds import Deed
from harness.messages import GROUP
from harness.proxy import Mood
from harness.timeline import Fault

from bus.topics.names import consumer_group
from deploy.kafka.node import Node

if TYPE_CHECKING:
    from harness.arena import Arena

__all__ = ["DEEDS"]

_MOODS = {
    "cut": Mood(silent_up=True, silent_down=True),
    "cut-up": Mood(silent_up=True),
    "cut-down": Mood(silent_down=True),
    "mute": Mood(mute=True),
    "slow": Mood(delay_s=0.15),
    "narrow": Mood(bytes_per_s=125_000.0),
    "sliced": Mood(slice_bytes=64, delay_s=0.0005),
    "resets": Mood(reset_every_s=2.0),
}


async def broker(arena: Arena, fault: Fault) -> None:
    """Kill, freeze or stop brokers, chosen by what they are at that moment; later they are back."""
    nodes = await asyncio.to_thread(_chosen, arena, fault.whom)
    for node in nodes:
        await asyncio.to_thread({"kill": node.kill, "freeze": node.freeze, "stop": node.stop}[fault.how])
    await asyncio.sleep(fault.for_s)
    for node in nodes:
        if fault.how == "freeze":
            node.thaw()
        else:
            # Not waited for: alone it cannot be ready while the others are still away.
            await asyncio.to_thread(node.start, wait=False)


async def link(arena: Arena, fault: Fault) -> None:
    """The links of some brokers misbehave for a while."""
    numbers = (
        list(arena.cluster.links)
        if fault.whom == "all"
        else [node.id for node in await asyncio.to_thread(_chosen, arena, fault.whom)]
    )
    for number in numbers:
        arena.cluster.links[number].behave(_MOODS[fault.how])
    await asyncio.sleep(fault.for_s)
    for number in numbers:
        arena.cluster.links[number].behave(Mood())


async def apart(arena: Arena, fault: Fault) -> None:
    """Some brokers are cut off from the others, from the controller, or from both; clients reach them as before."""
    nodes = await asyncio.to_thread(_chosen, arena, fault.whom)
    for node in nodes:
        arena.cluster.mesh.cut(node.id, fault.how)
    await asyncio.sleep(fault.for_s)
    for node in nodes:
        arena.cluster.mesh.mend(node.id)


async def partitions(arena: Arena, fault: Fault) -> None:
    """The topic of tasks gets more partitions."""
    admin = AdminClient(quiet(arena.cluster.bootstrap))
    done = admin.create_partitions([NewPartitions(f"{arena.namespace}.fault.task", int(fault.how))])
    await asyncio.gather(*(asyncio.to_thread(future.result, 20) for future in done.values()))


def _chosen(arena: Arena, whom: str) -> Sequence[Node]:
    cluster = arena.cluster
    match whom:
        case "all":
            return list(cluster.brokers)
        case number if number.isdecimal():
            return [cluster.node(int(number))]
        case "two":
            return list(cluster.brokers[:2])
        case "coordinator":
            return [
                cluster.node(
                    _leader(
                        cluster.bootstrap, "__consumer_offsets", java_hash(consumer_group(arena.namespace, GROUP)) % 4
                    )
                )
            ]
        case "follower":
            leader = _leader(cluster.bootstrap, f"{arena.namespace}.fault.task", 0)
            return [next(node for node in cluster.brokers if node.id != leader)]
        case "controller":
            return [node for node in cluster.nodes if node.is_controller]
        case _:
            return [cluster.node(_leader(cluster.bootstrap, f"{arena.namespace}.fault.task", 0))]


def _leader(bootstrap: str, topic: str, partition: int) -> int:
    metadata = AdminClient(quiet(bootstrap)).list_topics(topic, timeout=10)
    return int(metadata.topics[topic].partitions[partition].leader)


def java_hash(text: str) -> int:
    """What Kafka takes a group's partition of the offsets topic from."""
    value = 0
    for unit in text.encode("utf-16-be")[1::2]:
        value = (31 * value + unit) & 0xFFFFFFFF
    return value & 0x7FFFFFFF


DEEDS: dict[str, Deed] = {"broker": broker, "link": link, "apart": apart, "partitions": partitions}
