"""Topics and groups of a Kafka cluster as data.

Owns creating and aligning topics and the questions behind `Admin`. Settings that a spec does not speak of are never touched: the protocol this
client speaks resets whatever a change does not name, so every change reads, merges and writes. Does not own connections (`link`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from aiokafka.admin import NewPartitions, NewTopic
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.coordinator.protocol import ConsumerProtocolMemberAssignment
from aiokafka.errors import TopicAlreadyExistsError, for_code

from bus.errors import ConfigurationError, NameRefusedError, TopicMissingError
from bus.transports.base import GroupInfo, PartitionRange, TopicSpec, check_topic_name, colliding_topic
from bus.transports.kafka.faults import translated
from bus.transports.kafka.link import Link, TopicFacts

__all__ = ["KafkaAdmin"]

_BATCH_OVERHEAD = 1024
_TOPIC_SOURCE = 1
"""The source of a setting that stands on the topic itself (KIP-226)."""
_MAX_REPLICAS = 3
_GROUP_TYPE = "consumer"


class KafkaAdmin:
    """The admin side of a transport; *ready* raises when the transport is closed."""

    def __init__(self, link: Link, ready: Callable[[], None], *, max_record_bytes: int) -> None:
        self._link = link
        self._ready = ready
        self._max_record_bytes = max_record_bytes

    async def create_topics(self, specs: Sequence[TopicSpec]) -> Sequence[str]:
        self._ready()
        existing = await self._link.all_topics()
        _check(specs, existing)
        created = [spec for spec in specs if spec.name not in existing]
        changed = await self._create(created) if created else []
        present = [spec for spec in specs if spec.name in existing]
        changed += await self._grow(present, existing)
        changed += [name for name in await self._align(present) if name not in changed]
        for name in changed:
            self._link.forget(name)
        if changed:
            await self._until_led(changed)
        return [spec.name for spec in specs if spec.name in changed]

    async def topics(self) -> Mapping[str, TopicSpec]:
        self._ready()
        facts = await self._link.all_topics()
        settings = await self._settings(list(facts))
        return {name: _spec(name, facts[name].partitions, settings.get(name, {})) for name in facts}

    async def ranges(self, topic: str) -> Mapping[int, PartitionRange]:
        self._ready()
        return await self._link.ranges(topic)

    async def groups(self) -> Sequence[GroupInfo]:
        self._ready()
        listed = await self._link.administer("listing groups", lambda admin: admin.list_consumer_groups())
        names = sorted({name for name, kind, *_ in listed if kind in (_GROUP_TYPE, "")})
        return [await self._group(name) for name in names]

    async def _group(self, name: str) -> GroupInfo:
        async def asked(admin: Any) -> tuple[list[Any], dict[Any, Any]]:
            coordinator = await admin.find_coordinator(name)
            described = await admin.describe_consumer_groups([name], group_coordinator_id=coordinator)
            return described, await admin.list_consumer_group_offsets(name, group_coordinator_id=coordinator)

        described, offsets = await self._link.administer(f"reading group {name!r}", asked)
        members: dict[str, tuple[tuple[str, int], ...]] = {}
        for answer in described:
            for group in answer.to_object()["groups"]:
                for member in group["members"]:
                    label = member["client_id"] if member["client_id"] not in members else f"{member['client_id']} {member['member_id']}"
                    members[label] = _held(member["member_assignment"])
        return GroupInfo(
            name=name,
            members=members,
            committed={(place.topic, place.partition): found.offset for place, found in offsets.items() if found.offset >= 0},
        )

    async def _create(self, specs: Sequence[TopicSpec]) -> list[str]:
        brokers = await self._link.ask("reading the cluster", _brokers)
        replicas = min(_MAX_REPLICAS, brokers)
        topics = [NewTopic(spec.name, spec.partitions, replicas, topic_configs=self._new_settings(spec, replicas)) for spec in specs]
        answer = await self._link.administer("creating topics", lambda admin: admin.create_topics(topics))
        changed = []
        for name, code, *rest in answer.topic_errors:
            error = for_code(code)
            if code and error is not TopicAlreadyExistsError:
                raise translated(error(rest[0] if rest else ""), f"creating topic {name!r}")
            if not code:
                changed.append(name)
        return changed

    async def _grow(self, specs: Sequence[TopicSpec], existing: Mapping[str, TopicFacts]) -> list[str]:
        wanted = {spec.name: NewPartitions(spec.partitions) for spec in specs if spec.partitions > existing[spec.name].partitions}
        if wanted:
            await self._link.administer("adding partitions", lambda admin: admin.create_partitions(wanted))
        return list(wanted)

    async def _align(self, specs: Sequence[TopicSpec]) -> list[str]:
        if not specs:
            return []
        present = await self._settings([spec.name for spec in specs], own_only=True)
        effective = await self._settings([spec.name for spec in specs])
        resources = []
        for spec in specs:
            wanted = self._settings_of(spec)
            if any(effective.get(spec.name, {}).get(key) != value for key, value in wanted.items()):
                resources.append(ConfigResource(ConfigResourceType.TOPIC, spec.name, present.get(spec.name, {}) | wanted))
        if not resources:
            return []
        answers = await self._link.administer("changing topics", lambda admin: admin.alter_configs(resources))
        for answer in answers:
            for code, text, _, name in answer.resources:
                if code:
                    raise translated(for_code(code)(text), f"changing topic {name!r}")
        return [resource.name for resource in resources]

    async def _settings(self, names: Sequence[str], *, own_only: bool = False) -> dict[str, dict[str, str]]:
        """Settings by topic; *own_only*: those set on the topic itself, without defaults of the brokers."""
        if not names:
            return {}
        resources = [ConfigResource(ConfigResourceType.TOPIC, name) for name in names]
        answers = await self._link.administer("reading topics' settings", lambda admin: admin.describe_configs(resources))
        found: dict[str, dict[str, str]] = {}
        for answer in answers:
            for code, text, _, name, entries in answer.resources:
                if code:
                    raise translated(for_code(code)(text), f"reading the settings of {name!r}")
                found[name] = {entry[0]: entry[1] for entry in entries if entry[1] is not None and not (own_only and entry[3] != _TOPIC_SOURCE)}
        return found

    def _settings_of(self, spec: TopicSpec) -> dict[str, str]:
        policy = "delete"
        if spec.compacted:
            policy = "compact" if spec.retention_ms is None and spec.retention_bytes is None else "compact,delete"
        return {
            "cleanup.policy": policy,
            "retention.ms": str(-1 if spec.retention_ms is None else spec.retention_ms),
            "retention.bytes": str(-1 if spec.retention_bytes is None else spec.retention_bytes),
        }

    def _new_settings(self, spec: TopicSpec, replicas: int) -> dict[str, str]:
        return self._settings_of(spec) | {
            "max.message.bytes": str(self._max_record_bytes + _BATCH_OVERHEAD),
            # Retention goes by the time of a record: a publisher's wrong clock must not delete early or never (KAFKA-7910).
            "message.timestamp.type": "LogAppendTime",
            "min.insync.replicas": str(max(1, replicas - 1)),
            "unclean.leader.election.enable": "false",
        }

    async def _until_led(self, names: Sequence[str]) -> None:
        """A new topic is of no use before every partition has a leader."""
        for _ in range(50):
            try:
                facts = await self._link.topics(names, limits=True)
            except TopicMissingError:
                facts = {}
            if facts and all(leader >= 0 for item in facts.values() for leader in item.leaders):
                return
            await self._link.pause(0.1)


def _check(specs: Sequence[TopicSpec], existing: Mapping[str, TopicFacts]) -> None:
    names = {*existing, *(spec.name for spec in specs)}
    for spec in specs:
        check_topic_name(spec.name)
        if (other := colliding_topic(spec.name, names)) is not None:
            raise NameRefusedError(f"topic {spec.name!r} collides with {other!r}: `.` and `_` count as the same")
        if spec.partitions < 1:
            raise ConfigurationError(f"topic {spec.name!r} needs at least one partition")


def _spec(name: str, partitions: int, settings: Mapping[str, str]) -> TopicSpec:
    return TopicSpec(
        name=name,
        partitions=partitions,
        retention_ms=_limit(settings.get("retention.ms")),
        retention_bytes=_limit(settings.get("retention.bytes")),
        compacted="compact" in settings.get("cleanup.policy", ""),
    )


def _limit(text: str | None) -> int | None:
    return None if text is None or int(text) < 0 else int(text)


def _held(assignment: bytes) -> tuple[tuple[str, int], ...]:
    if not assignment:
        return ()
    decoded = ConsumerProtocolMemberAssignment.decode(assignment)
    return tuple(sorted((topic, number) for topic, numbers in decoded.assignment for number in numbers))


async def _brokers(client: Any) -> int:
    await client.force_metadata_update()
    return len(client.cluster.brokers())
