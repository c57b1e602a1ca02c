"""The state of the cluster: brokers, topics with their replicas and settings, as far as this user may see them.

Owns the questions. `topic_config` and `bus.transports.topic_settings` draw the conclusions; connections belong to
`bus.transports.kafka.cluster.client`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.client import AIOKafkaClient
from aiokafka.errors import KafkaError, LeaderNotAvailableError, UnknownTopicOrPartitionError, for_code
from aiokafka.protocol.admin import DescribeConfigsRequest
from aiokafka.protocol.metadata import MetadataRequest

from bus.transports.kafka.cluster.client import ClusterClient
from bus.transports.kafka.errors import broker_refusal, is_denial, lacking
from bus.transports.topic_settings import PARTITIONS, REPLICAS, compared

__all__ = ["Standing", "broker_settings", "known_everywhere", "standing", "topic_settings"]

_ANSWER_S = 1.0
_AUTO_CREATE = "auto.create.topics.enable"
_OFFSETS_KEPT = "offsets.retention.minutes"
_NEW = (UnknownTopicOrPartitionError, LeaderNotAvailableError)
"""What a broker answers that has not heard of a topic yet."""


class Standing(msgspec.Struct, frozen=True):
    """The number of brokers, the names of all visible topics, and the state of the requested topics.

    A broker that is down counts if a replica list names it.
    """

    brokers: int
    names: frozenset[str]
    found: Mapping[str, Mapping[str, str]]
    """For each requested topic: partitions, replicas and effective settings. A missing topic has no entry."""


async def standing(link: ClusterClient, topics: Iterable[str]) -> Standing:
    """Return the state of *topics*.

    Raises NotPermittedError for a topic this user may not see: it looks the same as a missing one.
    """
    wanted = list(dict.fromkeys(topics))
    brokers, described = await link.ask("reading topics", lambda client: _describe(client, None))
    hidden = [name for name in wanted if name not in described]
    if hidden:
        described |= (await link.ask("reading topics", lambda client: _describe(client, hidden)))[1]
    settings = await topic_settings(link, [name for name in wanted if name in described])
    known = brokers.union(*(replicas for partitions in described.values() for replicas in partitions))
    return Standing(
        brokers=len(known),
        names=frozenset(described),
        found={
            # A topic that was deleted between the two questions counts as missing.
            name: {
                **settings[name],
                PARTITIONS: str(len(described[name])),
                REPLICAS: str(min(map(len, described[name]))),
            }
            for name in wanted
            if name in settings
        },
    )


async def topic_settings(
    link: ClusterClient, names: Sequence[str], *, lenient: bool = False
) -> dict[str, dict[str, str]]:
    """Return the effective settings by topic.

    Missing topics are left out; with *lenient*, so are topics whose settings this user may not read.
    """
    if not names:
        return {}
    resources = [ConfigResource(ConfigResourceType.TOPIC, name) for name in names]
    answers = await link.administer("reading topics' settings", lambda admin: admin.describe_configs(resources))
    found: dict[str, dict[str, str]] = {}
    for code, text, name, entries in _entries(answers):
        error = for_code(code)
        if code and error is not UnknownTopicOrPartitionError and not (lenient and is_denial(error())):
            raise broker_refusal(
                error(text), f"reading the settings of topic {name!r}", f"DescribeConfigs on topic {name!r}"
            )
        if not code:
            found[name] = entries
    return found


async def broker_settings(link: ClusterClient) -> dict[str, dict[str, str]]:
    """Return, by broker, the settings that apply to every topic of the cluster."""
    brokers, _ = await link.ask("reading the cluster", lambda client: _describe(client, []))
    names = {_AUTO_CREATE: "", _OFFSETS_KEPT: ""}
    resources = [ConfigResource(ConfigResourceType.BROKER, str(broker), names) for broker in sorted(brokers)]
    doing = "reading the brokers' settings"
    answers = await link.administer(doing, lambda admin: admin.describe_configs(resources))
    found: dict[str, dict[str, str]] = {}
    for code, text, name, entries in _entries(answers):
        if code:
            raise broker_refusal(for_code(code)(text), doing, "DescribeConfigs on the cluster")
        found[name] = entries
    return found


async def known_everywhere(link: ClusterClient, changes: Mapping[str, Mapping[str, str]]) -> bool:
    """Tell whether every broker that answers within a second knows these *changes* by topic.

    Brokers learn of new topics, partitions and settings one after another.
    """

    async def question(client: AIOKafkaClient) -> bool:
        brokers = [broker.nodeId for broker in client.cluster.brokers()]
        return all(await asyncio.gather(*(_knows(client, broker, changes) for broker in brokers)))

    return await link.ask("reading topics", question)


async def _knows(client: AIOKafkaClient, broker: int, changes: Mapping[str, Mapping[str, str]]) -> bool:
    resources = [
        (ConfigResourceType.TOPIC, name, [setting for setting in wanted if setting not in (PARTITIONS, REPLICAS)])
        for name, wanted in changes.items()
    ]
    try:
        async with asyncio.timeout(_ANSWER_S):
            topics = await client.send(broker, MetadataRequest(list(changes), allow_auto_topic_creation=False))
            settings = await client.send(broker, DescribeConfigsRequest(resources))
    except (KafkaError, OSError, TimeoutError):
        # The broker is away: it answers no client's question, and will know the changes before it is back.
        return True
    found: dict[str, dict[str, str]] = {}
    for topic in topics.to_object()["topics"]:
        if for_code(topic["error_code"]) in _NEW:
            return False
        if not topic["error_code"]:
            replicas = [len(partition["replicas"]) for partition in topic["partitions"]]
            found[topic["topic"]] = {PARTITIONS: str(len(replicas)), REPLICAS: str(min(replicas, default=0))}
    for code, _, name, entries in _entries([settings]):
        if for_code(code) in _NEW:
            return False
        if code:
            found.pop(name, None)
        elif name in found:
            found[name] |= entries
    # What this user may not see is left out.
    return not any(compared(name, found[name], wanted) for name, wanted in changes.items() if name in found)


def _entries(answers: Iterable[Any]) -> Iterable[tuple[int, str, str, dict[str, str]]]:
    for answer in answers:
        for code, text, _, name, entries in answer.resources:
            yield code, text or "", name, {entry[0]: entry[1] for entry in entries if entry[1] is not None}


async def _describe(client: AIOKafkaClient, names: list[str] | None) -> tuple[set[int], dict[str, list[list[int]]]]:
    """Return the ids of the live brokers, and for each existing topic (None: all) the replicas of its partitions."""
    answer = (
        await client.send(client.get_random_node(), MetadataRequest(names, allow_auto_topic_creation=False))
    ).to_object()
    found: dict[str, list[list[int]]] = {}
    for topic in answer["topics"]:
        name, error = topic["topic"], for_code(topic["error_code"])()
        if names is not None and is_denial(error):
            raise lacking(f"reading topic {name!r}", f"Describe on topic {name!r}")
        if names is not None and topic["error_code"] and not isinstance(error, UnknownTopicOrPartitionError):
            raise error
        if topic["partitions"] and not topic.get("is_internal"):
            found[name] = [partition["replicas"] for partition in topic["partitions"]]
    return {broker["node_id"] for broker in answer["brokers"]}, found
