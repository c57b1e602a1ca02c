"""The index of conversations and the sums of costs: exactly once with the rows, searchable by any text, and made later
for rows that were written without it."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest

from consumers.operations.audit.conversations import (
    ConversationFilter,
    ConversationRow,
    added,
    conversation_row,
    conversation_summary,
)
from consumers.operations.audit.costs import CostSum
from consumers.operations.audit.databases import open_database
from consumers.operations.audit.rows import AuditContent, AuditRow, chained
from consumers.operations.audit.store import AuditHead, AuditStore, Entry, Erasure
from sealbus import App, Reject, RequestFailed, payload
from tests.consumers.operations.audit.test_trail import trail_of
from tests.databases import Postgres

NOW_MS = 1_790_000_000_000
DAY_MS = 86_400_000
TABLES = ("index", "indexed", "conversations", "parties", "rebuilds", "costs", "words")


@pytest.fixture(params=["sqlite", "postgres"])
async def database(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/audit.db"
    server: Postgres = request.getfixturevalue("postgres")
    return await server.create_database()


@asynccontextmanager
async def opened(url: str, *, namespace: str = "agents", create: bool = True) -> AsyncGenerator[AuditStore]:
    store = AuditStore(open_database(url), namespace=namespace)
    await store.open(create=create)
    try:
        yield store
    finally:
        await store.close()


def said(
    message_type: str,
    sender: str,
    to: str = "",
    *,
    at: int = 0,
    cause: str = "",
    conversation: str = "c1",
    kind: str = "message",
    verdict: str = "holds",
    reason: str = "",
    message_id: str = "",
    **facts: Any,
) -> tuple[AuditRow, AuditContent]:
    """A record at *at* milliseconds, in the topic of its type."""
    topic = f"agents.{message_type}" + (".dlq" if kind == "dlq" else "")
    row = AuditRow(
        topic=topic,
        partition=0,
        offset=at,
        through=at,
        before=-1,
        kind=kind,
        message_type=message_type,
        appended_ms=NOW_MS + at,
        verdict=verdict,
        reason=reason,
        commitment="",
    )
    content = AuditContent(
        message_id=message_id or f"{message_type}-{at}",
        conversation_id=conversation,
        causation_id=cause,
        sender=sender,
        recipient=to,
        facts=msgspec.json.encode({"performative": "inform"} | facts).decode(),
    )
    return row, content


async def record(store: AuditStore, *records: tuple[AuditRow, AuditContent]) -> None:
    """Append *records* as the trail does, a topic at a time."""
    by_topic: dict[str, list[tuple[AuditRow, AuditContent]]] = {}
    for row, content in records:
        by_topic.setdefault(row.topic, []).append((row, content))
    for topic, found in by_topic.items():
        found.sort(key=lambda each: each[0].offset)
        head = (await store.heads()).get((topic, 0), AuditHead(topic=topic, partition=0))
        entries = [Entry(chained(row, head.hash), content, b"k") for row, content in found]
        assert await store.append(head, entries, found[-1][0].offset + 1, "me") is not None


async def only(store: AuditStore, **wanted: Any) -> ConversationRow:
    (row,) = (await store.conversations(ConversationFilter(**wanted))).rows
    return row


async def ids(store: AuditStore, **wanted: Any) -> list[str]:
    return [row.id for row in (await store.conversations(ConversationFilter(**wanted))).rows]


REQUEST = said(
    "task.request", "ada@acme", "planner@lab", payload={"goal": "Compare freight offers"}, performative="request"
)


def judged(*records: tuple[AuditRow, AuditContent]) -> ConversationRow:
    summaries = [summary for each in records if (summary := conversation_summary(*each)) is not None]
    found = summaries[0]
    for each in summaries[1:]:
        found = added(found, each)
    return conversation_row("c1", found)


# What one conversation is.


async def test_a_conversation_is_one_row_of_all_its_records(database: str) -> None:
    async with opened(database) as store:
        await record(
            store,
            REQUEST,
            said("usage.reported", "planner@lab", at=1, cause="x", input_tokens=100, output_tokens=20, cost=0.5),
            said("task.result", "planner@lab", "ada@acme", at=2, cause="task.request-0", input_tokens=1),
        )
        row = await only(store)
    assert row == ConversationRow(
        id="c1",
        first_type="task.request",
        about="Compare freight offers",
        opener="ada@acme",
        parties=("ada@acme", "planner@lab"),
        party_count=2,
        messages=3,
        first_ms=NOW_MS,
        last_ms=NOW_MS + 2,
        state="answered",
        reason="",
        tokens_in=101,
        tokens_out=20,
        cost=0.5,
        verdict="holds",
    )


@pytest.mark.parametrize(
    ("state", "records"),
    [
        ("open", ()),
        ("open", [said("status.update", "planner@lab", "ada@acme", at=1, cause="task.request-0")]),
        ("answered", [said("desk.reply", "planner@lab", "ada@acme", at=1, cause="task.request-0", kind="reply")]),
        ("open", [said("tool.result", "tool@lab", "planner@lab", at=1, cause="x")]),
        ("failed", [said("error.reported", "planner@lab", "ada@acme", at=1, cause="x", performative="error")]),
        ("failed", [said("task.failed", "planner@lab", "ada@acme", at=1, cause="x")]),
        ("held", [said("approval.request", "planner@lab", at=1, cause="x", performative="propose")]),
        ("dead", [said("task.request", "ada@acme", "planner@lab", at=1, kind="dlq", reason="handler_failed")]),
    ],
)
def test_the_state_follows_from_the_records(state: str, records: Sequence[tuple[AuditRow, AuditContent]]) -> None:
    assert judged(REQUEST, *records).state == state


def test_a_question_of_a_worker_waits_until_it_is_answered_or_the_task_has_ended() -> None:
    question = said("task.clarification", "planner@lab", "ada@acme", at=1, cause="x", performative="query")
    told = said("task.clarified", "ada@acme", "planner@lab", at=2, cause="task.clarification-1")
    failed = said("error.reported", "planner@lab", "ada@acme", at=3, cause="x", performative="error")
    again = said("task.clarification", "planner@lab", "ada@acme", at=4, cause="x", performative="query")
    assert judged(REQUEST, question).state == "asked"
    assert judged(REQUEST, told, question).state == "open"
    assert judged(REQUEST, question, failed).state == "failed"
    assert judged(REQUEST, question, told, again).state == "asked"


ASKED = said("approval.request", "planner@lab", at=1, cause="x", performative="propose", payload={"quorum": 2})
AGREED = [
    said("approval.decision", f"{name}@acme", at=at, cause="approval.request-1", performative="accept")
    for at, name in ((2, "bo"), (3, "cy"))
]


def test_a_conversation_is_held_until_enough_have_agreed() -> None:
    assert judged(REQUEST, ASKED, AGREED[0]).state == "held"
    assert judged(REQUEST, ASKED, *AGREED).state == "open"


def test_a_refusal_or_a_closed_approval_holds_nothing() -> None:
    refused = said("approval.decision", "bo@acme", at=2, cause="approval.request-1", performative="reject")
    closed = said("approval.closed", "planner@lab", at=2, cause="approval.request-1")
    assert judged(REQUEST, ASKED, refused).state == judged(REQUEST, ASKED, closed).state == "open"


def test_a_redrive_begins_again_after_a_dead_letter() -> None:
    letter = said("task.request", "ada@acme", "planner@lab", at=1, kind="dlq", reason="expired")
    redriven = said("task.request", "ada@acme", "planner@lab", at=2, kind="redrive")
    row = judged(REQUEST, letter, redriven)
    assert (row.state, row.reason, row.messages) == ("open", "expired", 1)


def test_the_order_in_which_records_are_read_changes_nothing() -> None:
    records = [
        REQUEST,
        ASKED,
        *AGREED,
        said("task.request", "ada@acme", "planner@lab", at=4, kind="dlq", reason="expired"),
        said("task.result", "planner@lab", "ada@acme", at=5, cause="task.request-0", cost=1),
    ]
    orders = itertools.permutations(records)
    rows = [msgspec.structs.replace(judged(*order), parties=()) for order in orders]
    assert all(row == rows[0] for row in rows)


def test_a_refused_record_is_shown_and_decides_nothing() -> None:
    forged = said("task.result", "eve@evil", "ada@acme", at=-1, cause="x", verdict="refused", reason="forged", cost=9)
    row = judged(REQUEST, forged)
    assert (row.opener, row.state, row.verdict, row.reason) == ("ada@acme", "open", "refused", "forged")
    assert (row.parties, row.cost) == (("ada@acme", "planner@lab"), 0)
    assert judged(forged).opener == "eve@evil"


def test_texts_of_agents_are_escaped_and_cut() -> None:
    hostile = "\x1b[31m\u202eid\0" + "x" * 500
    row = judged(said("task.request", "a\x1b@x", verdict="refused", payload={"title": hostile}))
    assert row.about.isprintable()
    assert len(row.about) == 200
    assert row.opener == "a\\x1b@x"


def test_the_words_of_a_sensitive_payload_are_not_known() -> None:
    assert judged(said("task.request", "a@x", payload=None)).about == ""


def test_many_parties_are_counted_and_some_are_named() -> None:
    row = judged(*[said("note.said", f"a{number}@x", at=number) for number in range(40)])
    assert (len(row.parties), row.party_count) == (16, 40)


# How it is kept.


async def test_a_page_that_is_written_twice_counts_once(database: str) -> None:
    async with opened(database) as store:
        await record(store, REQUEST)
        head = AuditHead(topic="agents.task.request", partition=0)
        again = Entry(chained(REQUEST[0], head.hash), REQUEST[1], b"k")
        assert await store.append(head, [again], 1, "me") is None
        assert (await only(store)).messages == 1


async def test_what_is_not_committed_is_not_counted(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with opened(database) as store:
        monkeypatch.setattr("consumers.operations.audit.index.cells_of", lambda _: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            await record(store, REQUEST)
        assert await store.heads() == {}
        assert await ids(store) == []


async def dropped(url: str) -> None:
    """Make *url* a database as older code has made it, without the index."""
    database = open_database(url)
    await database.open()
    async with database.transaction() as statements:
        for table in TABLES:
            await statements.fetch(f"DROP TABLE sealbus_audit_{table}")
    await database.close()


async def test_rows_of_older_code_are_looked_at_in_steps(database: str) -> None:
    async with opened(database) as store:
        for number in range(3):
            await record(store, said(f"a{number}.said", "a@x", conversation=f"c{number}", cost=1))
    await dropped(database)
    async with opened(database, create=False) as store:
        page = await store.conversations(ConversationFilter())
        assert (page.rows, page.indexed_rows, page.recorded_rows, page.is_whole) == ((), 0, 3, False)
        assert (await store.costs("agent", now_ms=NOW_MS)).is_whole is False
    async with opened(database) as store:
        assert await store.index_step() == 1
        page = await store.conversations(ConversationFilter())
        assert (len(page.rows), page.indexed_rows, page.is_whole) == (1, 1, False)
    async with opened(database) as store:
        # New rows of a partition that is not looked at yet wait for their turn.
        await record(store, said("a2.said", "a@x", at=9, conversation="c2", cost=1))
        while await store.index_step():
            pass
        page = await store.conversations(ConversationFilter())
        assert [(row.id, row.messages) for row in page.rows] == [("c2", 2), ("c1", 1), ("c0", 1)]
        assert page.is_whole
        assert (await store.costs("agent", now_ms=NOW_MS)).total.calls == 4


async def test_two_namespaces_of_one_database_see_their_own(database: str) -> None:
    async with opened(database) as store, opened(database, namespace="agent") as other:
        await record(store, REQUEST)
        assert (await ids(store), await ids(other)) == (["c1"], [])
        page = await other.conversations(ConversationFilter())
        assert page.recorded_rows == 0


# What is erased.


async def test_erased_content_leaves_the_index_and_the_rest_is_derived_again(database: str, tmp_path: Path) -> None:
    async with opened(database) as store:
        await record(
            store,
            said("task.request", "ada@acme", "planner@lab", payload={"goal": "zanzibar"}, cost=2, model="m"),
            said("note.said", "planner@lab", at=1, cost=1, model="m", payload={"text": "hello"}),
            said("b.said", "ada@acme", at=2, conversation="c2", payload={"text": "gone"}),
        )
        assert await store.erase(Erasure(sender="ada@acme"), who="o", why="w") == 2
        row = await only(store)
        assert (row.id, row.about, row.opener, row.parties) == ("c1", "hello", "planner@lab", ("planner@lab",))
        assert await ids(store, words="zanzibar") == await ids(store, agent="ada@acme") == []
        sums = await store.costs("agent", now_ms=NOW_MS)
        assert {each.name: each.cost for each in sums.rows} == {"": 2, "planner@lab": 1}
    if (tmp_path / "audit.db").exists():
        assert b"zanzibar" not in (tmp_path / "audit.db").read_bytes()


async def test_of_a_long_conversation_the_newest_records_are_read(database: str) -> None:
    async with opened(database) as store:
        await record(store, *(said("note.said", "planner@lab", at=number) for number in range(5)))
        found = await store.conversation("c1", max_rows=3)
        assert [each.row.offset for each in found] == [2, 3, 4]


async def test_an_erasure_that_was_interrupted_is_finished_by_the_next_step(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(database) as store:
        await record(store, REQUEST, said("note.said", "planner@lab", at=1))
        with monkeypatch.context() as patched:
            patched.setattr("consumers.operations.audit.index.AuditIndex.derive_again", lambda _: 1 / 0)
            with pytest.raises(ZeroDivisionError):
                await store.erase(Erasure(sender="ada@acme"), who="o", why="w")
        assert await ids(store) == []
        assert await store.index_step() == 1
        assert (await only(store)).parties == ("planner@lab",)


# What is asked.


async def test_a_filter_finds_what_matches_all_of_it(database: str) -> None:
    async with opened(database) as store:
        await record(
            store,
            said("task.request", "ada@acme", "planner@lab", payload={"goal": "Freight to Gdańsk"}, conversation="abc"),
            said("order.placed", "bo@acme", at=10, payload={"title": "250 cells"}, conversation="abd"),
            said("order.placed", "bo@acme", at=20, kind="dlq", conversation="abd"),
        )
        assert await ids(store) == ["abd", "abc"]
        assert await ids(store, id_prefix="ab") == ["abd", "abc"]
        assert await ids(store, id_prefix="abc") == ["abc"]
        assert await ids(store, agent="planner@lab") == ["abc"]
        assert await ids(store, message_type="order.placed") == ["abd"]
        assert await ids(store, state="dead") == ["abd"]
        assert await ids(store, words="gdań FREIGHT") == ["abc"]
        assert await ids(store, words="freight cells") == []
        assert await ids(store, words="acme") == ["abd", "abc"]
        assert await ids(store, since_ms=NOW_MS + 1) == ["abd"]
        assert await ids(store, until_ms=NOW_MS + 1) == ["abc"]
        assert await ids(store, agent="bo@acme", words="250", state="dead") == ["abd"]
        assert await ids(store, agent="bo@acme", state="open") == []


HOSTILE = [
    "'",
    '"',
    "a' OR 1=1 --",
    "foo NEAR/2 bar",
    "NOT AND OR",
    "words:*",
    "*",
    "%_%",
    "\0\x10\ud800",
    "(((",
    "zq & | ! <->",
    "':* & 'x",
    "\\",
    "😀 ﷽ \u202e",
    "x" * 100_000,
    " ".join(map(str, range(1_000))),
    "$1 ?1 {0} %s",
    "\u0301\u0345",
    "²½Ⅷ",
]


@pytest.mark.parametrize("text", HOSTILE)
async def test_a_search_takes_any_text(database: str, text: str) -> None:
    async with opened(database) as store:
        await record(store, REQUEST)
        for name in ("words", "agent", "id_prefix", "message_type", "state"):
            assert await ids(store, **{name: text}) == []
        assert (await store.conversations(ConversationFilter(), before=(1 << 80, text))).rows != ()
        assert (await store.conversations(ConversationFilter(since_ms=-(1 << 80), until_ms=1 << 80))).rows != ()


# No JSON holds a lone surrogate.
@pytest.mark.parametrize("text", [text for text in HOSTILE if "\ud800" not in text])
async def test_what_was_said_is_found_by_its_own_words(database: str, text: str) -> None:
    async with opened(database) as store:
        await record(store, said("task.request", "a@x", payload={"goal": f"begin {text}"}))
        about = (await only(store)).about
        assert await ids(store, words="begin") == ["c1"]
        assert await ids(store, words=about) == ["c1"]


async def test_words_are_found_without_fts5(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "consumers.operations.audit.index._WORDS_FTS5",
        ("CREATE TABLE sealbus_audit_words (rowid INTEGER PRIMARY KEY, words text NOT NULL)",),
    )
    async with opened(f"sqlite:///{tmp_path}/audit.db") as store:
        await record(store, REQUEST)
        assert await ids(store, words="offer frei") == ["c1"]
        assert await ids(store, words="reight") == []


async def test_pages_follow_each_other_without_gap_or_repeat(database: str) -> None:
    async with opened(database) as store:
        records = [said("a.said", "a@x", at=number, conversation=f"c{number // 2}") for number in range(14)]
        await record(store, *records)
        found, before = list[str](), None
        while True:
            page = await store.conversations(ConversationFilter(), before, 3)
            found += [row.id for row in page.rows]
            if (before := page.next) is None:
                break
        assert found == [f"c{number}" for number in reversed(range(7))]


async def test_times_of_schedules_of_which_nothing_came_can_be_left_out(database: str) -> None:
    async with opened(database) as store:
        await record(
            store,
            said("schedule.due", "desk@x", conversation="tick-1"),
            said("schedule.due", "desk@x", at=1, conversation="tick-2"),
            said("job.run", "desk@x", at=2, conversation="tick-2"),
            said("job.run", "desk@x", at=3, conversation="c3"),
        )
        assert await ids(store) == ["c3", "tick-2", "tick-1"]
        assert await ids(store, without_ticks=True) == ["c3", "tick-2"]
        page = await store.conversations(ConversationFilter(without_ticks=True), limit=1)
        assert [row.id for row in page.rows] == ["c3"]
        rest = await store.conversations(ConversationFilter(without_ticks=True), page.next, 5)
        assert [row.id for row in rest.rows] == ["tick-2"]


# What was spent.


async def test_costs_are_summed_by_any_dimension(database: str) -> None:
    async with opened(database) as store:
        await record(
            store,
            said("task.request", "ada@acme"),
            said("usage.reported", "one@x", at=1, input_tokens=10, output_tokens=1, cost=1, model="big"),
            said("usage.reported", "one@x", at=2, input_tokens=20, cost={"amount": "2.5", "currency": "USD"}),
            said("usage.reported", "two@x", at=3, total_tokens=7, model="small", conversation="c2"),
            said("usage.reported", "two@x", at=4, cost=100, verdict="refused"),
            said("usage.reported", "two@x", at=5, cost=100, kind="retry"),
            # What is asked for or offered is not spent yet.
            said("auction.bid", "two@x", at=6, cost=100, performative="propose"),
            said("job.run", "one@x", at=7, cost=100, performative="request"),
        )
        by_agent = await store.costs("agent", now_ms=NOW_MS)
        assert by_agent.rows == (
            CostSum(name="one@x", tokens_in=30, tokens_out=1, cost=3.5, calls=2),
            CostSum(name="two@x", tokens_in=7, calls=1),
        )
        assert by_agent.total == CostSum(name="", tokens_in=37, tokens_out=1, cost=3.5, calls=3)
        assert (by_agent.rest, by_agent.rest_count, by_agent.until_day) == (None, 0, "2026-09-21")
        for by, names in {
            "model": {"", "big", "small"},
            "conversation": {"c1", "c2"},
            "person": {"ada@acme", "two@x"},
            "day": {"2026-09-21"},
        }.items():
            sums = await store.costs(by, now_ms=NOW_MS)
            assert {each.name for each in sums.rows} == names


async def test_only_the_last_days_count(database: str) -> None:
    async with opened(database) as store:
        records = [said("usage.reported", "a@x", at=day * DAY_MS, cost=1) for day in range(5)]
        await record(store, *records)
        sums = await store.costs("day", now_ms=NOW_MS + 4 * DAY_MS, days=3)
        assert [(each.name, each.cost) for each in sums.rows] == [
            ("2026-09-23", 1.0),
            ("2026-09-24", 1.0),
            ("2026-09-25", 1.0),
        ]
        assert (await store.costs("agent", now_ms=NOW_MS, days=1)).total.calls == 1


async def test_the_days_of_some_names_are_told_apart(database: str) -> None:
    async with opened(database) as store:
        assert await store.costs_each_day("agent", ["a@x"], now_ms=NOW_MS) == {}
        records = [
            said("usage.reported", f"{name}@x", at=day * DAY_MS + number, cost=1 + day, conversation=f"{name}{day}")
            for day in range(3)
            for number, name in enumerate("abc")
        ]
        await record(store, *records)
        names = ["a@x", "c@x", "'; DROP TABLE x --"]
        found = await store.costs_each_day("agent", names, now_ms=NOW_MS + 2 * DAY_MS, days=2)
        days = [("2026-09-22", 2.0), ("2026-09-23", 3.0)]
        assert {name: [(each.name, each.cost) for each in sums] for name, sums in found.items()} == {
            "a@x": days,
            "c@x": days,
        }
        of_people = await store.costs_each_day("person", ["b@x"], now_ms=NOW_MS + 2 * DAY_MS, days=2)
        assert [each.cost for each in of_people["b@x"]] == [2.0, 3.0]
        assert await store.costs_each_day("model", [], now_ms=NOW_MS) == {}


async def test_what_is_beyond_a_hundred_is_one_sum(database: str) -> None:
    async with opened(database) as store:
        await record(
            store, *[said("usage.reported", f"a{number}@x", at=number, cost=1 + number) for number in range(103)]
        )
        sums = await store.costs("agent", now_ms=NOW_MS)
        assert (len(sums.rows), sums.rest_count) == (100, 3)
        assert sums.rest == CostSum(name="", cost=6.0, calls=3)


@pytest.mark.parametrize(
    "value", [-1, True, "9", 10**400, float("1e300"), {"amount": "nan"}, {"amount": "1e400"}, {"amount": [1]}, None]
)
async def test_claims_of_agents_are_bounded(database: str, value: Any) -> None:
    async with opened(database) as store:
        await record(store, said("usage.reported", "a@x", input_tokens=value, cost=value, model=["x"]))
        total = (await store.costs("agent", now_ms=NOW_MS)).total
        assert 0 <= total.tokens_in <= 1_000_000_000
        assert 0 <= total.cost <= 1_000_000


async def test_records_in_any_order_and_pages_give_the_same_index(database: str) -> None:
    chance = random.Random(5)
    records = [
        said(f"t{number % 7}.said", f"a{number % 5}@x", at=number, conversation=f"c{number % 11}", cost=number)
        for number in range(200)
    ]
    async with opened(database) as store:
        waiting = {
            f"agents.t{number}.said": [r for r in records if r[0].message_type == f"t{number}.said"]
            for number in range(7)
        }
        while any(waiting.values()):
            topic = chance.choice([topic for topic, left in waiting.items() if left])
            count = chance.randint(1, 9)
            await record(store, *waiting[topic][:count])
            del waiting[topic][:count]
        page = await store.conversations(ConversationFilter(), limit=100)
        assert sum(row.messages for row in page.rows) == 200
        assert sum(row.cost for row in page.rows) == sum(range(200))
        assert page.is_whole
        assert (await store.costs("model", now_ms=NOW_MS)).total.cost == sum(range(200))


async def test_two_processes_write_one_conversation_at_once(database: str) -> None:
    async with opened(database) as one, opened(database) as other:

        async def write(store: AuditStore, topic: str) -> None:
            head = AuditHead(topic=f"agents.{topic}", partition=0)
            for page in range(10):
                rows = [
                    said(topic, "a@x", at=number, conversation=f"c{(number * 7) % 20:02}", cost=1)
                    for number in range(page * 20, page * 20 + 20)
                ]
                entries = [Entry(chained(row, head.hash), content, b"k") for row, content in rows]
                moved = await store.append(head, entries, page * 20 + 20, topic)
                assert moved is not None
                head = moved

        await asyncio.gather(write(one, "a.said"), write(other, "b.said"))
        page = await one.conversations(ConversationFilter(), limit=100)
        assert {row.messages for row in page.rows} == {20}
        assert page.is_whole
        assert (await one.costs("agent", now_ms=NOW_MS)).total.calls == 400


# What workers and agents write.


@payload("desk.question", version="1.0.0", performative="request")
class Question(msgspec.Struct, frozen=True, kw_only=True):
    title: str


@payload("desk.reply", version="1.0.0")
class Reply(msgspec.Struct, frozen=True, kw_only=True):
    text: str


@pytest.mark.parametrize(("title", "state"), [("fine", "answered"), ("bad", "dead"), ("none", "open")])
async def test_a_conversation_of_an_app_has_its_state(tmp_path: Path, title: str, state: str) -> None:
    app = App("desk@svc")

    @app.on(Question)
    async def answer(question: Question) -> Reply:
        if question.title == "bad":
            raise Reject("no")
        return Reply(text="so")

    async with app.test() as bus, opened(f"sqlite:///{tmp_path}/audit.db") as store:
        if title == "none":
            await bus.publish(Question(title=title), delay_s=3_600)
        else:
            with suppress(RequestFailed):
                await bus.request(Question(title=title), Reply, timeout_s=60)
        await trail_of(bus.transport, store, bus.clock).run(until_caught_up=True)
        row = await only(store)
    assert (row.about, row.first_type, row.state) == (title, "desk.question", state)
