"""TaskRows: the statements about tasks that other processes have no need of: openings, lists, artifacts.

Owns the table of artifacts. The rows of tasks are `consumers.processes.sagas.store`'s.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Final

import msgspec

from bus.clock import Clock
from bus.errors import ConfigurationError
from consumers.delivery.inbox.base import Write
from consumers.processes.sagas.process import Process
from consumers.processes.sagas.store import PROCESS_COLUMNS, ProcessChange, ProcessStore, process_in_row
from consumers.processes.tasks.snapshot import TASK_SAGA

__all__ = ["TaskOpening", "TaskRows", "TooManyOpen"]

_SCHEMA_VERSION: Final = 1
_SCHEMA_LOCK: Final = 0x5EA1B050
"""The lock that every change of sealbus tables takes (`consumers.delivery.inbox.postgres.statements`)."""
_TABLES: Final = (
    """CREATE TABLE sealbus_task_artifacts (
  process {bytes} NOT NULL, artifact text NOT NULL, part bigint NOT NULL, data {bytes} NOT NULL,
  PRIMARY KEY (process, artifact, part))""",
    """CREATE TABLE sealbus_seen_messages (
  namespace text NOT NULL, owner text NOT NULL, key text NOT NULL, content text NOT NULL, until_ms bigint NOT NULL,
  PRIMARY KEY (namespace, owner, key))""",
    "CREATE INDEX sealbus_processes_by_owner ON sealbus_processes (namespace, grp, saga, owner, status, changed_ms)",
)
_OWNERS: Final = (
    """CREATE TABLE sealbus_task_owners (
  namespace text NOT NULL, owner text NOT NULL, seen_ms bigint NOT NULL, PRIMARY KEY (namespace, owner))""",
)
_PARTS: Final = (("tasks", _TABLES), ("task_owners", _OWNERS))
"""A part of its own for each later table: a gateway of the version before refuses a higher version of `tasks`."""
_PURGED_AT_ONCE: Final = 1_000
_STAMPED_AT_ONCE: Final = 500
_COUNTED_S: Final = 5.0


class TooManyOpen(Exception):  # noqa: N818 - a verdict
    """The credential has *count* open tasks, as many as it may."""

    def __init__(self, count: int) -> None:
        super().__init__(f"this credential has {count} open tasks, as many as it may")
        self.count = count


class TaskOpening(msgspec.Struct, frozen=True):
    """A row to open for *owner*, which may have *max_open* at a time."""

    change: ProcessChange
    owner: str
    max_open: int


class TaskRows:
    """The rows of tasks of one group."""

    def __init__(self, store: ProcessStore, clock: Clock, *, namespace: str, group: str) -> None:
        self._store = store
        self._clock = clock
        self._opened: dict[str, tuple[float, int, int]] = {}
        """By owner: when its open tasks were counted, how many they were, and how many it has opened since."""
        self._place = (namespace, group, TASK_SAGA)

    async def open_tables(self) -> None:
        """Make the tables where they are missing. Raises ConfigurationError where newer code has changed them."""
        async with self._store.transaction() as transaction:
            if self._store.dialect == "postgres":
                await transaction.fetch("SELECT pg_advisory_xact_lock($1)", _SCHEMA_LOCK)
            for part, tables in _PARTS:
                row = await transaction.fetchrow("SELECT version FROM sealbus_schema WHERE part = $1", part)
                if row is not None and int(row[0]) > _SCHEMA_VERSION:
                    raise ConfigurationError(
                        f"the tasks have schema {row[0]}, this sealbus knows {_SCHEMA_VERSION}: install the newer "
                        "sealbus"
                    )
                if row is not None:
                    continue
                for statement in tables:
                    await transaction.execute(
                        statement.format(bytes="bytea" if self._store.dialect == "postgres" else "BLOB")
                    )
                await transaction.execute(
                    "INSERT INTO sealbus_schema (part, version) VALUES ($1, $2)", part, _SCHEMA_VERSION
                )

    async def open(self, opening: TaskOpening) -> bool:
        """Write *opening*; False where there is a row of its id. Raises TooManyOpen."""
        guards = await self._guards_of(opening)
        if await self._store.change(opening.change, guards):
            self._opened[opening.owner] = (*self._known(opening.owner)[:2], self._known(opening.owner)[2] + 1)
            return True
        if guards and await self._store.find(opening.change.after.id) is None:
            raise TooManyOpen(await self._count(opening.owner))
        return False

    async def _guards_of(self, opening: TaskOpening) -> Sequence[Write]:
        """Return what keeps *opening* from being one too many.

        An owner that is far from its limit is not counted each time: only after an eighth of what was left.
        """
        at_s, count, since = self._known(opening.owner)
        now_s = self._clock.monotonic_s()
        if now_s - at_s < _COUNTED_S and since < (opening.max_open - count) // 8:
            return ()
        self._opened[opening.owner] = (now_s, await self._count(opening.owner), 0)
        statement = (
            "SELECT 1 WHERE (SELECT count(*) FROM sealbus_processes WHERE namespace = $1 AND grp = $2 AND saga = $3 "
            "AND owner = $4 AND status = 'open') < $5"
        )
        return (Write(statement, (*self._place, opening.owner, opening.max_open), must_return=True),)

    def _known(self, owner: str) -> tuple[float, int, int]:
        return self._opened.get(owner, (-math.inf, 0, 0))

    async def _count(self, owner: str) -> int:
        rows = await self._store.read(
            "SELECT count(*) FROM sealbus_processes WHERE namespace = $1 AND grp = $2 AND saga = $3 AND owner = $4 "
            "AND status = 'open'",
            *self._place,
            owner,
        )
        return int(rows[0][0])

    async def forget_waits(self, waits: Sequence[str]) -> None:
        """Delete *waits*: what they would send again is in the log."""
        await self._store.write_whole([Write("DELETE FROM sealbus_waits WHERE id = $1", (wait,)) for wait in waits])

    async def newer(self, versions: Mapping[bytes, int]) -> list[Process]:
        """Return those of the rows with these ids that have another version by now."""
        if not versions:
            return []
        numbers = ", ".join(f"${number}" for number in range(1, len(versions) + 1))
        rows = await self._store.read(
            f"SELECT p.id, p.version FROM sealbus_processes p WHERE p.id IN ({numbers})",  # noqa: S608 - placeholders
            *versions,
        )
        changed = [bytes(row[0]) for row in rows if int(row[1]) != versions[bytes(row[0])]]
        found = [await self._store.find(identity) for identity in changed]
        return [process for process in found if process is not None]

    async def open_after(self, credential: str, identity: bytes) -> list[Process]:
        """Return some open tasks of *credential* whose id is above *identity*, in the order of their ids."""
        rows = await self._store.read(
            f"SELECT {PROCESS_COLUMNS} FROM sealbus_processes p WHERE p.namespace = $1 AND p.grp = $2 AND p.saga = $3 "  # noqa: S608 - columns
            "AND p.owner = $4 AND p.status = 'open' AND p.id > $5 ORDER BY p.id LIMIT 100",
            *self._place,
            credential,
            identity,
        )
        return [process_in_row(row) for row in rows]

    async def stamp(self, owners: Collection[str]) -> None:
        """Note that a replica has *owners* now."""
        # In one order, so that two replicas do not wait for each other.
        wanted = sorted(owners)
        for start in range(0, len(wanted), _STAMPED_AT_ONCE):
            some = wanted[start : start + _STAMPED_AT_ONCE]
            rows = ", ".join(f"($1, ${number}, {{now}})" for number in range(2, len(some) + 2))
            await self._store.write_whole(
                [
                    self._store.timed(
                        f"INSERT INTO sealbus_task_owners (namespace, owner, seen_ms) VALUES {rows} "  # noqa: S608 - placeholders
                        "ON CONFLICT (namespace, owner) DO UPDATE SET seen_ms = excluded.seen_ms",
                        self._place[0],
                        *some,
                    )
                ]
            )

    async def unseen_ms(self) -> dict[str, int]:
        """Return by owner for how long no replica has had it, of those that one had."""
        rows = await self._store.read(
            f"SELECT owner, {self._store.now_sql()} - seen_ms FROM sealbus_task_owners WHERE namespace = $1",  # noqa: S608 - a time
            self._place[0],
        )
        return {str(row[0]): int(row[1]) for row in rows}

    async def forget_owner(self, owner: str, unseen_ms: int) -> None:
        """Delete the stamp of *owner* where it is older than *unseen_ms* and none of its tasks is open."""
        statement = (
            "DELETE FROM sealbus_task_owners WHERE namespace = $1 AND owner = $4 AND seen_ms < {now} - $5 AND NOT "
            "EXISTS (SELECT 1 FROM sealbus_processes WHERE namespace = $1 AND grp = $2 AND saga = $3 AND owner = $4 "
            "AND status = 'open')"
        )
        await self._store.write_whole([self._store.timed(statement, *self._place, owner, unseen_ms)])

    async def artifact(self, process: bytes, artifact: str) -> list[bytes]:
        """Return the parts of *artifact* in their order."""
        rows = await self._store.read(
            "SELECT data FROM sealbus_task_artifacts WHERE process = $1 AND artifact = $2 ORDER BY part",
            process,
            artifact,
        )
        return [bytes(row[0]) for row in rows]

    async def seen(self, owner: str, key: str) -> str | None:
        """Return the hash of what *owner* has sent under *key*; None where it has sent nothing."""
        rows = await self._store.read(
            "SELECT content FROM sealbus_seen_messages WHERE namespace = $1 AND owner = $2 AND key = $3",
            self._place[0],
            owner,
            key,
        )
        return None if not rows else str(rows[0][0])

    async def remember(self, owner: str, key: str, content: str, until_ms: int) -> bool:
        """Note that *owner* has sent *content* under *key*; False where something was noted before."""
        statement = (
            "INSERT INTO sealbus_seen_messages (namespace, owner, key, content, until_ms) VALUES ($1, $2, $3, $4, $5) "
            "ON CONFLICT (namespace, owner, key) DO NOTHING RETURNING key"
        )
        return await self._store.write_whole(
            [Write(statement, (self._place[0], owner, key, content, until_ms), must_return=True)]
        )

    async def forget_seen(self, now_ms: int) -> None:
        """Delete the notes whose time is over."""
        async with self._store.transaction() as transaction:
            await transaction.execute("DELETE FROM sealbus_seen_messages WHERE until_ms < $1", now_ms)

    async def purge(self) -> int:
        """Delete the artifacts of tasks whose row is gone; return how many parts."""
        async with self._store.transaction() as transaction:
            rows = await transaction.fetch(
                "DELETE FROM sealbus_task_artifacts WHERE process IN (SELECT a.process FROM sealbus_task_artifacts a "
                "LEFT JOIN sealbus_processes p ON p.id = a.process WHERE p.id IS NULL LIMIT $1) RETURNING part",
                _PURGED_AT_ONCE,
            )
        return len(rows)
