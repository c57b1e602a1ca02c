"""When the inbox's file is synchronised, and what a crash of its machine leaves of it."""

from __future__ import annotations

import asyncio
import os
import shutil
import sqlite3
from collections.abc import AsyncIterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from bus.clock import SystemClock
from bus.errors import InboxError
from bus.transports.base import NewRecord
from consumers.delivery.inbox.base import AlreadyDone, Ask, Claimed, End
from consumers.delivery.inbox.sqlite import SqliteInbox
from consumers.delivery.inbox.sqlite import wal_sync as syncing
from tests.consumers.delivery.inbox.stores import LATER_MS, claim, claimed, key

OUTPUTS = [NewRecord("agents.note.added", b"k", b"v")]


class Disk:
    """What the machine's disk has: the inbox's files as they were when they were last synchronised."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.copy = path.with_name("after-the-crash.db")
        self.syncs = 0
        self.failing = 0

    def sync(self, descriptor: int) -> None:
        if self.failing:
            self.failing -= 1
            raise OSError(5, "Input/output error")
        os.fsync(descriptor)
        self.syncs += 1
        for ending in ("", "-wal"):
            shutil.copy(f"{self.path}{ending}", f"{self.copy}{ending}")


@pytest.fixture
def disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Disk:
    disk = Disk(tmp_path / "inbox.db")
    monkeypatch.setattr(syncing, "_datasync", disk.sync)
    return disk


async def opened(path: Path) -> SqliteInbox:
    inbox = SqliteInbox(str(path), owner="a", clock=SystemClock())
    await inbox.open()
    return inbox


@pytest.fixture
async def inbox(disk: Disk) -> AsyncIterator[SqliteInbox]:
    inbox = await opened(disk.path)
    yield inbox
    await inbox.close()


async def soon(submit: Any, items: Sequence[Any]) -> None:
    """Until all are answered."""
    told = asyncio.Event()
    submit(items, lambda _: told.set())
    await told.wait()


async def done_soon(inbox: SqliteInbox, names: Sequence[str]) -> None:
    asks = [Ask(key(name), "hash-1", LATER_MS) for name in names]
    await soon(inbox.claim_soon, asks)
    ends = [End(ask.key, ask.answer.token) for ask in asks if isinstance(ask.answer, Claimed)]
    await soon(inbox.finish_soon, ends)
    assert [end.answer for end in ends] == [True] * len(names)


async def test_claims_and_silent_results_share_one_sync(inbox: SqliteInbox, disk: Disk) -> None:
    for number in range(5):
        await done_soon(inbox, [f"task-{number}"])
    assert disk.syncs == 0
    await inbox.sync()
    assert disk.syncs == 1
    await inbox.sync()
    assert disk.syncs == 1


async def test_synchronised_rows_survive_a_machine_crash(inbox: SqliteInbox, disk: Disk) -> None:
    await done_soon(inbox, ["before"])
    await inbox.sync()
    await done_soon(inbox, ["after"])
    assert await claim(inbox, "after") == AlreadyDone(())
    crashed = await opened(disk.copy)
    assert await claim(crashed, "before") == AlreadyDone(())
    assert isinstance(await claim(crashed, "after"), Claimed)
    await crashed.close()


async def test_a_result_with_outputs_outlives_the_machine_before_it_is_told_of(inbox: SqliteInbox, disk: Disk) -> None:
    assert await inbox.finish(key("task"), (await claimed(inbox, "task")).token, OUTPUTS)
    crashed = await opened(disk.copy)
    assert await claim(crashed, "task") == AlreadyDone(tuple(OUTPUTS))
    await crashed.close()


async def test_a_handlers_writes_are_durable_before_its_result_is_reported(inbox: SqliteInbox, disk: Disk) -> None:
    token = (await claimed(inbox, "task")).token
    transaction = await inbox.begin()
    await transaction.execute("CREATE TABLE bookings (account TEXT)")
    await transaction.execute("INSERT INTO bookings VALUES ($1)", "a")
    assert await inbox.finish(key("task"), token, (), transaction)
    with closing(sqlite3.connect(disk.copy)) as after, after:
        assert after.execute("SELECT account FROM bookings").fetchall() == [("a",)]
    after.close()


async def test_synchronising_does_not_wait_for_a_handlers_open_transaction(inbox: SqliteInbox, disk: Disk) -> None:
    await done_soon(inbox, ["task"])
    transaction = await inbox.begin()
    async with asyncio.timeout(60):
        await inbox.sync()
    assert disk.syncs == 1
    await transaction.rollback()


async def test_synchronising_does_not_wait_for_a_lock_that_another_program_holds(
    inbox: SqliteInbox, disk: Disk
) -> None:
    await done_soon(inbox, ["task"])
    other = sqlite3.connect(disk.path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    asking = asyncio.create_task(claim(inbox, "another"))
    syncing = asyncio.create_task(inbox.sync())
    async with asyncio.timeout(60):
        await syncing
    assert (disk.syncs, asking.done()) == (1, False)
    other.close()
    assert isinstance(await asking, Claimed)


async def test_after_a_disk_has_failed_all_is_written_back_before_it_counts(inbox: SqliteInbox, disk: Disk) -> None:
    await done_soon(inbox, ["first"])
    disk.failing = 1
    with pytest.raises(InboxError, match=r"may not be on its disk: .*Input/output error"):
        await inbox.sync()
    await done_soon(inbox, ["second"])
    await inbox.sync()
    assert disk.syncs == 0
    assert disk.path.with_name("inbox.db-wal").stat().st_size == 0
    await done_soon(inbox, ["third"])
    await inbox.sync()
    assert disk.syncs == 1


async def test_a_result_that_could_not_be_synchronised_is_told_of_when_it_could(inbox: SqliteInbox, disk: Disk) -> None:
    token = (await claimed(inbox, "task")).token
    disk.failing = 1
    with pytest.raises(InboxError, match="may not be on its disk"):
        await inbox.finish(key("task"), token, OUTPUTS)
    assert await inbox.finish(key("task"), token, OUTPUTS)
    assert await claim(inbox, "task") == AlreadyDone(tuple(OUTPUTS))


async def test_a_connection_that_is_lost_takes_no_doubt_with_it(inbox: SqliteInbox, disk: Disk) -> None:
    await done_soon(inbox, ["before"])
    inbox._writer._table.disconnect()
    with pytest.raises(InboxError, match="could not be opened again yet"):
        await inbox.sync()
    await done_soon(inbox, ["after"])
    await inbox.sync()
    assert disk.syncs == 1


async def test_sqlite_synchronises_every_commit_of_a_log_that_cannot_be_opened_beside_it(
    disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> int:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(os, "open", refuse)
    inbox = await opened(disk.path)
    assert inbox._writer._table.connection.execute("PRAGMA synchronous").fetchone()[0] == 2
    await done_soon(inbox, ["task"])
    await inbox.sync()
    await inbox.close()
