"""Topics and groups of the log as data.

Owns creating topics, the queries behind `Admin`, and moving a group's offsets. Members and leases belong to
`membership`.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial

from bus.clock import Clock
from bus.errors import ConfigurationError, GroupBusyError, NameRefusedError, TopicMissingError
from bus.transports.base import Change, GroupInfo, PartitionRange, TopicSpec, check_topic_name, colliding_topic
from bus.transports.sqlite.group_commit import LogWriter
from bus.transports.sqlite.membership import leave_group
from bus.transports.sqlite.read_connection import ReadConnection
from bus.transports.sqlite.write_transaction import MEMBERSHIP, LogFile, Topic
from bus.transports.topic_settings import PARTITIONS, compared, settings_of

__all__ = ["SqliteAdmin"]


_NEXT = """SELECT off, CAST(ts AS INTEGER) FROM records WHERE part = ? AND off >= ? AND off < ?
    ORDER BY off LIMIT 1"""


class SqliteAdmin:
    """The admin side of a transport; *ready* is called before each use and raises if the transport is closed."""

    def __init__(self, clock: Clock, writer: LogWriter, reader: ReadConnection, ready: Callable[[], None]) -> None:
        self._clock = clock
        self._writer = writer
        self._reader = reader
        self._ready = ready

    async def create_topics(self, specs: Sequence[TopicSpec]) -> Sequence[str]:
        self._ready()
        return await self._writer.run(partial(_created, specs=specs))

    async def plan(self, specs: Sequence[TopicSpec]) -> Sequence[Change]:
        self._ready()
        return await self._writer.run(partial(_planned, specs=specs))

    async def topics(self) -> Mapping[str, TopicSpec]:
        self._ready()
        return await self._writer.run(lambda log: {name: topic.spec for name, topic in log.topics.items()})

    async def ranges(self, topic: str) -> Mapping[int, PartitionRange]:
        self._ready()
        return await self._reader.run(partial(_ranges, topic=topic))

    async def offsets_at(
        self, locations: Collection[tuple[str, int]], timestamp_ms: int
    ) -> Mapping[tuple[str, int], int]:
        self._ready()
        return await self._reader.run(partial(_offsets_at, locations=locations, timestamp_ms=timestamp_ms))

    async def held_up(self, locations: Collection[tuple[str, int]]) -> Mapping[tuple[str, int], int]:  # noqa: ARG002
        return {}

    async def groups(self) -> Sequence[GroupInfo]:
        self._ready()
        return await self._reader.run(partial(_groups, now_s=self._clock.monotonic_s()))

    async def committed(self, group: str) -> Mapping[tuple[str, int], int]:
        self._ready()
        return await self._reader.run(partial(_committed, group=group))

    async def move(self, group: str, offsets: Mapping[tuple[str, int], int]) -> None:
        self._ready()
        await self._writer.run(partial(_move_offsets, group=group, offsets=offsets, now_s=self._clock.monotonic_s()))

    async def expel(self, group: str, members: Collection[str]) -> None:
        self._ready()
        await self._writer.run(partial(_expel, group=group, members=members))

    async def brokers(self) -> Mapping[str, Mapping[str, str]]:
        self._ready()
        return {}


def _created(log: LogFile, specs: Sequence[TopicSpec]) -> list[str]:
    _check(specs, log.topics)
    changed = [spec.name for spec in specs if _applied(log, spec, log.topics.get(spec.name))]
    if changed:
        log.changed()
        # Wake the members, which look for new topics at once.
        log.touched.add(MEMBERSHIP)
    return changed


def _planned(log: LogFile, specs: Sequence[TopicSpec]) -> list[Change]:
    _check(specs, log.topics)
    return [change for spec in specs for change in _changes(spec, log.topics.get(spec.name))]


def _changes(spec: TopicSpec, topic: Topic | None) -> list[Change]:
    found = settings_of(topic.spec) | {PARTITIONS: str(len(topic.parts))} if topic is not None else None
    return compared(spec.name, found, settings_of(spec))


def _check(specs: Sequence[TopicSpec], existing: Mapping[str, Topic]) -> None:
    names = {*existing, *(spec.name for spec in specs)}
    for spec in specs:
        check_topic_name(spec.name)
        if (other := colliding_topic(spec.name, names)) is not None:
            raise NameRefusedError(f"topic {spec.name!r} collides with {other!r}: `.` and `_` count as the same")
        if spec.partitions < 1:
            raise ConfigurationError(f"topic {spec.name!r} needs at least one partition")


def _applied(log: LogFile, spec: TopicSpec, topic: Topic | None) -> bool:
    """Create or change the topic as *spec* wants; return False if nothing differs."""
    if not _changes(spec, topic):
        return False
    have = len(topic.parts) if topic is not None else 0
    wanted = (max(have, spec.partitions), spec.retention_ms, spec.retention_bytes, spec.compacted)
    (topic_id,) = log.connection.execute(
        """INSERT INTO topics (name, partitions, retention_ms, retention_bytes, compacted) VALUES (?, ?, ?, ?, ?)
           ON CONFLICT (name) DO UPDATE SET partitions = excluded.partitions, retention_ms = excluded.retention_ms,
           retention_bytes = excluded.retention_bytes, compacted = excluded.compacted RETURNING id""",
        (spec.name, *wanted),
    ).fetchone()
    log.connection.executemany(
        "INSERT INTO partitions (topic_id, partition) VALUES (?, ?)",
        [(topic_id, number) for number in range(have, spec.partitions)],
    )
    return True


def _ranges(connection: sqlite3.Connection, topic: str) -> dict[int, PartitionRange]:
    rows = connection.execute(
        """SELECT partition, start_offset, next_offset FROM partitions JOIN topics ON topics.id = topic_id
           WHERE name = ? ORDER BY partition""",
        (topic,),
    ).fetchall()
    if not rows:
        raise TopicMissingError(f"no topic {topic[:249]!r}; create it with `sealbus topic apply`")
    return {partition: PartitionRange(start, end) for partition, start, end in rows}


def _offsets_at(
    connection: sqlite3.Connection, locations: Collection[tuple[str, int]], timestamp_ms: int
) -> dict[tuple[str, int], int]:
    """Search each partition by bisection: there is no index by time, and offsets are in the order of time."""
    retained = {
        (topic, partition): (part, start, end)
        for topic, partition, part, start, end in connection.execute(
            """SELECT name, partition, partitions.id, start_offset, next_offset FROM partitions
               JOIN topics ON topics.id = topic_id"""
        )
    }
    found = {}
    for location in locations:
        if location not in retained:
            raise TopicMissingError(f"no partition {location[1]} of a topic {location[0][:249]!r}")
        part, low, high = retained[location]
        while timestamp_ms > 0 and low < high:
            middle = (low + high) // 2
            # Offsets may have gaps: the next record above stands for them.
            row = connection.execute(_NEXT, (part, middle, high)).fetchone()
            if row is None or row[1] >= timestamp_ms:
                high = middle
            else:
                low = row[0] + 1
        found[location] = low
    return found


def _groups(connection: sqlite3.Connection, now_s: float) -> list[GroupInfo]:
    members: dict[str, dict[int, str]] = {}
    for group, member, name in connection.execute(
        "SELECT grp, id, name FROM members WHERE abs(? - renewed_s) <= timeout_s", (now_s,)
    ):
        members.setdefault(group, {})[member] = name
    leases = connection.execute(
        """SELECT grp, owner, committed, name, partition FROM leases JOIN partitions ON partitions.id = part
           JOIN topics ON topics.id = topic_id ORDER BY name, partition"""
    ).fetchall()
    names = sorted({*members, *(row[0] for row in leases)})
    return [_group(group, members.get(group, {}), [row[1:] for row in leases if row[0] == group]) for group in names]


def _committed(connection: sqlite3.Connection, group: str) -> dict[tuple[str, int], int]:
    rows = connection.execute(
        """SELECT name, partition, committed FROM leases
           JOIN partitions ON partitions.id = part JOIN topics ON topics.id = topic_id
           WHERE grp = ? AND committed IS NOT NULL""",
        (group,),
    )
    return {(topic, partition): offset for topic, partition, offset in rows}


def _move_offsets(log: LogFile, group: str, offsets: Mapping[tuple[str, int], int], now_s: float) -> None:
    living = "SELECT 1 FROM members WHERE grp = ? AND abs(? - renewed_s) <= timeout_s"
    if log.connection.execute(living, (group, now_s)).fetchone() is not None:
        raise GroupBusyError(f"group {group!r} has members: stop its workers first")
    # A new epoch fences a member that was believed dead: it must not commit its old offset again.
    log.connection.executemany(
        "UPDATE leases SET committed = ?, owner = NULL, epoch = epoch + 1 WHERE grp = ? AND part = ?",
        [(offset, group, log.topics[topic].parts[partition]) for (topic, partition), offset in offsets.items()],
    )


def _expel(log: LogFile, group: str, members: Collection[str]) -> None:
    for member, name in log.connection.execute("SELECT id, name FROM members WHERE grp = ?", (group,)).fetchall():
        if name in members:
            leave_group(log, member)


def _group(
    group: str, members: Mapping[int, str], leases: Sequence[tuple[int | None, int | None, str, int]]
) -> GroupInfo:
    return GroupInfo(
        name=group,
        members={
            name: tuple((topic, partition) for owner, _, topic, partition in leases if owner == member)
            for member, name in members.items()
        },
        committed={(topic, partition): offset for _, offset, topic, partition in leases if offset is not None},
        uncommitted=tuple((topic, partition) for _, offset, topic, partition in leases if offset is None),
    )
