"""What is SQLite's alone: the file, its disk, and other programs that write to it."""

from __future__ import annotations

import asyncio
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from bus.clock import ManualClock, SystemClock
from bus.errors import ConfigurationError, InboxError
from bus.transports.base import NewRecord
from consumers.delivery.inbox.base import AlreadyDone, Ask, Claimed, ClaimedElsewhere
from consumers.delivery.inbox.sqlite import SqliteInbox
from tests.consumers.delivery.inbox.stores import LATER_MS, claim, claimed, key


async def opened(path: Path, *, clock: ManualClock | SystemClock | None = None) -> SqliteInbox:
    inbox = SqliteInbox(str(path), owner="a", clock=clock or SystemClock())
    await inbox.open()
    return inbox


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "small"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(folder)], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("cannot mount a small tmpfs here")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


async def test_a_full_disk_refuses_loses_nothing_and_works_again(small_disk: Path) -> None:
    ballast = small_disk / "ballast"
    ballast.write_bytes(b"\0" * 1_500_000)
    inbox = await opened(small_disk / "inbox.db")
    outputs = [NewRecord("agents.note.added", b"k", b"v" * 50_000)]
    done: list[str] = []

    async def fill_up() -> None:
        for number in range(200):
            name = f"task-{number}"
            assert await inbox.finish(key(name), (await claimed(inbox, name)).token, outputs)
            done.append(name)

    with pytest.raises(InboxError, match="no space left"):
        await fill_up()
    assert done
    ballast.unlink()
    assert await inbox.finish(key("after"), (await claimed(inbox, "after")).token, ())
    assert [await claim(inbox, name) for name in done] == [AlreadyDone(tuple(outputs))] * len(done)
    await inbox.close()


async def test_the_write_ahead_log_does_not_keep_the_room_that_a_full_disk_gets_again(small_disk: Path) -> None:
    ballast = small_disk / "ballast"
    ballast.write_bytes(b"\0" * 2_500_000)
    inbox = await opened(small_disk / "inbox.db")

    async def work(count: int) -> None:
        for _ in range(count):
            # Few bytes each, and several pages of the write-ahead log.
            await inbox.release(key(), (await claimed(inbox)).token)

    with pytest.raises(InboxError, match="no space left"):
        await work(2_000)
    ballast.unlink()
    await work(1_000)
    await inbox.close()


async def test_a_transaction_on_a_full_disk_is_undone(small_disk: Path) -> None:
    (small_disk / "ballast").write_bytes(b"\0" * 2_500_000)
    inbox = await opened(small_disk / "inbox.db")
    token = (await claimed(inbox)).token
    transaction = await inbox.begin()
    await transaction.execute("CREATE TABLE blobs (content BLOB)")

    async def fill_up() -> None:
        for _ in range(400):
            await transaction.execute("INSERT INTO blobs VALUES (zeroblob(100000))")

    with pytest.raises(InboxError, match="no space left"):
        await fill_up()
    with pytest.raises(InboxError, match="has ended"):
        await inbox.finish(key(), token, (), transaction)
    assert await inbox.finish(key(), token, ())
    transaction = await inbox.begin()
    with pytest.raises(sqlite3.OperationalError, match="no such table"):
        await transaction.fetch("SELECT * FROM blobs")
    await inbox.close()


async def test_a_file_that_was_deleted_is_an_error_and_not_a_new_one(tmp_path: Path) -> None:
    inbox = await opened(tmp_path / "inbox.db")
    for path in tmp_path.iterdir():
        path.unlink()
    with pytest.raises(InboxError, match="deleted or replaced"):
        await claim(inbox)
    await inbox.close()
    assert not (tmp_path / "inbox.db").exists()


async def test_a_relative_path_stays_the_same_file_when_the_working_directory_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    inbox = await opened(Path("inbox.db"))
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert isinstance(await claim(inbox, "one"), Claimed)
    await inbox.close()


async def test_a_lock_that_another_program_keeps_is_an_inbox_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("consumers.delivery.inbox.sqlite.table.INBOX_BUSY_TIMEOUT_S", 0.05)
    inbox = await opened(tmp_path / "inbox.db")
    other = sqlite3.connect(tmp_path / "inbox.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    for call in (claim(inbox), inbox.begin(), inbox.purge()):
        with pytest.raises(InboxError, match="locked by another writer"):
            await call
    other.execute("ROLLBACK")
    other.close()
    assert await claim(inbox) == Claimed(1)
    await inbox.close()


@pytest.mark.parametrize("place", ["missing/inbox.db", "."])
async def test_a_place_that_cannot_hold_a_file_is_an_inbox_error(tmp_path: Path, place: str) -> None:
    with pytest.raises(InboxError):
        await opened(tmp_path / place)


async def test_a_file_that_is_no_database_is_left_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "inbox.db"
    path.write_bytes(b"minutes of the last meeting\n" * 100)
    with pytest.raises(InboxError, match="not a SQLite database"):
        await opened(path)
    assert path.read_bytes().startswith(b"minutes")


async def test_the_users_own_tables_stay_beside_ours(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "app.db")) as own, own:
        own.execute("CREATE TABLE orders (number INTEGER)")
    own.close()
    inbox = await opened(tmp_path / "app.db")
    transaction = await inbox.begin()
    await transaction.execute("INSERT INTO orders VALUES (1)")
    assert await inbox.finish(key(), 1, (), transaction) is False
    await inbox.close()


async def test_tables_of_a_newer_sealbus_are_refused(tmp_path: Path) -> None:
    await (await opened(tmp_path / "inbox.db")).close()
    with closing(sqlite3.connect(tmp_path / "inbox.db")) as connection, connection:
        connection.execute("UPDATE sealbus_schema SET version = 99")
    connection.close()
    with pytest.raises(ConfigurationError, match="install the newer sealbus"):
        await opened(tmp_path / "inbox.db")


@pytest.mark.parametrize(
    "statement", ["COMMIT", " end;", "-- x\nROLLBACK", "/* y */ begin", "PRAGMA synchronous = OFF", "ATTACH 'x' AS y"]
)
async def test_a_handler_cannot_end_the_transaction_under_the_inbox(tmp_path: Path, statement: str) -> None:
    inbox = await opened(tmp_path / "inbox.db")
    transaction = await inbox.begin()
    with pytest.raises(sqlite3.ProgrammingError, match="not for a handler"):
        await transaction.execute(statement)
    assert await transaction.fetch("SELECT 1") == [(1,)]
    await inbox.close()


async def test_an_argument_that_cannot_be_bound_spoils_nothing(tmp_path: Path) -> None:
    inbox = await opened(tmp_path / "inbox.db")
    token = (await claimed(inbox)).token
    transaction = await inbox.begin()
    for wrong in (object(), 2**80, "\ud800"):
        with pytest.raises((sqlite3.Error, OverflowError, UnicodeError)):
            await transaction.fetch("SELECT $1", wrong)
    assert await inbox.finish(key(), token, (), transaction)
    await inbox.close()


async def test_a_value_that_no_row_can_hold_costs_its_own_caller_only(tmp_path: Path) -> None:
    inbox = await opened(tmp_path / "inbox.db")
    answers = await asyncio.gather(
        claim(inbox, "good"), claim(inbox, "bad", until_ms=2**80), claim(inbox, "fine"), return_exceptions=True
    )
    assert answers[0] == answers[2] == Claimed(1)
    assert isinstance(answers[1], OverflowError)
    await inbox.close()


async def test_a_handler_cancelled_in_its_transaction_does_not_block_the_others(tmp_path: Path) -> None:
    inbox = await opened(tmp_path / "inbox.db")
    for turns in range(6):
        beginning = asyncio.ensure_future(inbox.begin())
        for _ in range(turns):
            await asyncio.sleep(0)
        beginning.cancel()
        await asyncio.wait([beginning])
        if not beginning.cancelled():
            await beginning.result().rollback()
    async with asyncio.timeout(30):
        assert await claim(inbox) == Claimed(1)
    await inbox.close()


async def test_a_lease_is_renewed_on_the_way_and_by_itself(tmp_path: Path) -> None:
    clock = ManualClock()
    inbox = await opened(tmp_path / "inbox.db", clock=clock)

    def renewed_s() -> float:
        with closing(sqlite3.connect(tmp_path / "inbox.db")) as connection, connection:
            row: tuple[float] = connection.execute("SELECT renewed_s FROM sealbus_inbox_owners").fetchone()
        connection.close()
        return row[0]

    await asyncio.sleep(0)
    clock.advance(4.0)
    await claimed(inbox)
    assert renewed_s() == 4.0
    clock.advance(5.0)
    # The renewal is one job of the writer, begun on the loop's next turn; a later job ends after it.
    await asyncio.sleep(0)
    await inbox.release(key("nobody's"), 1)
    assert renewed_s() == 9.0
    await inbox.close()


async def test_a_wall_clock_that_leaps_takes_nothing_from_the_living(tmp_path: Path) -> None:
    leap_ms = 0

    class LeapingClock(ManualClock):
        def now_ms(self) -> int:
            return super().now_ms() + leap_ms

    clock = LeapingClock()
    one, two = await opened(tmp_path / "inbox.db", clock=clock), await opened(tmp_path / "inbox.db", clock=clock)
    await claimed(one)
    leap_ms = 31 * 86_400_000
    await two.purge()
    assert isinstance(await claim(two), ClaimedElsewhere)
    await one.close()
    await two.close()


@pytest.mark.medium
async def test_a_claim_that_no_row_can_hold_fails_alone_in_the_question_it_was_asked_in(tmp_path: Path) -> None:
    inbox = await opened(tmp_path / "inbox.db")
    asks = [Ask(key(f"m-{number}"), "hash-1", LATER_MS if number != 3 else 2**70) for number in range(6)]
    told: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    inbox.claim_soon(asks, lambda _: told.set_result(None))
    await asyncio.wait_for(told, 30)
    assert [type(ask.answer) for ask in asks] == [Claimed, Claimed, Claimed, OverflowError, Claimed, Claimed]
    await inbox.close()


class Burden(Ask, kw_only=True, eq=False):
    """A claim that a whole delivery hangs on: says which thread had to free that."""

    freed_by: list[int]

    def __del__(self) -> None:
        self.freed_by.append(threading.get_ident())


async def test_claim_arguments_are_freed_on_the_callers_thread(tmp_path: Path) -> None:
    inbox = await opened(tmp_path / "inbox.db")
    freed_by: list[int] = []
    for name in ("m-1", "m-2"):
        answered = asyncio.Event()
        inbox.claim_soon(
            [Burden(key(name), "h", LATER_MS, freed_by=freed_by)],
            lambda _, answered=answered: answered.set(),  # type: ignore[misc]
        )
        await answered.wait()
        await asyncio.sleep(0)
    assert freed_by == [threading.get_ident()] * 2
    await inbox.close()


async def test_the_process_that_has_the_writer_of_the_file_is_named(tmp_path: Path) -> None:
    inbox = await opened(tmp_path / "inbox.db")
    await claimed(inbox)
    assert await inbox.who_blocks() == ""
    holding = (
        "import sqlite3, sys; c = sqlite3.connect(sys.argv[1], isolation_level=None); c.execute('BEGIN IMMEDIATE'); "
        "print('held', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", holding, str(tmp_path / "inbox.db")], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdin is not None
        assert holder.stdout.readline()
        assert (await inbox.who_blocks()).startswith(f"process {holder.pid} (")
        holder.stdin.close()
    assert await inbox.who_blocks() == ""
    await inbox.close()
