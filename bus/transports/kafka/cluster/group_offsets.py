"""The committed offsets of a group: reading them, setting them for a group without members, and removing members.

Owns these requests and what their answers mean; members commit in `bus.transports.kafka.consumer.consumer`. The library
can read commits too, but ignores the error of the answer as a whole. A coordinator that is moving or still loading then
looks like a group without commits, and a member would start from the beginning.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from aiokafka import TopicPartition
from aiokafka.client import AIOKafkaClient, CoordinationType
from aiokafka.errors import (
    GroupCoordinatorNotAvailableError,
    IllegalGenerationError,
    RebalanceInProgressError,
    UnknownMemberIdError,
    for_code,
)
from aiokafka.protocol.commit import OffsetCommitRequest, OffsetFetchRequest
from aiokafka.protocol.group import LeaveGroupRequest

from bus.errors import GroupBusyError
from bus.transports.kafka.cluster.client import ClusterClient

__all__ = ["commits", "leave_on_behalf", "set_commits"]


async def commits(
    link: ClusterClient, doing: str, group: str, locations: Sequence[TopicPartition] | None = None
) -> dict[TopicPartition, int]:
    """Return the committed offsets of *group* for *locations* (None: for all), without places that have none.

    Raises the errors of `ClusterClient`.
    """

    async def question(client: AIOKafkaClient) -> dict[TopicPartition, int]:
        coordinator = await client.coordinator_lookup(CoordinationType.GROUP, group)
        answer = await client.send(
            coordinator, OffsetFetchRequest(group, None if locations is None else _by_topic(locations))
        )
        found: dict[TopicPartition, int] = {}
        _check(answer.error_code, group)
        for topic, partitions in answer.topics:
            for partition, offset, _, code in partitions:
                _check(code, group)
                found[TopicPartition(topic, partition)] = offset
        if not found.keys() >= {*(locations or ())}:
            raise GroupCoordinatorNotAvailableError(f"offsets of some partitions of group {group!r} are missing")
        return {location: offset for location, offset in found.items() if offset >= 0}

    return await link.ask(doing, question)


async def set_commits(link: ClusterClient, doing: str, group: str, offsets: Mapping[TopicPartition, int]) -> None:
    """Set the committed offsets of *group*.

    Raises GroupBusyError if it has members, and the errors of `ClusterClient`.
    """
    topics: dict[str, list[tuple[int, int, str]]] = {}
    for location, offset in offsets.items():
        topics.setdefault(location.topic, []).append((location.partition, offset, ""))
    request = OffsetCommitRequest(
        group,
        OffsetCommitRequest.DEFAULT_GENERATION_ID,
        "",
        OffsetCommitRequest.DEFAULT_RETENTION_TIME,
        list(topics.items()),
    )

    async def question(client: AIOKafkaClient) -> None:
        coordinator = await client.coordinator_lookup(CoordinationType.GROUP, group)
        answer = await client.send(coordinator, request)
        for code in {code for _, partitions in answer.topics for _, code in partitions}:
            if for_code(code) in (UnknownMemberIdError, IllegalGenerationError, RebalanceInProgressError):
                raise GroupBusyError(f"group {group!r} has members: stop its workers first")
            _check(code, group)

    await link.ask(doing, question)


async def leave_on_behalf(link: ClusterClient, doing: str, group: str, member_ids: Sequence[str]) -> None:
    """Make *member_ids* leave *group* on their behalf; a member that has already left is no error.

    Raises the errors of `ClusterClient`.
    """

    async def question(client: AIOKafkaClient) -> None:
        coordinator = await client.coordinator_lookup(CoordinationType.GROUP, group)
        for member_id in member_ids:
            answer = await client.send(coordinator, LeaveGroupRequest(group, member_id))
            if for_code(answer.error_code) is not UnknownMemberIdError:
                _check(answer.error_code, group)

    if member_ids:
        await link.ask(doing, question)


def _by_topic(locations: Sequence[TopicPartition]) -> list[tuple[str, list[int]]]:
    partitions: dict[str, list[int]] = {}
    for location in locations:
        partitions.setdefault(location.topic, []).append(location.partition)
    return list(partitions.items())


def _check(code: int, group: str) -> None:
    if code:
        raise for_code(code)(f"group {group!r}")
