"""AuditStore: rows, heads, content and erasures of one namespace, one SQL for SQLite and PostgreSQL.

Owns the tables and every statement about them. A partition has one writer at a time: one statement moves its head from
the value read to the next one, under a lease, in the transaction that inserts the rows. A second writer changes
nothing.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any, Final

import msgspec

from bus.errors import ConfigurationError
from consumers.operations.audit.conversations import ConversationFilter, ConversationPage
from consumers.operations.audit.costs import CostDimension, CostSum, CostSums
from consumers.operations.audit.databases import AuditDatabase, Statements
from consumers.operations.audit.index import AuditIndex, Span
from consumers.operations.audit.rows import CHAIN_BEGIN, AuditContent, AuditRow

__all__ = ["AuditHead", "AuditStore", "Entry", "Erasure", "AuditRecord"]

AUDIT_SCHEMA_VERSION: Final = 1
LEASE_MS: Final = 15_000
_PAGE: Final = 2_000
_ERASED_AT_ONCE: Final = 2_000
_DAY_MS: Final = 86_400_000
_TABLES: Final = (
    """CREATE TABLE sealbus_audit_schema (version integer NOT NULL)""",
    """CREATE TABLE sealbus_audit_heads (
  topic text NOT NULL, part integer NOT NULL, next_offset bigint NOT NULL, last_offset bigint NOT NULL,
  rows bigint NOT NULL, hash text NOT NULL, holder text NOT NULL, lease_ms bigint NOT NULL,
  PRIMARY KEY (topic, part))""",
    """CREATE TABLE sealbus_audit_rows (
  topic text NOT NULL, part integer NOT NULL, off bigint NOT NULL, through bigint NOT NULL, before bigint NOT NULL,
  kind text NOT NULL, message_type text NOT NULL, appended_ms bigint NOT NULL, verdict text NOT NULL,
  reason text NOT NULL, commitment text NOT NULL, hash text NOT NULL, PRIMARY KEY (topic, part, off))""",
    """CREATE TABLE sealbus_audit_content (
  topic text NOT NULL, part integer NOT NULL, off bigint NOT NULL, key {bytes} NOT NULL, message_id text NOT NULL,
  conversation text NOT NULL, cause text NOT NULL, task text NOT NULL, sender text NOT NULL, recipient text NOT NULL,
  seal text NOT NULL, sealed_at text NOT NULL, classification text NOT NULL, facts text NOT NULL,
  PRIMARY KEY (topic, part, off))""",
    "CREATE INDEX sealbus_audit_by_conversation ON sealbus_audit_content (conversation)",
    "CREATE INDEX sealbus_audit_by_message ON sealbus_audit_content (message_id)",
    "CREATE INDEX sealbus_audit_by_sender ON sealbus_audit_content (sender)",
    """CREATE TABLE sealbus_audit_erasures (
  topic text NOT NULL, part integer NOT NULL, off bigint NOT NULL, at_ms bigint NOT NULL, who text NOT NULL,
  why text NOT NULL, PRIMARY KEY (topic, part, off))""",
)
_ROW: Final = (
    "r.topic, r.part, r.off, r.through, r.before, r.kind, r.message_type, r.appended_ms, r.verdict, r.reason, "
    "r.commitment, r.hash"
)
_CONTENT: Final = (
    "c.message_id, c.conversation, c.cause, c.task, c.sender, c.recipient, c.seal, c.sealed_at, c.classification, "
    "c.facts"
)
_SAME: Final = "c.topic = r.topic AND c.part = r.part AND c.off = r.off"


class AuditHead(msgspec.Struct, frozen=True, kw_only=True):
    """How far one partition is recorded: *next_offset* is read next, *hash* is that of its last row."""

    topic: str
    partition: int
    next_offset: int = 0
    last_offset: int = -1
    rows: int = 0
    hash: str = CHAIN_BEGIN
    holder: str = ""
    lease_ms: int = 0


class Entry(msgspec.Struct, frozen=True):
    """A new row for one record; *content* is None for a row of lost offsets."""

    row: AuditRow
    content: AuditContent | None
    key: bytes


class AuditRecord(msgspec.Struct, frozen=True):
    """A stored row of one record; *content* is None if it was erased or never existed."""

    row: AuditRow
    content: AuditContent | None
    key: bytes = b""
    is_erased: bool = False


class Erasure(msgspec.Struct, frozen=True, kw_only=True):
    """The selection to erase: all content that matches every given field; at least one is given."""

    sender: str = ""
    conversation: str = ""
    message_id: str = ""
    containing: str = ""
    classifications: tuple[str, ...] = ()


class AuditStore:
    """The audit of one namespace in *database*."""

    def __init__(self, database: AuditDatabase, *, namespace: str) -> None:
        self._database = database
        self._prefix = f"{namespace}."
        self._index = AuditIndex(database, namespace)

    async def open(self, *, create: bool) -> None:
        """Connect; create the tables if *create*. Raises ConfigurationError if there are none, or newer ones."""
        await self._database.open()
        version = await self._version()
        if version is None:
            if not create:
                raise ConfigurationError("this database has no audit yet: `sealbus serve audit` writes it")
            async with self._database.transaction() as statements:
                for table in _TABLES:
                    await statements.fetch(table.format(bytes=self._database.bytes_type))
                await statements.fetch("INSERT INTO sealbus_audit_schema (version) VALUES ($1)", AUDIT_SCHEMA_VERSION)
        elif version > AUDIT_SCHEMA_VERSION:
            raise ConfigurationError(
                f"the audit has the tables of a newer version of sealbus ({version}, known is {AUDIT_SCHEMA_VERSION}): "
                "upgrade this one"
            )
        await self._index.open(create=create)

    async def _version(self) -> int | None:
        tables = (
            "SELECT count(*) FROM sqlite_master WHERE name = 'sealbus_audit_schema'"
            if self._database.bytes_type == "BLOB"
            else "SELECT count(*) FROM pg_tables WHERE tablename = 'sealbus_audit_schema' "
            "AND schemaname = ANY (current_schemas(false))"
        )
        if not (await self._database.read(tables))[0][0]:
            return None
        rows = await self._database.read("SELECT max(version) FROM sealbus_audit_schema")
        return int(rows[0][0])

    async def close(self) -> None:
        """Close the database."""
        await self._database.close()

    async def now_ms(self) -> int:
        """Return the store's time."""
        return await self._database.now_ms()

    # Writing.

    async def append(
        self, head: AuditHead, entries: Sequence[Entry], next_offset: int, holder: str
    ) -> AuditHead | None:
        """Insert *entries* after *head*, which *holder* has read; return None if another writer has moved it or has its
        lease.

        Without entries the lease is renewed.
        """
        now_ms = await self._database.now_ms()
        last = entries[-1].row if entries else None
        moved = AuditHead(
            topic=head.topic,
            partition=head.partition,
            next_offset=next_offset,
            last_offset=head.last_offset if last is None else last.offset,
            rows=head.rows + len(entries),
            hash=head.hash if last is None else last.hash,
            holder=holder,
            lease_ms=now_ms + LEASE_MS,
        )
        async with self._database.transaction() as statements:
            if not await self._move(statements, head, moved, now_ms):
                return None
            await statements.many(
                f"INSERT INTO sealbus_audit_rows VALUES ({_locations(12)})",  # noqa: S608 - numbers
                [msgspec.structs.astuple(entry.row) for entry in entries],
            )
            await statements.many(
                f"INSERT INTO sealbus_audit_content VALUES ({_locations(14)})",  # noqa: S608 - numbers
                [
                    (*_location(entry.row), entry.key, *msgspec.structs.astuple(entry.content))
                    for entry in entries
                    if entry.content is not None
                ],
            )
            if self._index.is_there:
                span = Span(topic=head.topic, partition=head.partition, begin=head.next_offset, end=next_offset)
                await self._index.append(statements, span, [(entry.row, entry.content) for entry in entries])
        return moved

    async def index_step(self) -> int:
        """Bring some rows into the index that were written without it; return how much was done, 0 if nothing is
        left."""
        return await self._index.step()

    async def _move(self, statements: Statements, head: AuditHead, moved: AuditHead, now_ms: int) -> bool:
        await statements.fetch(
            "INSERT INTO sealbus_audit_heads VALUES ($1, $2, 0, -1, 0, $3, '', 0) ON CONFLICT DO NOTHING",
            head.topic,
            head.partition,
            CHAIN_BEGIN,
        )
        return bool(
            await statements.fetch(
                "UPDATE sealbus_audit_heads SET next_offset = $1, last_offset = $2, rows = $3, hash = $4, holder = $5, "
                "lease_ms = $6 WHERE topic = $7 AND part = $8 AND next_offset = $9 AND hash = $10 "
                "AND (holder = $5 OR lease_ms < $11) RETURNING rows",
                *msgspec.structs.astuple(moved)[2:],
                head.topic,
                head.partition,
                head.next_offset,
                head.hash,
                now_ms,
            )
        )

    async def release(self, holder: str) -> None:
        """Give up the leases of *holder*, so that another writer goes on at once."""
        async with self._database.transaction() as statements:
            await statements.fetch("UPDATE sealbus_audit_heads SET lease_ms = 0 WHERE holder = $1", holder)

    async def erase(self, what: Erasure, *, who: str, why: str, before_ms: int | None = None) -> int:
        """Delete the content that *what* selects, with its keys; return the number of rows.

        It is done in steps, each whole: what a failure leaves is erased when it is called again.
        """
        conditions, arguments = _conditions(what)
        if before_ms is not None:
            arguments.append(before_ms)
            conditions.append(f"r.appended_ms < ${len(arguments)}")
        now_ms = await self._database.now_ms()
        count, erased = 0, _ERASED_AT_ONCE
        while erased == _ERASED_AT_ONCE:
            async with self._database.transaction() as statements:
                if self._index.is_there:
                    await self._index.lock(statements)
                rows = await statements.fetch(
                    f"SELECT {_ROW}, {_CONTENT} FROM sealbus_audit_content c "  # noqa: S608 - no text of anybody
                    f"JOIN sealbus_audit_rows r ON {_SAME} WHERE {' AND '.join(conditions)} "
                    f"ORDER BY c.topic, c.part, c.off LIMIT {_ERASED_AT_ONCE}",
                    *arguments,
                )
                found = [tuple(row[:3]) for row in rows]
                await statements.many(
                    "INSERT INTO sealbus_audit_erasures VALUES ($1, $2, $3, $4, $5, $6) ON CONFLICT DO NOTHING",
                    [(*location, now_ms, who, why) for location in found],
                )
                await statements.many(
                    "DELETE FROM sealbus_audit_content WHERE topic = $1 AND part = $2 AND off = $3", found
                )
                if self._index.is_there:
                    await self._index.forget(statements, [_row_and_content(row) for row in rows])
            erased = len(found)
            count += erased
        while await self._index.derive_again():
            pass
        return count

    # Reading.

    async def heads(self) -> dict[tuple[str, int], AuditHead]:
        """Return the heads of the namespace by topic and partition."""
        rows = await self._database.read(
            "SELECT topic, part, next_offset, last_offset, rows, hash, holder, lease_ms "  # noqa: S608 - as above
            f"FROM sealbus_audit_heads WHERE {_within('topic')}",
            self._prefix,
        )
        return {(row[0], row[1]): AuditHead(**dict(zip(AuditHead.__struct_fields__, row, strict=True))) for row in rows}

    async def rows(self, topic: str, partition: int) -> AsyncIterator[AuditRecord]:
        """Yield the rows of one partition in their order."""
        after = -1
        while True:
            found = await self._found(
                "r.topic = $1 AND r.part = $2 AND r.off > $3 ORDER BY r.off", topic, partition, after, limit=_PAGE
            )
            for each in found:
                yield each
            if len(found) < _PAGE:
                return
            after = found[-1].row.offset

    async def conversation(self, conversation: str, *, max_rows: int) -> list[AuditRecord]:
        """Return the newest rows of one conversation, in the order in which they were appended."""
        order = "ORDER BY r.appended_ms DESC, r.topic DESC, r.part DESC, r.off DESC"
        found = await self._found(
            f"{_within('r.topic')} AND c.conversation = $2 {order}", self._prefix, conversation, limit=max_rows
        )
        return found[::-1]

    async def message(self, message_id: str, *, max_rows: int = 1_000) -> list[AuditRecord]:
        """Return the rows of one message: where it was appended, and every copy."""
        return await self._found(
            f"{_within('r.topic')} AND c.message_id = $2 ORDER BY r.appended_ms, r.topic, r.part, r.off",
            self._prefix,
            message_id,
            limit=max_rows,
        )

    async def all(self, *, since_ms: int, max_rows: int) -> list[AuditRecord]:
        """Return the newest rows since *since_ms*, the oldest of them first."""
        found = await self._found(
            f"{_within('r.topic')} AND r.appended_ms >= $2 ORDER BY r.appended_ms DESC, r.topic, r.part, r.off DESC",
            self._prefix,
            since_ms,
            limit=max_rows,
        )
        return found[::-1]

    async def conversations(
        self, wanted: ConversationFilter, before: tuple[int, str] | None = None, limit: int = 50
    ) -> ConversationPage:
        """Return at most *limit* (500) conversations that match *wanted*, the newest by their last record first.

        *before* is the `next` of the page before: last ms and id of its last row. The page says how far the index is:
        a database of an older version has none until `sealbus serve audit` has made it.
        """
        return await self._index.conversations(wanted, before=before, limit=limit)

    async def costs(self, by: CostDimension, *, now_ms: int, days: int = 14) -> CostSums:
        """Return what was spent on the last *days* days (UTC) up to that of *now_ms*, by one dimension: the 100 largest
        and the rest as one."""
        return await self._index.costs(by, days=days, today=now_ms // _DAY_MS)

    async def costs_each_day(
        self, by: CostDimension, names: Sequence[str], *, now_ms: int, days: int = 14
    ) -> dict[str, list[CostSum]]:
        """Return by name what each of *names* (64 at most) has spent on these days, one sum for each day with any."""
        return await self._index.costs_each_day(by, names[:64], days=days, today=now_ms // _DAY_MS)

    async def _found(self, where: str, *arguments: Any, limit: int) -> list[AuditRecord]:
        rows = await self._database.read(
            f"SELECT {_ROW}, c.key, {_CONTENT}, e.at_ms FROM sealbus_audit_rows r "  # noqa: S608 - no text of anybody
            f"LEFT JOIN sealbus_audit_content c ON {_SAME} "
            f"LEFT JOIN sealbus_audit_erasures e ON e.topic = r.topic AND e.part = r.part AND e.off = r.off "
            f"WHERE {where} LIMIT {limit}",
            *arguments,
        )
        return [_found_in(row) for row in rows]


def _row_and_content(row: Sequence[Any]) -> tuple[AuditRow, AuditContent]:
    return (
        AuditRow(**dict(zip(AuditRow.__struct_fields__, row[:12], strict=True))),
        AuditContent(**dict(zip(AuditContent.__struct_fields__, row[12:], strict=True))),
    )


def _found_in(row: Sequence[Any]) -> AuditRecord:
    head = AuditRow(**dict(zip(AuditRow.__struct_fields__, row[:12], strict=True)))
    if row[12] is None:
        return AuditRecord(head, None, is_erased=row[-1] is not None)
    return AuditRecord(
        head, AuditContent(**dict(zip(AuditContent.__struct_fields__, row[13:-1], strict=True))), bytes(row[12])
    )


def _within(column: str) -> str:
    """Return the condition that *column* begins with the first argument."""
    return f"substr({column}, 1, length(CAST($1 AS text))) = $1"


def _location(row: AuditRow) -> tuple[str, int, int]:
    return row.topic, row.partition, row.offset


def _locations(count: int) -> str:
    return ", ".join(f"${number}" for number in range(1, count + 1))


def _conditions(what: Erasure) -> tuple[list[str], list[Any]]:
    columns = {"sender": "sender", "conversation": "conversation", "message_id": "message_id"}
    conditions, arguments = [], list[Any]()
    for name, column in columns.items():
        if value := getattr(what, name):
            arguments.append(value)
            # An answer to somebody has them as its recipient.
            also = f" OR c.recipient = ${len(arguments)}" if name == "sender" else ""
            conditions.append(f"(c.{column} = ${len(arguments)}{also})")
    if what.classifications:
        first = len(arguments) + 1
        arguments += what.classifications
        locations = ", ".join(f"${number}" for number in range(first, len(arguments) + 1))
        conditions.append(f"c.classification IN ({locations})")
    if what.containing:
        # As JSON writes it: the facts are JSON.
        arguments.append(msgspec.json.encode(what.containing)[1:-1].decode())
        number = len(arguments)
        # No LIKE: its wildcards would erase more than is asked for.
        conditions.append(f"length(replace(c.facts, CAST(${number} AS text), '')) < length(c.facts)")
    return conditions, arguments
