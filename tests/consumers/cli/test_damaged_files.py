"""A damaged file ends a worker with a sentence and an exit code, at its start and while it works: no trace, and no
silence."""

from __future__ import annotations

import random
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.medium  # real workers

PAGE = 8_192


def spoil(path: Path, seed: int, start: int = 0) -> None:
    """3,000 random bytes over the file."""
    chance = random.Random(seed)
    data = bytearray(path.read_bytes())
    for _ in range(3_000):
        data[chance.randrange(start, len(data))] = chance.randrange(256)
    path.write_bytes(data)


def garble(path: Path, table: bytes) -> None:
    """A schema that SQLite's own sentence about it quotes, and that is no UTF-8."""
    with closing(sqlite3.connect(path)) as database:
        database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    data = path.read_bytes()
    row, statement = b"table" + table + table, b"CREATE TABLE " + table
    assert row in data
    data = data.replace(row, b"table" + b"\xff" * len(table) + table)
    path.write_bytes(data.replace(statement, b"\xff" * len(statement)))


@pytest.fixture
def used(folder: Any) -> Any:
    """A folder whose log and inbox hold something."""
    folder.call("publish", "job.run", folder.jobs(500), "--app", "agents:app")
    folder.call("publish", "job.run", "--app", "agents:app", "--idempotency-key", "k", stdin='{"number":1}')
    worker = folder.worker()
    folder.wait_until(lambda: len(folder.handled()) == 501)
    assert folder.end(worker) == 0
    folder.call("publish", "job.run", folder.jobs(2_000), "--app", "agents:app")
    return folder


def ended(folder: Any, *arguments: str) -> str:
    """What a worker says that ends by itself."""
    worker = folder.start("run", "agents:app", *arguments)
    _, told = worker.communicate(timeout=30)
    assert worker.returncode == 69, told
    assert "Traceback" not in told
    return str(told)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_damaged_inbox(used: Any, seed: int) -> None:
    spoil(used.path / "sealbus-inbox.db", seed)
    assert "sealbus-inbox.db is" in ended(used)


@pytest.mark.parametrize("name", ["sealbus.db", "sealbus-inbox.db"])
def test_a_file_with_a_damaged_schema_is_reported_as_damaged(used: Any, name: str) -> None:
    garble(used.path / name, b"topics" if name == "sealbus.db" else b"sealbus_inbox")
    assert f"{name} is damaged" in ended(used)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_damaged_pages_of_the_log(used: Any, seed: int) -> None:
    spoil(used.path / "sealbus.db", seed, 4 * PAGE)
    assert "sealbus.db is damaged" in ended(used)


def test_under_a_supervisor_too(used: Any) -> None:
    spoil(used.path / "sealbus.db", 1, 4 * PAGE)
    assert "sealbus.db is damaged" in ended(used, "--processes", "2")
