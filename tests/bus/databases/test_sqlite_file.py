"""Several writers of one file take turns."""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from bus.databases.sqlite_file import begin_writing, switch_to_wal


@pytest.fixture
def path(tmp_path: Path) -> Path:
    with closing(opened(tmp_path / "x.db")) as connection:
        switch_to_wal(connection, 1.0)
        connection.execute("CREATE TABLE rows (n INTEGER)")
    return tmp_path / "x.db"


def opened(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(path, timeout=0, isolation_level=None, check_same_thread=False)


@pytest.fixture
def greedy(path: Path) -> Iterator[None]:
    """A writer that holds the lock for 20 ms and is back within one, again and again."""
    done = threading.Event()

    def write() -> None:
        with closing(opened(path)) as connection:
            while not done.is_set():
                begin_writing(connection, 5.0)
                connection.execute("INSERT INTO rows VALUES (1)")
                time.sleep(0.02)
                connection.execute("COMMIT")
                time.sleep(0.0005)

    thread = threading.Thread(target=write)
    thread.start()
    yield
    done.set()
    thread.join()


@pytest.mark.medium
@pytest.mark.usefixtures("greedy")
def test_a_greedy_writer_does_not_keep_another_one_waiting(path: Path) -> None:
    waits_s = []
    with closing(opened(path)) as connection:
        for _ in range(15):
            started_s = time.monotonic()
            begin_writing(connection, 10.0)
            connection.execute("COMMIT")
            waits_s.append(time.monotonic() - started_s)
            time.sleep(0.02)
    assert max(waits_s) < 2.0


def test_a_persistent_lock_raises_in_time(path: Path) -> None:
    with closing(opened(path)) as holder, closing(opened(path)) as connection:
        begin_writing(holder, 1.0)
        started_s = time.monotonic()
        with pytest.raises(sqlite3.OperationalError, match="locked"):
            begin_writing(connection, 0.1)
        assert 0.1 <= time.monotonic() - started_s < 5.0


def test_other_errors_are_not_waited_out(path: Path) -> None:
    with closing(opened(path)) as connection:
        begin_writing(connection, 1.0)
        with pytest.raises(sqlite3.OperationalError, match="within a transaction"):
            begin_writing(connection, 60.0)
