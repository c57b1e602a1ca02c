"""What is PostgreSQL's alone: a server that restarts, hangs or refuses, and what a handler can do with its
connection."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import asyncpg
import pytest

from bus.clock import SystemClock
from bus.errors import ConfigurationError, InboxError
from consumers.delivery.inbox.base import AlreadyDone, Ask, Claimed
from consumers.delivery.inbox.postgres import PostgresInbox
from consumers.delivery.inbox.postgres.bulk import BulkClaims
from consumers.delivery.inbox.postgres.statements import PURGE
from producers.outbox.postgres import PostgresRows
from tests.consumers.delivery.inbox.stores import LATER_MS, OUTPUTS, claim, claimed, key
from tests.databases import Postgres
from tests.pooler import pooled


@pytest.fixture
async def url(postgres: Postgres) -> str:
    return await postgres.create_database()


@pytest.fixture
async def inbox(url: str) -> AsyncIterator[PostgresInbox]:
    opened = PostgresInbox(url, owner="a", clock=SystemClock(), lease_s=20.0, timeout_s=1.0)
    await opened.open()
    yield opened
    await opened.close()


async def test_a_restart_of_the_server_is_an_inbox_error_and_then_nothing(
    inbox: PostgresInbox, postgres: Postgres
) -> None:
    done, running = (await claimed(inbox, "done")).token, (await claimed(inbox, "running")).token
    assert await inbox.finish(key("done"), done, OUTPUTS)
    transaction = await inbox.begin()
    postgres.stop()
    for call in (
        claim(inbox),
        inbox.finish(key("running"), running, ()),
        inbox.begin(),
        transaction.execute("SELECT 1"),
        inbox.purge(),
    ):
        with pytest.raises(InboxError):
            await call
    postgres.start()
    assert await claim(inbox, "done") == AlreadyDone(OUTPUTS)
    assert await inbox.finish(key("running"), running, ())


async def test_a_server_that_hangs_is_given_up_after_a_while(inbox: PostgresInbox, postgres: Postgres) -> None:
    token = (await claimed(inbox)).token
    transaction = await inbox.begin()
    postgres.freeze()
    try:
        started_s = time.monotonic()
        calls = (claim(inbox, "other"), transaction.execute("SELECT 1"), inbox.finish(key(), token, ()))
        answers = await asyncio.gather(*calls, return_exceptions=True)
        assert [type(answer) for answer in answers] == [InboxError] * 3
        assert time.monotonic() - started_s < 20
    finally:
        postgres.thaw()
    assert await inbox.finish(key(), token, OUTPUTS)
    assert await claim(inbox) == AlreadyDone(OUTPUTS)


async def test_a_statement_that_the_server_is_at_work_on_is_waited_for(inbox: PostgresInbox, url: str) -> None:
    """As one that waits for a row which another handler has changed."""
    token = (await claimed(inbox)).token
    transaction = await inbox.begin()
    started_s = time.monotonic()
    await transaction.execute("SELECT pg_sleep(2.5)")
    assert time.monotonic() - started_s > 2
    assert await inbox.finish(key(), token, (), transaction)


async def test_an_abandoned_postgres_lock_wait_leaves_no_server_session(inbox: PostgresInbox, url: str) -> None:
    """As while the table is rewritten: each repetition would leave one more, until the server takes no connection, of
    anybody."""
    ours = """SELECT count(*) FROM pg_stat_activity
        WHERE datname = current_database() AND state = 'active' AND pid <> pg_backend_pid()"""
    operator = await asyncpg.connect(url)
    async with operator.transaction():
        await operator.execute("LOCK TABLE sealbus_inbox")
        answers = await asyncio.gather(claim(inbox), claim(inbox, "other"), inbox.purge(), return_exceptions=True)
        assert [type(answer) for answer in answers] == [InboxError] * 3
        for _ in range(200):
            if not (left := await operator.fetchval(ours)):
                break
            await asyncio.sleep(0.01)
        assert left == 0
    await operator.close()
    assert await claim(inbox) == Claimed(1)


async def test_a_transaction_that_the_server_ends_is_an_inbox_error(inbox: PostgresInbox, url: str) -> None:
    token = (await claimed(inbox)).token
    transaction = await inbox.begin()
    pid = transaction.connection.get_server_pid()
    operator = await asyncpg.connect(url)
    await operator.execute("SELECT pg_terminate_backend($1)", pid)
    await operator.close()
    with pytest.raises(InboxError):
        await inbox.finish(key(), token, (), transaction)
    assert await inbox.finish(key(), token, ())


async def test_a_transaction_that_waits_for_one_that_waits_for_it_is_an_inbox_error(
    inbox: PostgresInbox, url: str
) -> None:
    connection = await asyncpg.connect(url)
    await connection.execute("CREATE TABLE pairs AS SELECT id FROM generate_series(1, 2) id")
    await connection.close()
    change = "UPDATE pairs SET id = id WHERE id = $1"
    first, second = await inbox.begin(), await inbox.begin()
    await first.execute(change, 1)
    await second.execute(change, 2)
    ends = await asyncio.gather(first.execute(change, 2), second.execute(change, 1), return_exceptions=True)
    assert [type(end) for end in ends if end is not None] == [InboxError]
    for transaction in (first, second):
        await transaction.rollback()


async def test_sessions_that_may_only_read_are_replaced(inbox: PostgresInbox, url: str) -> None:
    """As those with a server that a failover has made a standby, while the name leads to the new one by now."""
    operator = await asyncpg.connect(url)
    database = await operator.fetchval("SELECT current_database()")
    await operator.execute(f"ALTER DATABASE {database} SET default_transaction_read_only = on")
    await operator.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'sealbus inbox'"
    )
    for _ in range(2):
        with pytest.raises(InboxError):
            await claim(inbox)
    transaction = await inbox.begin()
    with pytest.raises(InboxError):
        await transaction.execute("CREATE TABLE orders (number integer)")
    await operator.execute("SET default_transaction_read_only = off")
    await operator.execute(f"ALTER DATABASE {database} RESET default_transaction_read_only")
    await operator.close()
    token = (await claimed(inbox)).token
    transaction = await inbox.begin()
    await transaction.execute("CREATE TABLE orders (number integer)")
    assert await inbox.finish(key(), token, (), transaction)


async def test_the_raw_connection_can_do_what_the_driver_can(inbox: PostgresInbox) -> None:
    token = (await claimed(inbox)).token
    transaction = await inbox.begin()
    await transaction.execute("CREATE TABLE orders (number integer PRIMARY KEY)")
    await transaction.execute("INSERT INTO orders VALUES (1)")
    with pytest.raises(asyncpg.UniqueViolationError):
        async with transaction.connection.transaction():
            await transaction.execute("INSERT INTO orders VALUES (1)")
    await transaction.connection.copy_records_to_table("orders", records=[(2,), (3,)])
    assert await inbox.finish(key(), token, (), transaction)
    after = await inbox.begin()
    assert await after.fetch("SELECT number FROM orders ORDER BY number") == [(1,), (2,), (3,)]
    await after.rollback()


async def test_finishing_a_transaction_that_a_statement_has_spoilt_is_the_databases_error(inbox: PostgresInbox) -> None:
    token = (await claimed(inbox)).token
    transaction = await inbox.begin()
    with pytest.raises(asyncpg.PostgresError):
        await transaction.execute("SELECT 1/0")
    with pytest.raises(asyncpg.InFailedSQLTransactionError):
        await inbox.finish(key(), token, (), transaction)
    assert await inbox.finish(key(), token, ())


async def test_a_handler_may_have_set_another_search_path(inbox: PostgresInbox, url: str) -> None:
    """As where each customer has a schema, and another application its inbox in one of them."""
    operator = await asyncpg.connect(url)
    await operator.execute("CREATE SCHEMA customer; CREATE TABLE customer.sealbus_inbox (LIKE sealbus_inbox)")
    await operator.execute("CREATE TABLE customer.orders (number integer)")
    token = (await claimed(inbox)).token
    transaction = await inbox.begin()
    await transaction.execute("SET LOCAL search_path = customer")
    await transaction.execute("INSERT INTO orders VALUES (1)")
    assert await inbox.finish(key(), token, OUTPUTS, transaction)
    assert await claim(inbox) == AlreadyDone(OUTPUTS)
    assert await operator.fetchval("SELECT count(*) FROM customer.orders") == 1
    await operator.close()


async def test_session_changes_of_a_handler_do_not_reach_the_next_one(inbox: PostgresInbox, url: str) -> None:
    operator = await asyncpg.connect(url)
    await operator.execute("CREATE ROLE customer")
    await operator.execute("GRANT ALL ON ALL TABLES IN SCHEMA public TO customer")
    token = (await claimed(inbox)).token
    transaction = await inbox.begin()
    process = transaction.connection.get_server_pid()
    state = "SELECT current_user::text, current_setting('statement_timeout')"
    before = await transaction.fetchrow(state)
    await transaction.execute("SET ROLE customer")
    await transaction.execute("SET statement_timeout = '7s'")
    assert await inbox.finish(key(), token, (), transaction)
    after = await inbox.begin()
    assert after.connection.get_server_pid() == process
    assert await after.fetchrow(state) == before
    await after.rollback()
    await operator.execute("DROP OWNED BY customer; DROP ROLE customer")
    await operator.close()


async def test_forgetting_looks_at_what_is_old_and_not_at_every_row(inbox: PostgresInbox, url: str) -> None:
    operator = await asyncpg.connect(url)
    await operator.execute("SET enable_seqscan = off")
    plan = await operator.fetch(f"EXPLAIN {PURGE}".replace("$1", "5000"))
    await operator.close()
    assert any("Index Cond: (keep_until_ms <" in line for (line,) in plan)


async def test_many_open_transactions_do_not_hold_up_claims(inbox: PostgresInbox) -> None:
    transactions = await asyncio.gather(*(inbox.begin() for _ in range(16)))
    async with asyncio.timeout(30):
        assert await asyncio.gather(*(claim(inbox, f"task-{number}") for number in range(100))) == [Claimed(1)] * 100
    await asyncio.gather(*(transaction.rollback() for transaction in transactions))


async def test_concurrent_claims_share_a_round_trip(inbox: PostgresInbox) -> None:
    sent: list[int] = []
    gathering = inbox._together._claims
    write = gathering._write

    async def counted(batch: Sequence[BulkClaims]) -> set[bytes]:
        sent.append(len(batch))
        return await write(batch)

    gathering._write = counted
    told: list[object] = []
    inbox.claim_soon(
        [Ask(key(f"m-{number}"), "h", LATER_MS) for number in range(300)],
        lambda asks: told.extend(ask.answer for ask in asks),
    )
    for _ in range(500):
        await asyncio.sleep(0.01)
        if len(told) == 300:
            break
    assert (sent, set(told)) == ([300], {Claimed(1)})


async def test_a_batch_cut_off_by_the_server_fails_each_claim_and_can_be_repeated(
    inbox: PostgresInbox, postgres: Postgres
) -> None:
    told: list[object] = []
    postgres.freeze()
    try:
        inbox.claim_soon(
            [Ask(key(f"m-{number}"), "h", LATER_MS) for number in range(3)],
            lambda asks: told.extend(ask.answer for ask in asks),
        )
        for _ in range(500):
            await asyncio.sleep(0.01)
            if len(told) == 3:
                break
    finally:
        postgres.thaw()
    assert [type(answer) for answer in told] == [InboxError] * 3
    # Whether it was claimed is unknown; nobody runs it here.
    assert isinstance(await claim(inbox, "m-1", "h"), Claimed)


@pytest.mark.slow  # ten seconds beside a frozen PostgreSQL
@pytest.mark.parametrize("begun", [0, 3])
async def test_a_server_that_hangs_does_not_keep_whoever_closes(
    url: str, postgres: Postgres, monkeypatch: pytest.MonkeyPatch, begun: int
) -> None:
    monkeypatch.setattr("consumers.delivery.inbox.postgres.inbox._CLOSING_S", 1.0)
    inbox = PostgresInbox(url, owner="a", clock=SystemClock(), lease_s=1.5)
    await inbox.open()
    for _ in range(begun):
        await inbox.begin()
    postgres.freeze()
    try:
        asked = [asyncio.create_task(claim(inbox, f"m-{number}")) for number in range(3)]
        # In the middle of a renewal.
        await asyncio.sleep(0.7)
        started_s = time.monotonic()
        await inbox.close()
        assert time.monotonic() - started_s < 4
        assert [type(answer) for answer in await asyncio.gather(*asked, return_exceptions=True)] == [InboxError] * 3
    finally:
        postgres.thaw()


async def test_a_server_that_is_not_there_is_an_inbox_error() -> None:
    inbox = PostgresInbox("postgresql://nobody@127.0.0.1:1/none", owner="a", clock=SystemClock())
    with pytest.raises(InboxError, match=r"127\.0\.0\.1/none"):
        await inbox.open()


async def test_a_database_that_does_not_exist_is_a_wrong_setting(url: str) -> None:
    inbox = PostgresInbox(url.replace("/test_", "/no_such_"), owner="a", clock=SystemClock())
    with pytest.raises(ConfigurationError):
        await inbox.open()


@pytest.mark.parametrize("parameter", ["search_path=nowhere", "no_such_parameter=1"])
async def test_a_parameter_that_the_server_cannot_follow_is_a_wrong_setting(url: str, parameter: str) -> None:
    with pytest.raises(ConfigurationError):
        await PostgresInbox(f"{url}{'&' if '?' in url else '?'}{parameter}", owner="a", clock=SystemClock()).open()


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://user:s3cret@host:port/db",
        "postgresql://user:s3cret@127.0.0.1:99999/db",
        "postgresql://user:s3cret@[::1/db",
        "postgresql://user:s3cret@127.0.0.1:1/db?sslmode=perhaps",
        "postgresql://user:s3cret@127.0.0.1:1/db?target_session_attrs=any-one",
    ],
)
async def test_a_url_that_the_driver_does_not_take_is_a_wrong_setting(url: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        await PostgresInbox(url, owner="a", clock=SystemClock()).open()
    assert "s3cret" not in str(caught.value)
    with pytest.raises(ConfigurationError):
        await PostgresRows(url).open()


async def test_a_key_in_letters_that_the_database_does_not_have_is_claimed_as_any(url: str) -> None:
    operator = await asyncpg.connect(url)
    await operator.execute("CREATE DATABASE latin ENCODING 'LATIN1' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0")
    inbox = PostgresInbox(urlunsplit(urlsplit(url)._replace(path="/latin")), owner="a", clock=SystemClock())
    await inbox.open()
    assert await claim(inbox, "bestellung-\u6f22\U0001f600") == Claimed(1)
    told: list[object] = []
    inbox.claim_soon(
        [Ask(key(name), "h", LATER_MS) for name in ("a", "\u6f22")],
        lambda asks: told.extend(ask.answer for ask in asks),
    )
    async with asyncio.timeout(30):
        while len(told) < 2:  # noqa: ASYNC110 - the store tells it
            await asyncio.sleep(0.01)
    assert told == [Claimed(1)] * 2
    await inbox.close()
    await operator.execute("DROP DATABASE latin")
    await operator.close()


async def test_a_redrive_count_beyond_the_column_does_not_fail_the_store(inbox: PostgresInbox) -> None:
    for _ in range(3):
        found = await claim(inbox, reopen=10**15 - 1)
        assert isinstance(found, Claimed)
        await inbox.release(key(), found.token)


async def test_no_password_is_shown() -> None:
    inbox = PostgresInbox("postgresql://user:s3cret@127.0.0.1:1/none", owner="a", clock=SystemClock())
    with pytest.raises(InboxError) as caught:
        await inbox.open()
    assert "s3cret" not in str(caught.value)


async def test_tables_of_a_newer_sealbus_are_refused(inbox: PostgresInbox, url: str) -> None:
    connection = await asyncpg.connect(url)
    await connection.execute("UPDATE sealbus_schema SET version = 99")
    await connection.close()
    with pytest.raises(ConfigurationError, match="install the newer sealbus"):
        await PostgresInbox(url, owner="b", clock=SystemClock()).open()


@pytest.mark.parametrize(
    "store", [PostgresRows, partial(PostgresInbox, owner="a", clock=SystemClock())], ids=["outbox", "inbox"]
)
async def test_a_pooler_that_gives_sessions_out_by_the_transaction_is_refused(
    url: str, store: Callable[[str], Any]
) -> None:
    async with pooled(url, by_transaction=True) as way:
        with pytest.raises(ConfigurationError, match=r"pool in session mode"):
            await store(way).open()
    async with pooled(url, by_transaction=False) as way:
        opened = store(way)
        await opened.open()
        await opened.close()


@pytest.mark.parametrize(
    "statement",
    [
        "LOCK TABLE sealbus_inbox IN ACCESS EXCLUSIVE MODE",
        "LOCK TABLE sealbus_inbox IN SHARE MODE",
        "SELECT * FROM sealbus_inbox FOR UPDATE",
    ],
)
async def test_the_session_that_others_wait_for_is_named_with_its_process(
    inbox: PostgresInbox, url: str, statement: str
) -> None:
    await claimed(inbox)
    assert await inbox.who_blocks() == ""
    other = await asyncpg.connect(url, server_settings={"application_name": "psql"})
    try:
        async with other.transaction():
            await other.execute(statement)
            pid = await other.fetchval("SELECT pg_backend_pid()")
            waiting = asyncio.create_task(inbox.finish(key(), 1, ()))
            while not (told := await inbox.who_blocks()):
                await asyncio.sleep(0.05)
                if waiting.done():
                    waiting = asyncio.create_task(inbox.finish(key(), 1, ()))
            assert told.startswith(f"pid {pid} of PostgreSQL (psql, user ")
            await asyncio.wait([waiting])
            waiting.exception()
    finally:
        await other.close()
    assert await inbox.who_blocks() == ""
