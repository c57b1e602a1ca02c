"""Topics and groups of a Kafka cluster as data.

Owns the questions behind `Admin`, and creating and aligning topics in rounds until no difference is left. Its
neighbours own the wanted settings (`topic_config`), the found ones (`cluster_state`) and the requests that change them
(`topic_changes`); `bus.transports.kafka.cluster.client` owns connections.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from aiokafka import TopicPartition
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.coordinator.protocol import ConsumerProtocolMemberAssignment
from aiokafka.errors import for_code

from bus.errors import ConfigurationError, NameRefusedError, NotPermittedError, TopicMissingError, UnreachableError
from bus.transports.base import Change, GroupInfo, PartitionRange, TopicSpec, check_topic_name, colliding_topic
from bus.transports.kafka.admin.cluster_state import broker_settings, known_everywhere, standing, topic_settings
from bus.transports.kafka.admin.topic_changes import align, create_on_brokers
from bus.transports.kafka.admin.topic_config import shape, spec_of
from bus.transports.kafka.cluster.client import ClusterClient
from bus.transports.kafka.cluster.group_offsets import commits, leave_on_behalf, set_commits
from bus.transports.kafka.errors import lacking
from bus.transports.topic_settings import compared

__all__ = ["KafkaAdmin"]

_ROUNDS = 10
_PAUSE_S = 0.2
_GROUP_TYPE = "consumer"


class KafkaAdmin:
    """The admin side of a transport; *ready* raises if the transport is closed."""

    def __init__(self, link: ClusterClient, ready: Callable[[], None], *, max_record_bytes: int) -> None:
        self._link = link
        self._ready = ready
        self._max_record_bytes = max_record_bytes

    async def create_topics(self, specs: Sequence[TopicSpec]) -> Sequence[str]:
        self._ready()
        changed: set[str] = set()
        for _ in range(_ROUNDS):
            done, again = await self._carry_out(await self._compare(specs))
            changed |= done.keys()
            if done:
                for name in done:
                    self._link.forget(name)
                await self._wait_until_known(done)
            if not again:
                return list(dict.fromkeys(spec.name for spec in specs if spec.name in changed))
            # Another process was faster: compare what it made with what is wanted.
            await self._link.pause(_PAUSE_S)
        raise UnreachableError("another process keeps changing these topics; try again when it has finished")

    async def plan(self, specs: Sequence[TopicSpec]) -> Sequence[Change]:
        self._ready()
        return [change for changes in (await self._compare(specs)).values() for change in changes]

    async def topics(self) -> Mapping[str, TopicSpec]:
        self._ready()
        facts = await self._link.all_topics()
        # A publisher may see topics without the right to read their settings.
        settings = await topic_settings(self._link, list(facts), lenient=True)
        return {name: spec_of(name, facts[name].partitions, settings.get(name, {})) for name in facts}

    async def ranges(self, topic: str) -> Mapping[int, PartitionRange]:
        self._ready()
        return await self._link.ranges(topic)

    async def offsets_at(
        self, locations: Collection[tuple[str, int]], timestamp_ms: int
    ) -> Mapping[tuple[str, int], int]:
        self._ready()
        return _placed(
            await self._link.offsets_at([TopicPartition(*location) for location in sorted(locations)], timestamp_ms)
        )

    async def held_up(self, locations: Collection[tuple[str, int]]) -> Mapping[tuple[str, int], int]:
        self._ready()
        return _placed(await self._link.held_up([TopicPartition(*location) for location in sorted(locations)]))

    async def groups(self) -> Sequence[GroupInfo]:
        self._ready()
        listed = await self._link.administer("listing groups", lambda admin: admin.list_consumer_groups())
        names = sorted({name for name, kind, *_ in listed if kind in (_GROUP_TYPE, "")})
        return [await self._group(name) for name in names]

    async def committed(self, group: str) -> Mapping[tuple[str, int], int]:
        self._ready()
        doing = f"reading the offsets of group {group!r}"
        try:
            return _placed(await commits(self._link, doing, group))
        except NotPermittedError as error:
            raise lacking(doing, f"Describe on group {group!r}") from error

    async def move(self, group: str, offsets: Mapping[tuple[str, int], int]) -> None:
        self._ready()
        doing = f"setting the offsets of group {group!r}"
        try:
            await set_commits(
                self._link, doing, group, {TopicPartition(*location): offset for location, offset in offsets.items()}
            )
        except NotPermittedError as error:
            raise lacking(doing, f"Read on group {group!r} and its topics") from error

    async def expel(self, group: str, members: Collection[str]) -> None:
        self._ready()
        doing = f"ending members of group {group!r}"
        found = await self._link.administer(doing, partial(_describe, name=group))
        await leave_on_behalf(
            self._link,
            doing,
            group,
            [each["member_id"] for one in found for each in one["members"] if each["client_id"] in members],
        )

    async def brokers(self) -> Mapping[str, Mapping[str, str]]:
        self._ready()
        return await broker_settings(self._link)

    async def _compare(self, specs: Sequence[TopicSpec]) -> dict[str, list[Change]]:
        """Return the changes that each topic needs."""
        for spec in specs:
            check_topic_name(spec.name)
        now = await standing(self._link, (spec.name for spec in specs))
        _check(specs, now.names)
        found = {spec.name: now.found.get(spec.name) for spec in specs}
        return {
            spec.name: compared(
                spec.name,
                found[spec.name],
                shape(spec, found[spec.name], brokers=now.brokers, max_record_bytes=self._max_record_bytes),
            )
            for spec in specs
        }

    async def _carry_out(self, plan: Mapping[str, Sequence[Change]]) -> tuple[dict[str, dict[str, str]], bool]:
        """Return what was changed by topic, and whether another process changed one of the others."""
        missing: dict[str, dict[str, str]] = {}
        wanted: dict[str, dict[str, str]] = {}
        for name, changes in plan.items():
            to_do = {change.setting: change.wanted for change in changes if not change.by_hand}
            if to_do:
                (missing if changes[0].found is None else wanted)[name] = to_do
        done = {name: missing[name] for name in await create_on_brokers(self._link, missing)}
        done |= {name: to_do for name, to_do in wanted.items() if await align(self._link, name, to_do)}
        return done, len(done) < len(missing) + len(wanted)

    async def _group(self, name: str) -> GroupInfo:
        doing = f"reading group {name!r}"
        members: dict[str, tuple[tuple[str, int], ...]] = {}
        for group in await self._link.administer(doing, partial(_describe, name=name)):
            for member in group["members"]:
                label = (
                    member["client_id"]
                    if member["client_id"] not in members
                    else f"{member['client_id']} {member['member_id']}"
                )
                members[label] = _owned(member["member_assignment"])
        return GroupInfo(name=name, members=members, committed=_placed(await commits(self._link, doing, name)))

    async def _wait_until_known(self, changes: Mapping[str, Mapping[str, str]]) -> None:
        """Wait until every partition of the changed topics has a leader and every broker knows the *changes*.

        Before that a topic is of no use: the next question may go to any broker.
        """
        for _ in range(50):
            try:
                facts = await self._link.topics(changes, limits=True)
            except TopicMissingError:
                facts = {}
            led = facts and all(leader >= 0 for item in facts.values() for leader in item.leaders)
            if led and await known_everywhere(self._link, changes):
                return
            await self._link.pause(0.1)


def _check(specs: Sequence[TopicSpec], existing: Iterable[str]) -> None:
    names = {*existing, *(spec.name for spec in specs)}
    for spec in specs:
        if (other := colliding_topic(spec.name, names)) is not None:
            raise NameRefusedError(f"topic {spec.name!r} collides with {other!r}: `.` and `_` count as the same")
        if spec.partitions < 1:
            raise ConfigurationError(f"topic {spec.name!r} needs at least one partition")


async def _describe(admin: AIOKafkaAdminClient, name: str) -> list[Any]:
    groups = [
        group for answer in await admin.describe_consumer_groups([name]) for group in answer.to_object()["groups"]
    ]
    for group in groups:
        # The library does not check the errors of single groups. A group that is no classic group is described without
        # members.
        if group["error_code"] and for_code(group["error_code"]).retriable:
            raise for_code(group["error_code"])(f"group {name!r}")
    return groups


def _placed(offsets: Mapping[TopicPartition, int]) -> dict[tuple[str, int], int]:
    return {(location.topic, location.partition): offset for location, offset in offsets.items()}


def _owned(assignment: bytes) -> tuple[tuple[str, int], ...]:
    if not assignment:
        return ()
    try:
        decoded = ConsumerProtocolMemberAssignment.decode(assignment)
        return tuple(sorted((topic, number) for topic, numbers in decoded.assignment for number in numbers))
    except (ValueError, TypeError):
        # Brokers pass on any bytes that another program's members agree on. Those assignments are unreadable here, and
        # must not hide the other groups.
        return ()
