"""Carry out changes of topics: create topics, add partitions, and set only the settings that differ.

Owns the requests, and what their answers mean if another process makes the same change at that moment.
`bus.transports.topic_settings` decides which changes are needed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, NewTopic
from aiokafka.client import AIOKafkaClient
from aiokafka.errors import InvalidPartitionsError, TopicAlreadyExistsError, UnknownTopicOrPartitionError, for_code

from bus.errors import NotPermittedError, TopicMissingError
from bus.transports.kafka.admin.incremental_alter_configs import SetTopicSettings
from bus.transports.kafka.cluster.client import ClusterClient
from bus.transports.kafka.errors import broker_refusal, lacking
from bus.transports.topic_settings import PARTITIONS, REPLICAS

__all__ = ["align", "create_on_brokers"]

_MAX_RECORDS = 4000
"""The most controller log records one request may cause: the controller refuses more than 10,000 at once."""
_RECORDS_OF_A_TOPIC = 12
"""Controller log records of one topic besides its partitions: the topic and its settings."""


async def create_on_brokers(link: ClusterClient, shapes: Mapping[str, Mapping[str, str]]) -> list[str]:
    """Create topics with these settings; return the names this call created, without those another process created
    first.
    """
    created: list[str] = []
    for batch in _batches(shapes):
        topics = [_new(name, shapes[name]) for name in batch]
        for name, code, *text in await link.administer("creating topics", partial(_create, topics=topics)):
            error = for_code(code)
            if code and error is not TopicAlreadyExistsError:
                raise broker_refusal(
                    error(*filter(None, text)), f"creating topic {name!r}", f"Create on topic {name!r}"
                )
            if not code:
                created.append(name)
    return created


async def align(link: ClusterClient, topic: str, changes: Mapping[str, str]) -> bool:
    """Change the partitions and settings of *topic*.

    Returns False if another process has added partitions or deleted the topic in the meantime.
    """
    settings = {name: value for name, value in changes.items() if name != PARTITIONS}
    if PARTITIONS in changes and not await _grow(link, topic, int(changes[PARTITIONS])):
        return False
    return not settings or await _set(link, topic, settings)


async def _grow(link: ClusterClient, topic: str, partitions: int) -> bool:
    async def question(admin: AIOKafkaAdminClient) -> bool:
        try:
            await admin.create_partitions({topic: NewPartitions(partitions)})
        except InvalidPartitionsError:
            return False
        return True

    doing = f"adding partitions to topic {topic!r}"
    try:
        return await link.administer(doing, question)
    except TopicMissingError:
        return False
    except NotPermittedError as error:
        raise lacking(doing, f"Alter on topic {topic!r}") from error


async def _set(link: ClusterClient, topic: str, settings: Mapping[str, str]) -> bool:
    async def question(client: AIOKafkaClient) -> tuple[int, str]:
        answer = await client.send(client.get_random_node(), SetTopicSettings(topic, settings))
        ((code, text, *_),) = answer.resources
        if code and for_code(code).retriable and for_code(code) is not UnknownTopicOrPartitionError:
            raise for_code(code)(text)
        return code, text or ""

    doing = f"changing topic {topic!r}"
    code, text = await link.ask(doing, question)
    error = for_code(code)
    if code and error is not UnknownTopicOrPartitionError:
        raise broker_refusal(error(text), doing, f"AlterConfigs on topic {topic!r}")
    return not code


async def _create(admin: AIOKafkaAdminClient, topics: Sequence[NewTopic]) -> list[Any]:
    answer = await admin.create_topics(list(topics))
    for _, code, *_ in answer.topic_errors:
        if code and for_code(code).retriable:
            # Repeating the request is safe: a topic that was already created is reported as existing.
            raise for_code(code)()
    return list(answer.topic_errors)


def _new(name: str, shape: Mapping[str, str]) -> NewTopic:
    settings = {setting: value for setting, value in shape.items() if setting not in (PARTITIONS, REPLICAS)}
    return NewTopic(name, int(shape[PARTITIONS]), int(shape[REPLICAS]), topic_configs=settings)


def _batches(shapes: Mapping[str, Mapping[str, str]]) -> list[list[str]]:
    batches: list[list[str]] = []
    left = 0
    for name, shape in shapes.items():
        records = int(shape[PARTITIONS]) + _RECORDS_OF_A_TOPIC
        if not batches or records > left:
            batches.append([])
            left = _MAX_RECORDS
        batches[-1].append(name)
        left -= records
    return batches
