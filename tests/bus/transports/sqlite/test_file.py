"""The file: what is refused, what a full disk does, what other tools may do."""

import asyncio
import contextlib
import os
import sqlite3
import subprocess
import threading

import pytest

from bus.errors import (
    AppendUnknownError,
    ConfigurationError,
    DeadlineError,
    LogFullError,
    TopicMissingError,
    UnreachableError,
)
from bus.transports import open_transport
from bus.transports.base import Appended, NewRecord, TopicSpec
from bus.transports.sqlite import schema

MIB = 1 << 20


@contextlib.asynccontextmanager
async def opened(url, **options):
    transport = open_transport(url, **options)
    try:
        await transport.admin.create_topics([TopicSpec(name="a.b", partitions=1)])
        yield transport
    finally:
        await transport.close()


async def append(transport, value, *, count=1, timeout_s=20):
    return await transport.append([NewRecord("a.b", None, value)] * count, timeout_s=timeout_s)


async def values(transport):
    return [r.value for r in await transport.read("a.b", 0, 0, max_records=10_000, max_bytes=1 << 28)]


def by_hand(path, *statements):
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
        return [connection.execute(statement).fetchall() for statement in statements]


@pytest.mark.parametrize(
    "url", ["sqlite://x.db", "sqlite:///", "sqlite:///x.db?mode=ro", "memory://name", "mysql://x", "x.db", "sqlite:"]
)
def test_a_url_that_names_no_log_is_refused(url):
    with pytest.raises(ConfigurationError):
        open_transport(url)


def test_a_log_that_cannot_be_read_is_not_left_open_for_writing(tmp_path, monkeypatch):
    made = []

    def opening(*arguments, read_only=False, **named):
        if read_only:
            raise UnreachableError("too many open files")
        made.append(schema.open_log(*arguments, **named))
        return made[-1]

    monkeypatch.setattr("bus.transports.sqlite.write_transaction.open_log", opening)
    monkeypatch.setattr("bus.transports.sqlite.read_connection.open_log", opening)
    with pytest.raises(UnreachableError, match="too many"):
        open_transport(f"sqlite:///{tmp_path}/x.db")
    with pytest.raises(sqlite3.ProgrammingError, match="closed"):
        made[0].execute("SELECT 1")


def test_a_relative_path_is_relative_to_the_working_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    asyncio.run(open_transport("sqlite:///some%20log.db").close())
    assert (tmp_path / "some log.db").exists()


async def test_a_relative_path_stays_the_same_file_when_the_working_directory_changes(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    async with opened("sqlite:///log.db") as transport:
        (tmp_path / "elsewhere").mkdir()
        monkeypatch.chdir(tmp_path / "elsewhere")
        (outcome,) = await append(transport, b"v")
        assert isinstance(outcome, Appended)
    assert not (tmp_path / "elsewhere" / "log.db").exists()


def test_a_missing_directory_is_named(tmp_path):
    with pytest.raises(UnreachableError, match=r"no directory .*/missing; create it"):
        open_transport(f"sqlite:///{tmp_path}/missing/x.db")


async def test_the_folder_of_a_projects_data_is_created(tmp_path):
    async with opened(f"sqlite:///{tmp_path}/.sealbus/x.db"):
        assert (tmp_path / ".sealbus/x.db").is_file()
    with pytest.raises(UnreachableError, match="no directory"):
        open_transport(f"sqlite:///{tmp_path}/missing/.sealbus/x.db")


def test_a_directory_is_not_a_log(tmp_path):
    with pytest.raises(ConfigurationError, match="is a directory"):
        open_transport(f"sqlite:///{tmp_path}")


def test_a_file_that_is_not_sqlite_is_refused(tmp_path):
    (tmp_path / "x.db").write_bytes(b"nothing like a database" * 100)
    with pytest.raises(ConfigurationError, match="not a SQLite database"):
        open_transport(f"sqlite:///{tmp_path}/x.db")


@pytest.mark.parametrize(
    "statement", ["CREATE TABLE other (a)", "PRAGMA application_id = 7", "PRAGMA user_version = 3"]
)
def test_the_database_of_another_program_is_refused_untouched(tmp_path, statement):
    by_hand(tmp_path / "x.db", statement)
    before = (tmp_path / "x.db").read_bytes()
    with pytest.raises(ConfigurationError, match="another program"):
        open_transport(f"sqlite:///{tmp_path}/x.db")
    assert (tmp_path / "x.db").read_bytes() == before


async def test_a_newer_schema_is_refused(tmp_path):
    async with opened(f"sqlite:///{tmp_path}/x.db"):
        pass
    by_hand(tmp_path / "x.db", f"PRAGMA user_version = {schema.LOG_SCHEMA_VERSION + 1}")
    with pytest.raises(ConfigurationError, match="install the newer sealbus"):
        open_transport(f"sqlite:///{tmp_path}/x.db")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everything")
async def test_a_read_only_file_is_reported_when_it_is_opened(tmp_path):
    async with opened(f"sqlite:///{tmp_path}/x.db"):
        pass
    (tmp_path / "x.db").chmod(0o400)
    with pytest.raises(UnreachableError):
        open_transport(f"sqlite:///{tmp_path}/x.db")


async def test_the_documented_statements_append_a_record(tmp_path):
    async with opened(f"sqlite:///{tmp_path}/x.db") as transport:
        await append(transport, b"first")
        by_hand(
            tmp_path / "x.db",
            "BEGIN IMMEDIATE",
            "INSERT INTO records (part, off, ts, key, value, headers) SELECT id, next_offset, 1, NULL, 'by hand', NULL "
            "FROM partitions",
            "UPDATE partitions SET next_offset = next_offset + 1",
            "COMMIT",
        )
        (outcome,) = await append(transport, b"third")
        assert outcome.offset == 2
        assert await values(transport) == [b"first", b"by hand", b"third"]


async def test_an_append_is_written_completely_or_not_at_all(tmp_path):
    async with opened(f"sqlite:///{tmp_path}/x.db") as transport:
        await append(transport, b"first", count=5)
        by_hand(tmp_path / "x.db", "DELETE FROM records WHERE off < 4", "UPDATE partitions SET next_offset = 1")
        outcomes = await append(transport, b"second", count=6)
        assert [type(outcome) for outcome in outcomes] == [UnreachableError] * 6
        assert by_hand(tmp_path / "x.db", "SELECT off, value FROM records") == [[(4, b"first")]]


async def test_rows_edited_by_hand_are_still_delivered(tmp_path):
    async with opened(f"sqlite:///{tmp_path}/x.db") as transport:
        await append(transport, b"x", count=2)
        by_hand(tmp_path / "x.db", "UPDATE records SET value = 'text', headers = x'c1', key = 5 WHERE off = 0")
        first, second = await transport.read("a.b", 0, 0, max_records=10, max_bytes=MIB)
        assert (first.key, first.value, first.headers) == (b"5", b"text", ())
        assert second.value == b"x"


@pytest.mark.parametrize(
    ("statement", "read"),
    [
        ("UPDATE records SET ts = datetime('2026-11-24'), headers = 'text'", 2026),
        ("UPDATE records SET ts = 12.75, headers = 7", 12),
        ("UPDATE records SET ts = 'soon'", 0),
    ],
)
async def test_a_time_that_was_written_by_hand_in_another_form_is_read_as_a_number(tmp_path, statement, read):
    async with opened(f"sqlite:///{tmp_path}/x.db") as transport:
        await append(transport, b"x")
        by_hand(tmp_path / "x.db", statement)
        (record,) = await transport.read("a.b", 0, 0, max_records=10, max_bytes=MIB)
        assert (record.timestamp_ms, type(record.timestamp_ms), record.headers) == (read, int, ())


async def test_a_non_numeric_time_does_not_block_retention(tmp_path):
    async with opened(f"sqlite:///{tmp_path}/x.db", retention_interval_s=0.05) as transport:
        await transport.admin.create_topics([TopicSpec(name="a.b", retention_ms=1)])
        await append(transport, b"x", count=2)
        by_hand(tmp_path / "x.db", "UPDATE records SET ts = 'soon' WHERE off = 0")
        while await values(transport):  # noqa: ASYNC110
            await asyncio.sleep(0.02)


async def test_headers_with_non_string_names_are_left_out(tmp_path):
    async with opened(f"sqlite:///{tmp_path}/x.db") as transport:
        await append(transport, b"x")
        by_hand(tmp_path / "x.db", "UPDATE records SET headers = x'9192a1ffc40176'")
        (record,) = await transport.read("a.b", 0, 0, max_records=10, max_bytes=MIB)
        assert (record.value, record.headers) == (b"x", ())


async def test_offsets_may_have_gaps(tmp_path):
    async with opened(f"sqlite:///{tmp_path}/x.db") as transport:
        await append(transport, b"x", count=5)
        by_hand(tmp_path / "x.db", "DELETE FROM records WHERE off IN (1, 2, 4)")
        assert len(await values(transport)) == 2


async def test_a_full_log_raises_and_works_again_with_space(tmp_path):
    async with opened(f"sqlite:///{tmp_path}/x.db") as transport:
        connection = transport._writer._log.connection
        connection.execute("PRAGMA max_page_count = 100")
        written = await fill_up(transport)
        connection.execute("PRAGMA max_page_count = 100000")
        (outcome,) = await append(transport, b"again")
        assert outcome.offset == written
        assert len(await values(transport)) == written + 1


async def fill_up(transport):
    """Append until the log is full; answers with how many records it holds."""
    written = 0
    outcomes = await append(transport, os.urandom(20_000), count=5)
    while all(isinstance(outcome, Appended) for outcome in outcomes):
        written += 5
        assert written < 10_000
        outcomes = await append(transport, os.urandom(20_000), count=5)
    assert [type(outcome) for outcome in outcomes] == [LogFullError] * 5
    assert len(await values(transport)) == written
    return written


@pytest.fixture
def small_disk(tmp_path):
    folder = tmp_path / "small"
    folder.mkdir()
    if (
        os.geteuid() != 0
        or subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", folder], capture_output=True, check=False
        ).returncode
    ):
        pytest.skip("a file system cannot be mounted here")
    yield folder
    subprocess.run(["umount", folder], check=True)


async def test_the_write_ahead_log_does_not_keep_the_room_that_a_full_disk_gets_again(small_disk):
    (small_disk / "ballast").write_bytes(b"x" * 1_500_000)
    async with opened(f"sqlite:///{small_disk}/x.db") as transport:
        await transport.admin.create_topics([TopicSpec(name="a.b", partitions=1)])

        async def append():
            return (await transport.append([NewRecord("a.b", b"k", b"v")], timeout_s=10))[0]

        # Few bytes each, and several pages of the write-ahead log.
        while isinstance(outcome := await append(), Appended):
            pass
        assert isinstance(outcome, LogFullError)
        (small_disk / "ballast").unlink()
        assert {type(await append()) for _ in range(300)} == {Appended}


async def test_a_full_disk_raises_and_works_again_with_space(small_disk):
    (small_disk / "ballast").write_bytes(b"x" * 100_000)
    async with opened(f"sqlite:///{small_disk}/x.db") as transport:
        written = await fill_up(transport)
        (small_disk / "ballast").unlink()
        subprocess.run(["mount", "-o", "remount,size=20m", small_disk], check=True)
        outcomes = await append(transport, os.urandom(20_000), count=5)
        assert [outcome.offset for outcome in outcomes] == list(range(written, written + 5))
    assert by_hand(small_disk / "x.db", "PRAGMA integrity_check") == [[("ok",)]]


async def test_an_append_that_waits_for_the_lock_of_another_is_withdrawn_at_its_deadline(tmp_path):
    async with opened(f"sqlite:///{tmp_path}/x.db") as transport:
        with contextlib.closing(sqlite3.connect(tmp_path / "x.db", isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            outcomes = await append(transport, b"late", count=2, timeout_s=0.1)
            other.execute("ROLLBACK")
        assert [type(outcome) for outcome in outcomes] == [DeadlineError] * 2
        await append(transport, b"next")
        assert await values(transport) == [b"next"]


async def test_an_append_that_is_being_written_at_its_deadline_is_unknown(tmp_path, monkeypatch):
    async with opened(f"sqlite:///{tmp_path}/x.db") as transport:
        release, log = threading.Event(), transport._writer._log
        commit = log.commit
        monkeypatch.setattr(log, "commit", lambda: (release.wait(45), commit()))
        outcomes = await append(transport, b"slow", count=2, timeout_s=0.1)
        release.set()
        assert [type(outcome) for outcome in outcomes] == [AppendUnknownError] * 2
        assert await written(transport) == [b"slow"] * 2


async def written(transport):
    await append(transport, b"after")
    return (await values(transport))[:-1]


async def test_a_commit_of_unknown_outcome_raises_and_the_next_append_works(tmp_path, monkeypatch):
    async with opened(f"sqlite:///{tmp_path}/x.db") as transport:
        log = transport._writer._log

        def broken():
            monkeypatch.undo()
            raise sqlite3.OperationalError("disk I/O error")

        monkeypatch.setattr(log, "commit", broken)
        (outcome,) = await append(transport, b"?")
        assert isinstance(outcome, AppendUnknownError)
        assert isinstance((await append(transport, b"next"))[0], Appended)


async def test_a_lock_that_stays_is_unreachable_not_for_ever(tmp_path, monkeypatch):
    monkeypatch.setattr(schema, "BUSY_TIMEOUT_S", 0.1)
    async with opened(f"sqlite:///{tmp_path}/x.db") as transport:
        with contextlib.closing(sqlite3.connect(tmp_path / "x.db", isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            (outcome,) = await append(transport, b"late")
            other.execute("ROLLBACK")
        assert isinstance(outcome, UnreachableError)
        assert isinstance((await append(transport, b"next"))[0], Appended)


async def test_a_transaction_that_cannot_begin_raises_and_the_next_one_works(tmp_path, monkeypatch):
    async with opened(f"sqlite:///{tmp_path}/x.db") as transport, asyncio.timeout(30):
        with monkeypatch.context() as broken:
            broken.setattr(transport._writer._log, "_reload", lambda: {}["never seen"])
            by_hand(tmp_path / "x.db", "UPDATE generation SET number = number + 1")
            with pytest.raises(KeyError, match="never seen"):
                await append(transport, b"first")
        await append(transport, b"second")
        assert await values(transport) == [b"second"]


async def test_a_log_that_cannot_be_made_sense_of_is_closed_all_the_same(tmp_path):
    transport = open_transport(f"sqlite:///{tmp_path}/x.db")
    await transport.admin.create_topics([TopicSpec(name="a.b", partitions=1)])
    by_hand(tmp_path / "x.db", "DELETE FROM generation")
    async with asyncio.timeout(30):
        with pytest.raises(TypeError):
            await append(transport, b"x")
        await transport.close()
    assert "sealbus-writer" not in {thread.name for thread in threading.enumerate()}


async def test_a_topic_without_partitions_counts_as_absent_and_creating_it_completes_it(tmp_path):
    async with opened(f"sqlite:///{tmp_path}/x.db") as transport, asyncio.timeout(30):
        by_hand(
            tmp_path / "x.db",
            "INSERT INTO topics (name, partitions) VALUES ('c.d', 3)",
            "UPDATE generation SET number = number + 1",
        )
        assert set(await transport.admin.topics()) == {"a.b"}
        (outcome,) = await transport.append([NewRecord("c.d", None, b"x")], timeout_s=20)
        assert isinstance(outcome, TopicMissingError)
        with pytest.raises(TopicMissingError):
            await transport.admin.ranges("c.d")
        with pytest.raises(TopicMissingError):
            await transport.read("c.d", 0, 0, max_records=1, max_bytes=MIB)
        wanted = TopicSpec(name="c.d", partitions=2)
        assert {change.found for change in await transport.admin.plan([wanted])} == {None}
        assert await transport.admin.create_topics([wanted]) == ["c.d"]
        assert (await transport.admin.topics())["c.d"] == wanted
        (outcome,) = await transport.append([NewRecord("c.d", None, b"x")], timeout_s=20)
        assert isinstance(outcome, Appended)


async def test_several_loops_in_one_process_share_a_file(tmp_path):
    url = f"sqlite:///{tmp_path}/x.db"

    async def write():
        async with opened(url) as transport:
            for _ in range(20):
                await append(transport, b"x")

    async with opened(url) as transport:
        await asyncio.gather(*(asyncio.to_thread(lambda: asyncio.run(write())) for _ in range(3)))
        assert len(await values(transport)) == 60


async def test_a_second_loop_is_refused(tmp_path):
    async with opened(f"sqlite:///{tmp_path}/x.db") as transport:
        with pytest.raises(RuntimeError, match="event loop"):
            await asyncio.to_thread(lambda: asyncio.run(append(transport, b"x")))


async def test_records_of_one_append_are_stored_by_partition(tmp_path):
    async with opened(f"sqlite:///{tmp_path}/x.db") as transport:
        await transport.admin.create_topics([TopicSpec(name="c.d", partitions=3)])
        outcomes = await transport.append(
            [NewRecord("c.d", None, b"", partition=number % 3) for number in range(9)], timeout_s=20
        )
    (rows,) = by_hand(tmp_path / "x.db", "SELECT part, off FROM records ORDER BY id")
    assert rows == sorted(rows)
    assert [(outcome.partition, outcome.offset) for outcome in outcomes] == [
        (number % 3, number // 3) for number in range(9)
    ]
