"""AuditIndex: conversations and daily sums of costs, derived from the audit's rows and kept beside them.

Owns their tables and every statement about them. A position of each partition says which rows are in them: it moves in
the transaction that adds the rows, so every row counts once. Rows that were written without the index, before it was
there or by older code, are added later in steps. A conversation of which content was erased is derived again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeAlias

import msgspec

from bus.topics.names import read_topic
from consumers.operations.audit.conversation_search import WordSearch, conditions_of
from consumers.operations.audit.conversations import (
    ConversationFilter,
    ConversationPage,
    ConversationSummary,
    added,
    conversation_row,
    conversation_state,
    conversation_summary,
    conversation_words,
)
from consumers.operations.audit.costs import CellKey, CostDimension, CostSum, CostSums, cells_of, day_text, sums_of
from consumers.operations.audit.databases import AuditDatabase, Statements
from consumers.operations.audit.rows import AuditContent, AuditRow

__all__ = ["AuditIndex", "RowAndContent", "Span"]

INDEX_VERSION: Final = 1
_SCHEMA_LOCK: Final = 0x5EA1B051
_TABLES: Final = (
    "CREATE TABLE sealbus_audit_index (version integer NOT NULL)",
    """CREATE TABLE sealbus_audit_indexed (
  topic text NOT NULL, part integer NOT NULL, next_offset bigint NOT NULL, rows bigint NOT NULL,
  PRIMARY KEY (topic, part))""",
    """CREATE TABLE sealbus_audit_conversations (
  number {serial}, namespace text NOT NULL, id text NOT NULL, first_type text NOT NULL, opener text NOT NULL,
  state text NOT NULL, first_ms bigint NOT NULL, last_ms bigint NOT NULL, summary text NOT NULL,
  UNIQUE (namespace, id))""",
    "CREATE INDEX sealbus_audit_conversations_by_time ON sealbus_audit_conversations (namespace, last_ms, id)",
    "CREATE INDEX sealbus_audit_conversations_by_state ON sealbus_audit_conversations (namespace, state, last_ms, id)",
    "CREATE INDEX sealbus_audit_conversations_by_type ON sealbus_audit_conversations (namespace, first_type, last_ms)",
    """CREATE TABLE sealbus_audit_parties (
  agent text NOT NULL, number bigint NOT NULL, PRIMARY KEY (agent, number))""",
    "CREATE INDEX sealbus_audit_parties_by_number ON sealbus_audit_parties (number)",
    """CREATE TABLE sealbus_audit_rebuilds (
  namespace text NOT NULL, id text NOT NULL, PRIMARY KEY (namespace, id))""",
    """CREATE TABLE sealbus_audit_costs (
  namespace text NOT NULL, day bigint NOT NULL, agent text NOT NULL, model text NOT NULL, conversation text NOT NULL,
  tokens_in bigint NOT NULL, tokens_out bigint NOT NULL, cost double precision NOT NULL, calls bigint NOT NULL,
  PRIMARY KEY (namespace, day, agent, model, conversation))""",
)
_WORDS_POSTGRES: Final = (
    "CREATE TABLE sealbus_audit_words (rowid bigint PRIMARY KEY, words tsvector NOT NULL)",
    "CREATE INDEX sealbus_audit_words_by_word ON sealbus_audit_words USING gin (words)",
)
_WORDS_FTS5: Final = (
    """CREATE VIRTUAL TABLE sealbus_audit_words USING fts5 (words, tokenize = "unicode61 remove_diacritics 0")""",
)
_WORDS_PLAIN: Final = ("CREATE TABLE sealbus_audit_words (rowid INTEGER PRIMARY KEY, words text NOT NULL)",)
_CHUNKS: Final = (1, 8, 64, 256)
"""How many ids one statement names: few different statements, since each is prepared and kept."""
_STEP_ROWS: Final = 1_000
_REBUILD: Final = 50
_MAX_PAGE: Final = 500
_MAX_SUMS: Final = 100
_COST_SUMS: Final = "sum(s.tokens_in), sum(s.tokens_out), sum(s.cost), sum(s.calls)"
_COST_DAYS: Final = "WHERE s.namespace = $1 AND s.day >= $2 AND s.day <= $3"
_PERSON: Final = "COALESCE(c.opener, '')"

_ROW: Final = (
    "r.topic, r.part, r.off, r.through, r.before, r.kind, r.message_type, r.appended_ms, r.verdict, r.reason, "
    "r.commitment, r.hash"
)
_CONTENT: Final = (
    "c.message_id, c.conversation, c.cause, c.task, c.sender, c.recipient, c.seal, c.sealed_at, c.classification, "
    "c.facts"
)
_encode: Final = msgspec.json.Encoder().encode
_decode: Final = msgspec.json.Decoder(ConversationSummary).decode

RowAndContent: TypeAlias = tuple[AuditRow, AuditContent | None]
_Key: TypeAlias = tuple[str, str]
"""Namespace and id of a conversation."""


class Span(msgspec.Struct, frozen=True, kw_only=True):
    """The offsets of one partition from *begin* to before *end*."""

    topic: str
    partition: int
    begin: int
    end: int


class _Stored(msgspec.Struct, frozen=True):
    number: int
    summary: ConversationSummary


class AuditIndex:
    """The index in *database*; `is_there` says whether this version of it exists."""

    def __init__(self, database: AuditDatabase, namespace: str) -> None:
        self._database = database
        self._namespace = namespace
        self._is_sqlite = database.bytes_type == "BLOB"
        self._search: WordSearch = "plain" if self._is_sqlite else "tsvector"
        self.is_there = False

    async def open(self, *, create: bool) -> None:
        """Look whether the index is there; make its tables if *create*."""
        await self._look(self._database.read)
        if self.is_there or not create:
            return
        has_fts = self._is_sqlite and bool(
            await self._database.read("SELECT 1 FROM pragma_compile_options WHERE compile_options = 'ENABLE_FTS5'")
        )
        async with self._database.transaction() as statements:
            if not self._is_sqlite:
                await statements.fetch("SELECT pg_advisory_xact_lock($1)", _SCHEMA_LOCK)
            # Another process may have made them meanwhile; a newer version's are left alone.
            if await self._has_table(statements.fetch):
                await self._look(statements.fetch)
                return
            words = _WORDS_FTS5 if has_fts else _WORDS_PLAIN if self._is_sqlite else _WORDS_POSTGRES
            serial = "INTEGER PRIMARY KEY" if self._is_sqlite else "bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY"
            for table in (*_TABLES, *words):
                await statements.fetch(table.format(serial=serial))
            await statements.fetch("INSERT INTO sealbus_audit_index (version) VALUES ($1)", INDEX_VERSION)
        await self._look(self._database.read)

    async def _has_table(self, fetch: Any) -> bool:
        tables = (
            "SELECT count(*) FROM sqlite_master WHERE name = 'sealbus_audit_index'"
            if self._is_sqlite
            else "SELECT count(*) FROM pg_tables WHERE tablename = 'sealbus_audit_index' "
            "AND schemaname = ANY (current_schemas(false))"
        )
        return bool((await fetch(tables))[0][0])

    async def _look(self, fetch: Any) -> None:
        if not await self._has_table(fetch):
            return
        version = (await fetch("SELECT max(version) FROM sealbus_audit_index"))[0][0]
        # Newer code adds later what this one writes without it.
        self.is_there = version == INDEX_VERSION
        if self._is_sqlite:
            made = await fetch("SELECT sql FROM sqlite_master WHERE name = 'sealbus_audit_words'")
            self._search = "fts5" if made and "fts5" in made[0][0] else "plain"

    # Writing.

    async def append(self, statements: Statements, span: Span, rows: Sequence[RowAndContent]) -> None:
        """Add *rows*, those of *span*, in the transaction that stores them.

        Where the index has not come to their begin yet, `step` adds them in their turn.
        """
        if rows and await self._position(statements, span.topic, span.partition) == span.begin:
            await self._add(statements, span, rows)

    async def step(self) -> int:
        """Add a page of rows that the index lacks, or derive some conversations again; return the number of both."""
        if not self.is_there:
            return 0
        behind = await self._database.read(
            "SELECT h.topic, h.part FROM sealbus_audit_heads h LEFT JOIN sealbus_audit_indexed i "
            "ON i.topic = h.topic AND i.part = h.part "
            "WHERE substr(h.topic, 1, length(CAST($1 AS text))) = $1 AND h.next_offset > COALESCE(i.next_offset, 0) "
            "LIMIT 1",
            f"{self._namespace}.",
        )
        return await self._catch_up(*behind[0]) if behind else await self.derive_again()

    async def _catch_up(self, topic: str, partition: int) -> int:
        async with self._database.transaction() as statements:
            begin = await self._position(statements, topic, partition)
            found = await statements.fetch(
                f"SELECT {_ROW}, {_CONTENT} FROM sealbus_audit_rows r LEFT JOIN sealbus_audit_content c "  # noqa: S608
                "ON c.topic = r.topic AND c.part = r.part AND c.off = r.off "
                f"WHERE r.topic = $1 AND r.part = $2 AND r.off >= $3 ORDER BY r.off LIMIT {_STEP_ROWS}",
                topic,
                partition,
                begin,
            )
            rows = [_row_in(each) for each in found]
            if not rows:
                # Without rows there is nothing to add up to the head, and the place must not be asked for again.
                await statements.fetch(
                    "UPDATE sealbus_audit_indexed SET next_offset = (SELECT next_offset FROM sealbus_audit_heads "
                    "WHERE topic = $1 AND part = $2) WHERE topic = $1 AND part = $2",
                    topic,
                    partition,
                )
                return 1
            end = rows[-1][0].through + 1
            await self._add(statements, Span(topic=topic, partition=partition, begin=begin, end=end), rows)
        return len(rows)

    async def _position(self, statements: Statements, topic: str, partition: int) -> int:
        """Return up to where the index has the rows of a partition, and keep others from moving it."""
        await statements.fetch(
            "INSERT INTO sealbus_audit_indexed VALUES ($1, $2, 0, 0) ON CONFLICT DO NOTHING", topic, partition
        )
        found = await statements.fetch(
            f"SELECT next_offset FROM sealbus_audit_indexed WHERE topic = $1 AND part = $2{self._locking}",  # noqa: S608
            topic,
            partition,
        )
        return int(found[0][0])

    @property
    def _locking(self) -> str:
        return "" if self._is_sqlite else " FOR UPDATE"

    async def _add(self, statements: Statements, span: Span, rows: Sequence[RowAndContent]) -> None:
        found: dict[_Key, ConversationSummary] = {}
        for key, summary in _summaries(rows):
            found[key] = added(found[key], summary) if key in found else summary
        await self._store(statements, found, is_new=False)
        await self._add_costs(statements, rows)
        await statements.fetch(
            "UPDATE sealbus_audit_indexed SET next_offset = $1, rows = rows + $2 WHERE topic = $3 AND part = $4",
            span.end,
            len(rows),
            span.topic,
            span.partition,
        )

    async def _store(self, statements: Statements, found: Mapping[_Key, ConversationSummary], *, is_new: bool) -> None:
        """Add *found* to what is stored, or put it in its place if *is_new*. In the order of keys: two writers of one
        conversation would otherwise wait for each other."""
        keys = sorted(found)
        await statements.many(
            "INSERT INTO sealbus_audit_conversations "
            "(namespace, id, first_type, opener, state, first_ms, last_ms, summary) "
            "VALUES ($1, $2, '', '', '', 0, 0, '{}') ON CONFLICT DO NOTHING",
            keys,
        )
        stored = await self._stored(statements, keys)
        changed, parties, words = list[tuple[Any, ...]](), list[tuple[str, int]](), list[tuple[int, str]]()
        for key in keys:
            known = stored[key]
            summary = found[key] if is_new else added(known.summary, found[key])
            first = summary.first
            changed.append(
                (
                    known.number,
                    "" if first is None else first.message_type,
                    "" if first is None else first.opener,
                    conversation_state(summary),
                    summary.first_ms or 0,
                    summary.last_ms,
                    _encode(summary).decode(),
                )
            )
            parties += [(agent, known.number) for agent in summary.parties if agent not in known.summary.parties]
            if (first, summary.parties) != (known.summary.first, known.summary.parties):
                words.append((known.number, conversation_words(summary)))
        await statements.many(
            "UPDATE sealbus_audit_conversations SET first_type = $2, opener = $3, state = $4, first_ms = $5, "
            "last_ms = $6, summary = $7 WHERE number = $1",
            changed,
        )
        await statements.many("INSERT INTO sealbus_audit_parties VALUES ($1, $2) ON CONFLICT DO NOTHING", parties)
        await statements.many(
            "INSERT OR REPLACE INTO sealbus_audit_words (rowid, words) VALUES ($1, $2)"
            if self._is_sqlite
            else "INSERT INTO sealbus_audit_words (rowid, words) "
            "VALUES ($1, array_to_tsvector(string_to_array(CAST($2 AS text), ' '))) "
            "ON CONFLICT (rowid) DO UPDATE SET words = excluded.words",
            words,
        )

    async def _stored(self, statements: Statements, keys: Sequence[_Key]) -> dict[_Key, _Stored]:
        found: dict[_Key, _Stored] = {}
        by_namespace: dict[str, list[str]] = {}
        for namespace, identity in keys:
            by_namespace.setdefault(namespace, []).append(identity)
        for namespace, identities in by_namespace.items():
            for chunk in _chunked(identities):
                rows = await statements.fetch(
                    "SELECT number, id, summary FROM sealbus_audit_conversations "  # noqa: S608 - numbers
                    f"WHERE namespace = $1 AND id IN ({_arguments(2, len(chunk))}) ORDER BY id{self._locking}",
                    namespace,
                    *chunk,
                )
                for number, identity, text in rows:
                    found[namespace, identity] = _Stored(number, _decode(text))
        return found

    async def _add_costs(
        self, statements: Statements, rows: Sequence[RowAndContent], *, sign: int = 1
    ) -> Sequence[CellKey]:
        """Add what *rows* report to its cells, or take it away with *sign* -1; return the cells."""
        cells = cells_of((_namespace_of(row), row, content) for row, content in rows)
        changes = [
            (*key, sign * each.tokens_in, sign * each.tokens_out, sign * each.cost, sign * each.calls)
            for key, each in sorted(cells.items())
        ]
        await statements.many(
            "INSERT INTO sealbus_audit_costs VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9) "
            "ON CONFLICT (namespace, day, agent, model, conversation) DO UPDATE SET "
            "tokens_in = sealbus_audit_costs.tokens_in + excluded.tokens_in, "
            "tokens_out = sealbus_audit_costs.tokens_out + excluded.tokens_out, "
            "cost = sealbus_audit_costs.cost + excluded.cost, calls = sealbus_audit_costs.calls + excluded.calls",
            changes,
        )
        return sorted(cells)

    # Erasing.

    async def lock(self, statements: Statements) -> None:
        """Keep every position where it is until the transaction ends."""
        if not self._is_sqlite:
            await statements.fetch("SELECT topic FROM sealbus_audit_indexed ORDER BY topic, part FOR UPDATE")

    async def forget(self, statements: Statements, rows: Sequence[RowAndContent]) -> None:
        """Take *rows*, whose content is being erased, out of the index, in the transaction that erases it.

        Their conversations are deleted, and derived again from what is left by `step`. Sums of costs stay, without
        names.
        """
        positions = {
            (topic, part): int(end)
            for topic, part, end in await statements.fetch("SELECT topic, part, next_offset FROM sealbus_audit_indexed")
        }
        known = [each for each in rows if each[0].offset < positions.get((each[0].topic, each[0].partition), 0)]
        keys = sorted({key for key, _ in _summaries(known)})
        await statements.many("INSERT INTO sealbus_audit_rebuilds VALUES ($1, $2) ON CONFLICT DO NOTHING", keys)
        await self._delete(statements, [each.number for each in (await self._stored(statements, keys)).values()])
        emptied = await self._add_costs(statements, known, sign=-1)
        await self._add_costs(statements, [(row, _nameless(content)) for row, content in known])
        await statements.many(
            "DELETE FROM sealbus_audit_costs WHERE namespace = $1 AND day = $2 AND agent = $3 AND model = $4 "
            "AND conversation = $5 AND calls <= 0",
            emptied,
        )

    async def _delete(self, statements: Statements, numbers: Sequence[int]) -> None:
        for table, column in (("conversations", "number"), ("parties", "number"), ("words", "rowid")):
            await statements.many(
                f"DELETE FROM sealbus_audit_{table} WHERE {column} = $1",  # noqa: S608 - names of ours
                [(number,) for number in numbers],
            )

    async def derive_again(self) -> int:
        """Derive some conversations again of which content was erased; return how many."""
        if not self.is_there or not await self._database.read("SELECT 1 FROM sealbus_audit_rebuilds LIMIT 1"):
            return 0
        async with self._database.transaction() as statements:
            await self.lock(statements)
            keys = [
                (namespace, identity)
                for namespace, identity in await statements.fetch(
                    f"SELECT namespace, id FROM sealbus_audit_rebuilds ORDER BY namespace, id LIMIT {_REBUILD}"  # noqa: S608
                )
            ]
            stored = await self._stored(statements, keys)
            await self._delete(statements, [each.number for each in stored.values()])
            left = {key: summary for key in keys if (summary := await self._derived(statements, *key)) is not None}
            await self._store(statements, left, is_new=True)
            await statements.many("DELETE FROM sealbus_audit_rebuilds WHERE namespace = $1 AND id = $2", keys)
        if not await self._database.read("SELECT 1 FROM sealbus_audit_rebuilds LIMIT 1"):
            await self._tidy()
        return max(1, len(keys))

    async def _derived(self, statements: Statements, namespace: str, identity: str) -> ConversationSummary | None:
        summary: ConversationSummary | None = None
        after: tuple[str, int, int] = ("", 0, -1)
        while True:
            found = await statements.fetch(
                f"SELECT {_ROW}, {_CONTENT} FROM sealbus_audit_content c JOIN sealbus_audit_rows r "  # noqa: S608
                "ON c.topic = r.topic AND c.part = r.part AND c.off = r.off "
                "JOIN sealbus_audit_indexed i ON i.topic = r.topic AND i.part = r.part AND r.off < i.next_offset "
                "WHERE c.conversation = $1 AND (c.topic, c.part, c.off) > ($2, $3, $4) "
                f"ORDER BY c.topic, c.part, c.off LIMIT {_STEP_ROWS}",
                identity,
                *after,
            )
            rows = [_row_in(each) for each in found]
            for key, each in _summaries(rows):
                if key == (namespace, identity):
                    summary = each if summary is None else added(summary, each)
            if len(rows) < _STEP_ROWS:
                return summary
            last = rows[-1][0]
            after = last.topic, last.partition, last.offset

    async def _tidy(self) -> None:
        """Have deleted words leave the file: FTS5 keeps them until its parts are merged."""
        if self._search == "fts5":
            async with self._database.transaction() as statements:
                await statements.fetch("INSERT INTO sealbus_audit_words (sealbus_audit_words) VALUES ('optimize')")

    # Reading.

    async def conversations(
        self, wanted: ConversationFilter, *, before: tuple[int, str] | None, limit: int
    ) -> ConversationPage:
        """Return at most *limit* conversations before *before*, the newest first."""
        indexed, recorded = await self._progress()
        limit = max(1, min(limit, _MAX_PAGE))
        asked = conditions_of(wanted, self._namespace, before, self._search)
        found: list[tuple[Any, ...]] = []
        if self.is_there and asked is not None:
            found = await self._database.read(
                "SELECT c.id, c.summary FROM sealbus_audit_conversations c "  # noqa: S608 - no text of anybody
                f"WHERE {asked[0]} ORDER BY c.last_ms DESC, c.id DESC LIMIT {limit + 1}",
                *asked[1],
            )
        rows = tuple(conversation_row(identity, _decode(text)) for identity, text in found[:limit])
        following = (rows[-1].last_ms, rows[-1].id) if len(found) > limit else None
        return ConversationPage(rows=rows, next=following, indexed_rows=indexed, recorded_rows=recorded)

    async def _progress(self) -> tuple[int, int]:
        """Return how many rows of the namespace are indexed, and how many there are."""
        if not self.is_there:
            await self._look(self._database.read)
        tables = ("indexed", "heads") if self.is_there else ("heads",)
        counts = [
            await self._database.read(
                f"SELECT COALESCE(sum(rows), 0) FROM sealbus_audit_{table} "  # noqa: S608 - names of ours
                "WHERE substr(topic, 1, length(CAST($1 AS text))) = $1",
                f"{self._namespace}.",
            )
            for table in tables
        ]
        return (int(counts[0][0][0]) if self.is_there else 0), int(counts[-1][0][0])

    async def costs(self, by: CostDimension, *, days: int, today: int) -> CostSums:
        """Return the sums of the last *days* days up to day *today* (days since 1970, UTC)."""
        indexed, recorded = await self._progress()
        first = today - max(1, days) + 1
        (name, join), sums, where = _named(by), _COST_SUMS, _COST_DAYS
        found, totals = list[tuple[Any, ...]](), list[tuple[Any, ...]]()
        if self.is_there:
            found = await self._database.read(
                f"SELECT {name}, {sums} FROM sealbus_audit_costs s{join} {where} GROUP BY {name} "  # noqa: S608
                f"ORDER BY sum(s.cost) DESC, sum(s.tokens_in + s.tokens_out) DESC, {name} LIMIT {_MAX_SUMS}",
                self._namespace,
                first,
                today,
            )
            totals = await self._database.read(
                f"SELECT count(DISTINCT {name}), {sums} FROM sealbus_audit_costs s{join} {where}",  # noqa: S608
                self._namespace,
                first,
                today,
            )
        rows = [_cost_sum(day_text(each[0]) if by == "day" else each[0], each[1:]) for each in found]
        names, total = (totals[0][0], _cost_sum("", totals[0][1:])) if totals else (0, CostSum(name=""))
        return sums_of(by, rows, total, names=int(names), first=first, indexed=indexed, recorded=recorded, last=today)

    async def costs_each_day(
        self, by: CostDimension, names: Sequence[str], *, days: int, today: int
    ) -> dict[str, list[CostSum]]:
        """Return by name what each of *names* has spent on the last *days* days up to day *today*, by day."""
        if not (self.is_there and names):
            return {}
        name, join = _named(by)
        places = ", ".join(f"${number}" for number in range(4, 4 + len(names)))
        found = await self._database.read(
            f"SELECT {name}, s.day, {_COST_SUMS} FROM sealbus_audit_costs s{join} "  # noqa: S608
            f"{_COST_DAYS} AND {name} IN ({places}) GROUP BY {name}, s.day ORDER BY s.day",
            self._namespace,
            today - max(1, days) + 1,
            today,
            *names,
        )
        each: dict[str, list[CostSum]] = {}
        for row in found:
            each.setdefault(row[0], []).append(_cost_sum(day_text(row[1]), row[2:]))
        return each


def _named(by: CostDimension) -> tuple[str, str]:
    """Return the column of a dimension, and what has to be joined for it."""
    join = " LEFT JOIN sealbus_audit_conversations c ON c.namespace = s.namespace AND c.id = s.conversation"
    return {"day": "s.day", "person": _PERSON}.get(by, f"s.{by}"), join if by == "person" else ""


def _cost_sum(name: str, row: Sequence[Any]) -> CostSum:
    given, out, cost, calls = (each or 0 for each in row)
    return CostSum(name=name, tokens_in=int(given), tokens_out=int(out), cost=float(cost), calls=int(calls))


def _summaries(rows: Iterable[RowAndContent]) -> Iterator[tuple[_Key, ConversationSummary]]:
    for row, content in rows:
        summary = conversation_summary(row, content)
        if summary is not None and content is not None:
            yield (_namespace_of(row), content.conversation_id), summary


def _namespace_of(row: AuditRow) -> str:
    name = read_topic(row.topic)
    return "" if name is None else name.namespace


def _nameless(content: AuditContent | None) -> AuditContent | None:
    """Return *content* with nothing but what it reports as spent."""
    if content is None:
        return None
    return AuditContent(facts=content.facts)


def _row_in(found: Sequence[Any]) -> RowAndContent:
    row = AuditRow(**dict(zip(AuditRow.__struct_fields__, found[:12], strict=True)))
    if found[12] is None:
        return row, None
    return row, AuditContent(**dict(zip(AuditContent.__struct_fields__, found[12:], strict=True)))


def _chunked(names: Sequence[str]) -> Iterator[Sequence[str]]:
    """Yield *names* in pieces of few different lengths; the last name stands in for what a piece lacks."""
    for begin in range(0, len(names), _CHUNKS[-1]):
        piece = names[begin : begin + _CHUNKS[-1]]
        length = next(each for each in _CHUNKS if each >= len(piece))
        yield [*piece, *[piece[-1]] * (length - len(piece))]


def _arguments(first: int, count: int) -> str:
    return ", ".join(f"${number}" for number in range(first, first + count))
