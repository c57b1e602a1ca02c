"""What an audit's database has open is closed, whatever state its file is in."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import pytest

from bus.errors import InboxError
from consumers.audit import databases


async def test_a_file_that_is_no_database_is_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "audit.db").write_bytes(b"something else " * 1_000)
    made: list[sqlite3.Connection] = []
    connect = sqlite3.connect

    def noted(*arguments: Any, **named: Any) -> sqlite3.Connection:
        made.append(connect(*arguments, **named))
        return made[-1]

    monkeypatch.setattr(databases.sqlite3, "connect", noted)
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
