"""What an audit's database has open is closed, whatever state its file is in."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import pytest

from bus.errors import InboxError, UnstorableError
from consumers.operations.audit import databases
from tests.databases import Postgres


@pytest.fixture(params=["sqlite", "postgres"])
async def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/audit.db"
    server: Postgres = request.getfixturevalue("postgres")
    return await server.create_database()


async def test_a_file_that_is_not_a_database_is_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "audit.db").write_bytes(b"something else " * 1_000)
    made: list[sqlite3.Connection] = []
    connect = sqlite3.connect

    def noted(*arguments: Any, **named: Any) -> sqlite3.Connection:
        made.append(connect(*arguments, **named))
        return made[-1]

    monkeypatch.setattr(sqlite3, "connect", noted)
    database = databases.open_database(f"sqlite:///{tmp_path}/audit.db")
    with pytest.raises(InboxError, match="file is not a database"):
        await database.open()
    await database.close()
    (connection,) = made
    with pytest.raises(sqlite3.ProgrammingError, match="closed"):
        connection.execute("SELECT 1")


async def test_an_argument_stands_wherever_its_number_does(tmp_path: Path) -> None:
    database = databases.open_database(f"sqlite:///{tmp_path}/audit.db")
    await database.open()
    async with database.transaction() as rows:
        await rows.fetch("CREATE TABLE pairs (a TEXT, b TEXT)")
        await rows.many("INSERT INTO pairs VALUES ($2, $1)", [("one", "two"), ("three", "four")])
    assert await database.read("SELECT b, $2, $1 FROM pairs WHERE a = $2", "x", "two") == [("one", "two", "x")]
    await database.close()


async def test_every_text_goes_in_is_found_and_comes_out(url: str) -> None:
    database = databases.open_database(url)
    await database.open()
    said = ["plain", "a\0b", "\ud800", "\x10", "\x100"]
    async with database.transaction() as rows:
        await rows.fetch("CREATE TABLE texts (said TEXT NOT NULL)")
        await rows.fetch("INSERT INTO texts (said) VALUES ($1)", said[0])
        await rows.many("INSERT INTO texts (said) VALUES ($1)", [(text,) for text in said[1:]])
    assert sorted(text for (text,) in await database.read("SELECT said FROM texts")) == sorted(said)
    for text in said:
        assert await database.read("SELECT said FROM texts WHERE said = $1", text) == [(text,)]
    await database.close()


async def test_a_refused_value_is_not_a_fault_of_the_store(url: str) -> None:
    database = databases.open_database(url)
    await database.open()
    async with database.transaction() as rows:
        await rows.fetch("CREATE TABLE numbers (number BIGINT NOT NULL)")
    with pytest.raises(UnstorableError):
        async with database.transaction() as rows:
            await rows.many("INSERT INTO numbers (number) VALUES ($1)", [(1,), (1 << 70,)])
    assert await database.read("SELECT number FROM numbers") == []
    await database.close()


async def test_a_value_too_long_for_an_index_is_refused(postgres: Postgres) -> None:
    database = databases.open_database(await postgres.create_database())
    await database.open()
    async with database.transaction() as rows:
        await rows.fetch("CREATE TABLE keys (key text PRIMARY KEY)")
    with pytest.raises(UnstorableError):
        async with database.transaction() as rows:
            await rows.fetch("INSERT INTO keys (key) VALUES ($1)", "".join(map(chr, range(0x4E00, 0x4E00 + 9_000))))
    await database.close()
