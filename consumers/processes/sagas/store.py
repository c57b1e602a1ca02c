"""ProcessStore: processes, waits and stored messages in the inbox's database, one SQL for SQLite and PostgreSQL.

Owns every statement about the rows; the tables are in `consumers.processes.sagas.schema`. All times are the store's:
PostgreSQL's clock, on SQLite the worker's. Reads use no transaction. Writes are part of the transaction that also ends
the event (design part two 16.4), so a step is written completely or not at all.
"""

from __future__ import annotations

import string
from collections.abc import AsyncGenerator, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Final

import msgspec

from bus.clock import Clock
from bus.databases.stored_text import restored_row, storable_row
from consumers.delivery.inbox.base import Inbox, SqlDialect, Transaction, Write
from consumers.processes.sagas.process import Hold, Ids, Process, ProcessPlace, Wait
from consumers.processes.sagas.rules import CANCEL_WAIT
from consumers.processes.sagas.schema import migrate_processes

__all__ = ["PROCESS_COLUMNS", "NewWait", "ProcessChange", "ProcessStore", "Swept", "WaitGuard", "process_in_row"]

_SWEPT_AT_ONCE: Final = 200
_PURGED_AT_ONCE: Final = 5_000
AGAIN_MS: Final = 60_000
"""A wait whose nudge was not acknowledged is nudged again after so long."""
FIRST_AGAIN_MS: Final = 600_000
"""A wait whose nudge is in the log and that still stands is nudged again after so long, then after twice as long."""
MAX_AGAIN_MS: Final = 86_400_000
_ID_DIGITS: Final = 64
_IDS_AT_ONCE: Final = 200

PROCESS_COLUMNS: Final = (
    "p.id, p.namespace, p.grp, p.saga, p.key, p.version, p.status, p.shape, p.state, p.opener, p.trust, "
    "p.owner, p.sender, p.task_id, p.opened_ms, p.changed_ms, p.keep_until_ms"
)
_PROCESS: Final = PROCESS_COLUMNS
_WAIT: Final = "w.id, w.process, w.name, w.addressee, w.seal, w.many, w.due_ms, w.nudge_ms, w.note"


class NewWait(msgspec.Struct, frozen=True, kw_only=True):
    """A wait that a step arms; it is due *after_ms* after the store's present."""

    id: str
    name: str
    after_ms: int
    addressee: str | None = None
    seal: str | None = None
    many: bool = False


class WaitGuard(msgspec.Struct, frozen=True, kw_only=True):
    """The change counts only while *count* waits of the group have names with this *beginning*."""

    beginning: str
    count: int


class ProcessChange(msgspec.Struct, frozen=True, kw_only=True):
    """The changes of one step to one process: its next row, under the version that was read."""

    before: Process | None
    """The row that was read; None opens it."""
    after: Process
    keep_ms: int = 0
    """How long the row stays after it is finished."""
    armed: Sequence[NewWait] = ()
    ended: Collection[str] = ()
    """The names of waits that go."""
    acted: str | None = None
    """The id of the wait that the step acts on: the step counts only while its row stands."""
    holds: Sequence[Hold] = ()
    frees_holds: bool = False
    guard: WaitGuard | None = None
    beside: Sequence[Write] = ()
    """Rows of the saga's own tables."""


class Swept(msgspec.Struct, frozen=True, kw_only=True):
    """A wait whose nudge is to be sent, with the message that opened its process."""

    id: str
    name: str
    due_ms: int
    opener: bytes
    marked_ms: int
    number: int
    """How often it was nudged, with this time."""


class ProcessStore:
    """The tables of one namespace and group, in the database of *inbox*."""

    def __init__(
        self,
        inbox: Inbox,
        *,
        namespace: str,
        group: str | None,
        clock: Clock,
        ended: Callable[[Process], None] = lambda _: None,
    ) -> None:
        """Read and write the rows of *group*; None reads those of all groups. *ended* hears of each that ends."""
        self._ended = ended
        self._inbox = inbox
        self._namespace = namespace
        self._group = group
        self._clock = clock
        self.ids = Ids(b"", namespace=namespace, group=group or "")
        """The ids of its rows; known once it is open."""

    @property
    def inbox(self) -> Inbox:
        """The inbox in whose database the rows are."""
        return self._inbox

    async def open(self) -> None:
        """Create the tables where they are missing. Raises ConfigurationError where newer code has changed them."""
        async with _own(self._inbox) as transaction:
            secret = await migrate_processes(transaction, self._inbox.dialect)
        self.ids = Ids(secret, namespace=self._namespace, group=self._group or "")

    # Reads.

    async def find(self, identity: bytes) -> Process | None:
        """Return the process of that id, or None."""
        rows = await self.read(f"SELECT {_PROCESS} FROM sealbus_processes p WHERE p.id = $1", identity)
        return process_in_row(rows[0]) if rows else None

    async def find_wait(self, wait: str) -> tuple[Wait, Process, int] | None:
        """Return a wait of this group with its process, and the store's present in ms; None where its row is gone."""
        rows = await self.read(
            f"SELECT {self.now_sql()}, {_WAIT}, {_PROCESS} FROM sealbus_waits w JOIN sealbus_processes p "
            "ON p.id = w.process WHERE w.id = $1 AND w.namespace = $2 AND w.grp = $3",
            wait,
            self._namespace,
            self._group,
        )
        if not rows:
            return None
        now_ms, *values = rows[0]
        return _wait(values[:9]), process_in_row(values[9:]), int(now_ms)

    async def waits_of(self, process: bytes) -> list[Wait]:
        """Return the waits of a process, the next due first."""
        rows = await self.read(f"SELECT {_WAIT} FROM sealbus_waits w WHERE w.process = $1 ORDER BY w.due_ms", process)
        return [_wait(row) for row in rows]

    async def holds_of(self, process: bytes) -> list[Hold]:
        """Return the stored messages of a process."""
        rows = await self.read(
            "SELECT process, seal, record FROM sealbus_holds WHERE process = $1 ORDER BY seal", process
        )
        return [Hold(process=bytes(row[0]), seal=row[1], record=bytes(row[2])) for row in rows]

    async def waits_of_each(self, processes: Sequence[bytes]) -> dict[bytes, list[Wait]]:
        """Return by process the waits of each that has any, the next due first."""
        found: dict[bytes, list[Wait]] = {}
        for at in range(0, len(processes), _IDS_AT_ONCE):
            some = processes[at : at + _IDS_AT_ONCE]
            places = ", ".join(f"${number}" for number in range(1, len(some) + 1))
            for row in await self.read(
                f"SELECT {_WAIT} FROM sealbus_waits w WHERE w.process IN ({places}) ORDER BY w.due_ms", *some
            ):
                wait = _wait(row)
                found.setdefault(wait.process, []).append(wait)
        return found

    async def processes(
        self,
        *,
        saga: str | None = None,
        status: str | None = None,
        key: str | None = None,
        owner: str | None = None,
        before: ProcessPlace | None = None,
        max_rows: int = 1000,
    ) -> list[Process]:
        """Return processes of this group, those changed last first; *before*: those behind that place."""
        # A condition that may hold for every row would keep the databases from using an index on it.
        place = {"namespace": self._namespace, "grp": self._group}
        wanted = place | {"saga": saga, "owner": owner, "status": status, "key": key}
        given = {column: value for column, value in wanted.items() if value is not None}
        conditions = " AND ".join(f"p.{column} = ${number}" for number, column in enumerate(given, 1))
        values: list[Any] = [*given.values(), max_rows]
        if before is not None:
            at_ms = int(before.changed_ms)
            values.append(before.id)
            conditions += f" AND p.changed_ms <= {at_ms} AND (p.changed_ms < {at_ms} OR p.id < ${len(values)})"
        rows = await self.read(
            f"SELECT {_PROCESS} FROM sealbus_processes p WHERE {conditions} ORDER BY p.changed_ms DESC, p.id DESC "
            f"LIMIT ${len(given) + 1}",
            *values,
        )
        return [process_in_row(row) for row in rows]

    async def of_task(self, task_id: str, sender: str) -> list[Process]:
        """Return the open processes of this group that *sender* has opened for *task_id*."""
        rows = await self.read(
            f"SELECT {_PROCESS} FROM sealbus_processes p WHERE p.namespace = $1 AND p.grp = $2 AND p.task_id = $3 "
            "AND p.sender = $4 AND p.status = 'open' ORDER BY p.opened_ms",
            self._namespace,
            self._group,
            task_id,
            sender,
        )
        return [process_in_row(row) for row in rows]

    async def of_key(self, saga: str, key: str, *, max_rows: int) -> list[Process]:
        """Return the processes of *saga* in this group that are known by *key*, whosever they are, open ones first."""
        rows = await self.read(
            f"SELECT {_PROCESS} FROM sealbus_processes p WHERE p.namespace = $1 AND p.grp = $2 AND p.saga = $3 "
            "AND p.key = $4 ORDER BY p.status DESC, p.opened_ms LIMIT $5",
            self._namespace,
            self._group,
            saga,
            key,
            max_rows,
        )
        return [process_in_row(row) for row in rows]

    async def known_keys(self, saga: str, group: str, keys: Sequence[str]) -> frozenset[str]:
        """Return those of *keys* by which the store knows processes of *saga* in *group*, open or not."""
        found = set[str]()
        for at in range(0, len(keys), _IDS_AT_ONCE):
            some = keys[at : at + _IDS_AT_ONCE]
            places = ", ".join(f"${number}" for number in range(4, len(some) + 4))
            rows = await self.read(
                "SELECT key FROM sealbus_processes WHERE namespace = $1 AND grp = $2 AND saga = $3 "
                f"AND key IN ({places})",
                self._namespace,
                group,
                saga,
                *some,
            )
            found |= {str(row[0]) for row in rows}
        return frozenset(found)

    async def named(self, name: str) -> list[Process]:
        """Return at most two processes of the namespace: those known by the key *name*, else those whose ids so begin.

        A task is known by its id.
        """
        rows = await self.read(
            f"SELECT {_PROCESS} FROM sealbus_processes p WHERE p.namespace = $1 AND p.key = $2 LIMIT 2",
            self._namespace,
            name,
        )
        if rows:
            return [process_in_row(row) for row in rows]
        digits = name.lower()
        if not 0 < len(digits) <= _ID_DIGITS or set(digits) - set(string.hexdigits):
            return []
        low, high = bytes.fromhex(digits.ljust(_ID_DIGITS, "0")), bytes.fromhex(digits.ljust(_ID_DIGITS, "f"))
        rows = await self.read(
            f"SELECT {_PROCESS} FROM sealbus_processes p WHERE p.id >= $1 AND p.id <= $2 AND p.namespace = $3 LIMIT 2",
            low,
            high,
            self._namespace,
        )
        return [process_in_row(row) for row in rows]

    async def crowded(self, max_rows: int) -> frozenset[str]:
        """Return the senders that have *max_rows* open processes in this group, or more."""
        rows = await self.read(
            "SELECT sender FROM sealbus_processes WHERE namespace = $1 AND grp = $2 AND status = 'open' "
            "GROUP BY sender HAVING count(*) >= $3",
            self._namespace,
            self._group,
            max_rows,
        )
        return frozenset(str(row[0]) for row in rows)

    async def waits(self, *, overdue_ms: int | None = None, max_rows: int = 1000) -> list[tuple[Wait, Process, int]]:
        """Return waits of this group with their processes, the next due first; those *overdue_ms* late at least."""
        late = f"AND w.due_ms <= {self.now_sql()} - {int(overdue_ms)} " if overdue_ms is not None else ""
        rows = await self.read(
            f"SELECT {self.now_sql()}, {_WAIT}, {_PROCESS} FROM sealbus_waits w JOIN sealbus_processes p "
            "ON p.id = w.process WHERE w.namespace = $1 AND (CAST($2 AS text) IS NULL OR w.grp = $2) "
            f"{late}ORDER BY w.due_ms LIMIT $3",
            self._namespace,
            self._group,
            max_rows,
        )
        return [(_wait(row[1:10]), process_in_row(row[10:]), int(row[0])) for row in rows]

    async def count_waits(self, transaction: Transaction, beginning: str) -> int:
        """Return how many waits of this group have a name with this *beginning*, as *transaction* sees them."""
        row = await transaction.fetchrow(
            "SELECT count(*) FROM sealbus_waits WHERE namespace = $1 AND grp = $2 AND name LIKE $3",
            self._namespace,
            self._group,
            f"{beginning}%",
        )
        return 0 if row is None else int(row[0])

    async def count_open_waits(self, beginning: str) -> int:
        """Return how many waits of this group have a name with this *beginning*."""
        rows = await self.read(
            "SELECT count(*) FROM sealbus_waits WHERE namespace = $1 AND grp = $2 AND name LIKE $3",
            self._namespace,
            self._group,
            f"{beginning}%",
        )
        return int(rows[0][0])

    async def of_owner(self, saga: str, task_id: str, sender: str, owner: str) -> list[Process]:
        """Return the processes of *saga* that *owner* has opened for a task of *sender*, finished ones too."""
        rows = await self.read(
            f"SELECT {_PROCESS} FROM sealbus_processes p WHERE p.namespace = $1 AND p.grp = $2 AND p.task_id = $3 "
            "AND p.sender = $4 AND p.saga = $5 AND p.owner = $6 ORDER BY p.opened_ms LIMIT 1000",
            self._namespace,
            self._group,
            task_id,
            sender,
            saga,
            owner,
        )
        return [process_in_row(row) for row in rows]

    async def open_by_saga(self) -> dict[str, int]:
        """Return how many processes are open in the namespace, of whatever group, by saga."""
        rows = await self.read(
            "SELECT saga, count(*) FROM sealbus_processes WHERE namespace = $1 AND status = 'open' GROUP BY saga",
            self._namespace,
        )
        return {str(saga): int(count) for saga, count in rows}

    async def oldest_open_ms(self, saga: str) -> int | None:
        """Return when the oldest open process of *saga* in the namespace, of whatever group, was opened."""
        rows = await self.read(
            "SELECT min(opened_ms) FROM sealbus_processes WHERE namespace = $1 AND status = 'open' AND saga = $2",
            self._namespace,
            saga,
        )
        return None if rows[0][0] is None else int(rows[0][0])

    async def counts(self) -> tuple[Mapping[str, int], int]:
        """Return the open processes by saga, and how many waits are a minute overdue."""
        rows = await self.read(
            "SELECT saga, count(*) FROM sealbus_processes WHERE namespace = $1 AND grp = $2 AND status = 'open' "
            "GROUP BY saga",
            self._namespace,
            self._group,
        )
        late = await self.read(
            "SELECT count(*) FROM sealbus_waits WHERE namespace = $1 AND grp = $2 "
            f"AND due_ms <= {self.now_sql()} - {AGAIN_MS}",
            self._namespace,
            self._group,
        )
        return {str(saga): int(count) for saga, count in rows}, int(late[0][0])

    async def next_nudge_s(self) -> float | None:
        """Return the seconds until the next nudge; None without waits. A nudge is repeated while its wait stands."""
        rows = await self.read(
            f"SELECT min(nudge_ms) - {self.now_sql()} FROM sealbus_waits WHERE namespace = $1 AND grp = $2",
            self._namespace,
            self._group,
        )
        return None if rows[0][0] is None else max(0.0, float(rows[0][0]) / 1000)

    # Writes of a step.

    async def write(self, transaction: Transaction, changes: Sequence[ProcessChange]) -> bool:
        """Write *changes*; False: a row has changed since it was read, so roll back and read again."""
        for each in self.writes_of(changes):
            if each.must_return:
                if await transaction.fetchrow(each.statement, *each.arguments) is None:
                    return False
            else:
                await transaction.execute(each.statement, *each.arguments)
        self.written(changes)
        return True

    def written(self, changes: Sequence[ProcessChange]) -> None:
        """Tell of each process that *changes* have ended."""
        for change in changes:
            if change.after.status == "finished":
                self._ended(change.after)

    def writes_of(self, changes: Sequence[ProcessChange]) -> list[Write]:
        """Return what writes *changes* in one transaction.

        One that must return a row and returns none: that row has changed since it was read.
        """
        return [write for change in changes for write in self._advancing(change)]

    def _advancing(self, change: ProcessChange) -> Iterator[Write]:
        before, after = change.before, change.after
        if change.guard is not None:
            yield from self._guarding(change.guard)
        if before is None:
            yield self.timed(
                "INSERT INTO sealbus_processes (id, namespace, grp, saga, key, version, status, shape, state, opener, "
                "trust, owner, sender, task_id, opened_ms, changed_ms, keep_until_ms) VALUES ($1, $2, $3, $4, $5, $6, "
                "$7, $8, $9, $10, $11, $12, $13, $14, {now}, {now}, {now} + $15) ON CONFLICT (id) DO NOTHING "
                "RETURNING version",
                after.id,
                after.namespace,
                after.group,
                after.saga,
                after.key,
                after.version,
                after.status,
                after.shape,
                after.state,
                after.opener,
                after.trust,
                after.owner,
                after.sender,
                after.task_id,
                change.keep_ms,
                must_return=True,
            )
        else:
            yield self.timed(
                "UPDATE sealbus_processes SET version = $3, status = $4, shape = $5, state = $6, trust = $7, "
                "changed_ms = {now}, keep_until_ms = {now} + $8 WHERE id = $1 AND version = $2 RETURNING version",
                after.id,
                before.version,
                after.version,
                after.status,
                after.shape,
                after.state,
                after.trust,
                change.keep_ms,
                must_return=True,
            )
        if change.acted is not None:
            yield self.timed("SELECT id FROM sealbus_waits WHERE id = $1", change.acted, must_return=True)
        if after.status == "finished":
            yield self.timed("DELETE FROM sealbus_waits WHERE process = $1", after.id)
        else:
            # A name that is armed again replaces its row; a process that is opened has none.
            gone = dict.fromkeys([*change.ended, *(wait.name for wait in change.armed if before is not None)])
            for name in gone:
                yield self.timed("DELETE FROM sealbus_waits WHERE process = $1 AND name = $2", after.id, name)
        for wait in change.armed:
            yield self.timed(
                "INSERT INTO sealbus_waits (id, process, name, namespace, grp, addressee, seal, many, due_ms, "
                "nudge_ms) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, {now} + $9, {now} + $9)",
                wait.id,
                after.id,
                wait.name,
                after.namespace,
                after.group,
                wait.addressee,
                wait.seal,
                wait.many,
                wait.after_ms,
            )
        if change.frees_holds:
            yield self.timed("DELETE FROM sealbus_holds WHERE process = $1", after.id)
        yield from change.beside
        for hold in change.holds:
            yield self.timed(
                "INSERT INTO sealbus_holds (process, seal, record) VALUES ($1, $2, $3) "
                "ON CONFLICT (process, seal) DO UPDATE SET record = excluded.record",
                hold.process,
                hold.seal,
                hold.record,
            )

    def _guarding(self, guard: WaitGuard) -> Iterator[Write]:
        if self._inbox.dialect == "postgres":
            # Two steps that end two of the waits at once would each count the other's: the second one waits here.
            yield Write(
                "SELECT id FROM sealbus_waits WHERE namespace = $1 AND grp = $2 AND name LIKE $3 ORDER BY id "
                "FOR UPDATE",
                (self._namespace, self._group, f"{guard.beginning}%"),
            )
        yield Write(
            "SELECT 1 WHERE $4 = (SELECT count(*) FROM sealbus_waits WHERE namespace = $1 AND grp = $2 "
            "AND name LIKE $3)",
            (self._namespace, self._group, f"{guard.beginning}%", guard.count),
            True,
        )

    def timed(self, statement: str, *arguments: Any, must_return: bool = False) -> Write:
        """Return a write; the store's present stands for `{now}`.

        As an argument where it can be one: a database keeps the plan of a statement that comes again.
        """
        is_timed = "{now}" in statement
        if is_timed and self._inbox.dialect == "sqlite":
            statement = statement.replace("{now}", f"${len(arguments) + 1}")
            arguments = (*arguments, int(self._clock.now_ms()))
        elif is_timed:
            statement = statement.replace("{now}", self.now_sql())
        return Write(statement, tuple(storable_row(arguments)), must_return)

    async def ask_to_cancel(self, process: Process, note: str) -> bool:
        """Ask the group's workers to end *process* as soon as one runs; False if that was asked already."""
        now = self.now_sql()
        async with _own(self._inbox) as transaction:
            made = await transaction.fetchrow(
                "INSERT INTO sealbus_waits (id, process, name, namespace, grp, addressee, seal, many, due_ms, "
                f"nudge_ms, note) VALUES ($1, $2, $3, $4, $5, NULL, NULL, false, {now}, {now}, $6) "
                "ON CONFLICT (process, name) DO NOTHING RETURNING id",
                self.ids.timer(process.id, CANCEL_WAIT, process.version),
                process.id,
                CANCEL_WAIT,
                process.namespace,
                process.group,
                note,
            )
        return made is not None

    # The sweeper's.

    async def sweep(self) -> list[Swept]:
        """Take up to 200 waits that are to be nudged, and mark them for a minute."""
        due = await self.read(
            f"SELECT 1 FROM sealbus_waits WHERE namespace = $1 AND grp = $2 AND nudge_ms <= {self.now_sql()} LIMIT 1",
            self._namespace,
            self._group,
        )
        if not due:
            return []
        lock = " FOR UPDATE SKIP LOCKED" if self._inbox.dialect == "postgres" else ""
        async with _own(self._inbox) as transaction:
            rows = await transaction.fetch(
                f"UPDATE sealbus_waits SET nudges = nudges + 1, nudge_ms = {self.now_sql()} + {AGAIN_MS} WHERE id IN ("
                f"SELECT id FROM sealbus_waits WHERE namespace = $1 AND grp = $2 AND nudge_ms <= {self.now_sql()} "
                f"ORDER BY nudge_ms LIMIT {_SWEPT_AT_ONCE}{lock}) "
                "RETURNING id, name, due_ms, nudge_ms, nudges, process",
                self._namespace,
                self._group,
            )
            found = []
            for identity, name, due_ms, marked_ms, number, process in rows:
                opener = await transaction.fetchrow("SELECT opener FROM sealbus_processes WHERE id = $1", process)
                if opener is not None:
                    swept = Swept(
                        id=identity,
                        name=name,
                        due_ms=due_ms,
                        opener=bytes(opener[0]),
                        marked_ms=marked_ms,
                        number=number,
                    )
                    found.append(swept)
        return found

    async def nudged(self, swept: Sequence[Swept]) -> None:
        """Note that the nudges of *swept* are in the log: while a wait stands, its next ones come ever later."""
        async with _own(self._inbox) as transaction:
            # Two workers that note the same waits, all in one order, do not wait for each other.
            for wait in sorted(swept, key=lambda each: each.id):
                # A row that was armed again or nudged by another worker meanwhile stays as it is.
                await transaction.execute(
                    f"UPDATE sealbus_waits SET nudge_ms = {self.now_sql()} + {again_ms(wait.number)} WHERE id = $1 "
                    "AND nudge_ms = $2",
                    wait.id,
                    wait.marked_ms,
                )

    async def not_yet(self, wait: str) -> None:
        """Nudge *wait* when it is due: it was looked at too early. Its time and its number stay as they are."""
        async with _own(self._inbox) as transaction:
            await transaction.execute(
                "UPDATE sealbus_waits SET nudge_ms = due_ms WHERE id = $1 AND nudge_ms > due_ms", wait
            )

    async def purge(self) -> int:
        """Delete processes that have been finished for long enough; return how many."""
        async with _own(self._inbox) as transaction:
            rows = await transaction.fetch(
                "DELETE FROM sealbus_processes WHERE id IN (SELECT id FROM sealbus_processes WHERE namespace = $1 "
                f"AND grp = $2 AND status = 'finished' AND keep_until_ms < {self.now_sql()} LIMIT {_PURGED_AT_ONCE}) "
                "RETURNING id",
                self._namespace,
                self._group,
            )
        return len(rows)

    async def change(self, change: ProcessChange, first: Sequence[Write] = ()) -> bool:
        """Write *change* in a transaction of its own, as an operator's verb does; False: its row has changed.

        *first* is written before it, under the same condition.
        """
        if not await self.write_whole([*first, *self.writes_of([change])]):
            return False
        self.written([change])
        return True

    async def write_whole(self, writes: Sequence[Write]) -> bool:
        """Make *writes* durable together; False: one that must return a row has returned none, and none is written."""
        return await self._inbox.write(writes) == "written"

    @property
    def dialect(self) -> SqlDialect:
        """The SQL dialect of the statements."""
        return self._inbox.dialect

    def transaction(self) -> AbstractAsyncContextManager[Transaction]:
        """Return a transaction that is committed where the body ends well."""
        return _own(self._inbox)

    async def read(self, statement: str, *arguments: Any) -> list[tuple[Any, ...]]:
        """Run *statement*, which changes nothing, outside every transaction, and return its rows."""
        return list(map(restored_row, await self._inbox.read(statement, *storable_row(arguments))))

    def now_sql(self) -> str:
        """Return the store's present in ms, as SQL."""
        if self._inbox.dialect == "postgres":
            return "CAST(extract(epoch FROM clock_timestamp()) * 1000 AS bigint)"
        return str(int(self._clock.now_ms()))


class _Statements:
    """The store's own statements in a *transaction*, perhaps of a handler: what no database holds in a text is escaped.

    A saga's key may have any character that JSON has.
    """

    def __init__(self, transaction: Transaction) -> None:
        self._transaction = transaction

    async def execute(self, statement: str, *arguments: Any) -> None:
        await self._transaction.execute(statement, *storable_row(arguments))

    async def fetch(self, statement: str, *arguments: Any) -> list[tuple[Any, ...]]:
        return list(map(restored_row, await self._transaction.fetch(statement, *storable_row(arguments))))

    async def fetchrow(self, statement: str, *arguments: Any) -> tuple[Any, ...] | None:
        row = await self._transaction.fetchrow(statement, *storable_row(arguments))
        return None if row is None else restored_row(row)

    async def rollback(self) -> None:
        await self._transaction.rollback()


@asynccontextmanager
async def _own(inbox: Inbox) -> AsyncGenerator[Transaction]:
    """Yield a transaction that is committed where the body ends well."""
    transaction = await inbox.begin()
    try:
        yield _Statements(transaction)
        await transaction.commit()
    finally:
        await transaction.rollback()


def again_ms(number: int) -> int:
    """Return how long after its *number*-th nudge a wait that still stands is nudged again. Pure."""
    return min(MAX_AGAIN_MS, FIRST_AGAIN_MS << min(number - 1, 16))


def process_in_row(row: Sequence[Any]) -> Process:
    """Return the process in *row*, which has `PROCESS_COLUMNS`."""
    identity, namespace, group, saga, key, version, status, shape, state, opener, trust, *more = row
    owner, sender, task_id, *times = more
    return Process(
        id=bytes(identity),
        namespace=namespace,
        group=group,
        saga=saga,
        key=key,
        version=int(version),
        status=status,
        shape=shape,
        state=bytes(state),
        opener=bytes(opener),
        trust=trust,
        owner=owner,
        sender=sender,
        task_id=task_id,
        opened_ms=int(times[0]),
        changed_ms=int(times[1]),
        keep_until_ms=int(times[2]),
    )


def _wait(row: Sequence[Any]) -> Wait:
    identity, process, name, addressee, seal, many, due_ms, nudge_ms, note = row
    return Wait(
        id=identity,
        process=bytes(process),
        name=name,
        addressee=addressee,
        seal=seal,
        many=bool(many),
        due_ms=int(due_ms),
        nudge_ms=int(nudge_ms),
        note=note,
    )
