"""The local queues of other people, and sqlite3 by hand: put, then get and acknowledge, in one process.

Owns the rivals' side of the embedded families. Each is used the fastest way its interface offers, and all synchronise
to disk at each commit (`synchronous = FULL` in WAL mode), as the embedded log does. Values are ready bytes, or ready
text where a library takes nothing else.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol, cast

from huey.storage import SqliteStorage
from litequeue import LiteQueue
from persistqueue import SQLiteAckQueue, SQLiteQueue
from speed.measurement import Answer, Meter, Task, settle_memory
from speed.payloads import bodies

__all__ = [
    "get_by_hand",
    "get_huey",
    "get_litequeue",
    "get_persistqueue",
    "put_by_hand",
    "put_huey",
    "put_litequeue",
    "put_one_by_hand",
]

_TOGETHER = 500
_FULL = "PRAGMA synchronous = FULL"


class _Queue(Protocol):
    def put(self, values: Sequence[bytes]) -> None: ...

    def get(self, count: int) -> int: ...


class _ByHand:
    """A table, a position that is committed with what was read."""

    def __init__(self, folder: Path, together: int = _TOGETHER) -> None:
        self._together = together
        self._connection = sqlite3.connect(folder / "queue.db", isolation_level=None)
        self._connection.execute("PRAGMA journal_mode = WAL")
        self._connection.execute(_FULL)
        self._connection.execute("CREATE TABLE IF NOT EXISTS queue (id INTEGER PRIMARY KEY, ms INTEGER, value BLOB)")
        self._connection.execute("CREATE TABLE IF NOT EXISTS position (id INTEGER)")
        self._connection.execute("INSERT INTO position VALUES (0)")
        self._at = 0

    def put(self, values: Sequence[bytes]) -> None:
        for start in range(0, len(values), self._together):
            now_ms = time.time_ns() // 1_000_000
            self._connection.execute("BEGIN IMMEDIATE")
            rows = [(now_ms, value) for value in values[start : start + self._together]]
            self._connection.executemany("INSERT INTO queue (ms, value) VALUES (?, ?)", rows)
            self._connection.execute("COMMIT")

    def get(self, count: int) -> int:
        got = 0
        while got < count:
            wanted = min(self._together, count - got)
            rows = self._connection.execute(
                "SELECT id, value FROM queue WHERE id > ? ORDER BY id LIMIT ?", (self._at, wanted)
            ).fetchall()
            self._at = rows[-1][0]
            self._connection.execute("UPDATE position SET id = ?", (self._at,))
            got += len(rows)
        return got


class _Bytes:
    """Instead of pickle: the values are bytes already."""

    @staticmethod
    def loads(value: bytes) -> bytes:
        return value

    @staticmethod
    def dumps(value: bytes) -> bytes:
        return value


class _PersistQueue:
    """`SQLiteAckQueue` takes no batches: every put, get and ack is a transaction."""

    def __init__(self, folder: Path) -> None:
        self._queue = SQLiteAckQueue(str(folder / "queue"), multithreading=True, serializer=_Bytes)
        for connection in (self._queue._putter, self._queue._getter):
            cast("sqlite3.Connection", connection).execute(_FULL)

    def put(self, values: Sequence[bytes]) -> None:
        for value in values:
            self._queue.put(value)

    def get(self, count: int) -> int:
        for _ in range(count):
            self._queue.ack(self._queue.get())
        return count


class _PersistQueueBatches:
    """`SQLiteQueue` commits what was got when told to; there is no acknowledgement of one message, and no batch for
    putting."""

    def __init__(self, folder: Path) -> None:
        self._queue = SQLiteQueue(str(folder / "queue"), auto_commit=False, serializer=_Bytes)
        cast("sqlite3.Connection", self._queue._putter).execute(_FULL)

    def put(self, values: Sequence[bytes]) -> None:
        for value in values:
            self._queue.put(value)
        self._queue.task_done()

    def get(self, count: int) -> int:
        for number in range(1, count + 1):
            self._queue.get()
            if number % _TOGETHER == 0 or number == count:
                self._queue.task_done()
        return count


class _LiteQueue:
    """Its transactions make batches of puts and of done marks; a pop is a transaction of its own."""

    def __init__(self, folder: Path) -> None:
        self._queue = LiteQueue(str(folder / "queue.db"))
        # It asks for NORMAL itself.
        self._queue.conn.execute(_FULL)

    def put(self, values: Sequence[bytes]) -> None:
        for start in range(0, len(values), _TOGETHER):
            with self._queue.transaction():
                for value in values[start : start + _TOGETHER]:
                    self._queue.put(value.decode())

    def get(self, count: int) -> int:
        for start in range(0, count, _TOGETHER):
            popped = [self._queue.pop() for _ in range(min(_TOGETHER, count - start))]
            with self._queue.transaction():
                for message in popped:
                    self._queue.done(message.message_id)
        return count


class _Huey:
    """The storage of `SqliteHuey` with fsync on; it has no batches and no acknowledgement: what was taken is gone."""

    def __init__(self, folder: Path) -> None:
        self._storage = SqliteStorage(filename=str(folder / "queue.db"), fsync=True)

    def put(self, values: Sequence[bytes]) -> None:
        for value in values:
            self._storage.enqueue(value)

    def get(self, count: int) -> int:
        return sum(self._storage.dequeue() is not None for _ in range(count))


def _put(task: Task, opened: Callable[[Path], _Queue]) -> Answer:
    values = bodies(task.payloads, task.warm_up + task.messages)
    queue = opened(Path(task.folder))
    settle_memory()
    meter = Meter()
    queue.put(values[: task.warm_up])
    meter.start()
    queue.put(values[task.warm_up :])
    meter.stop()
    return meter.answer(task.messages, in_log=len(values))


def _get(task: Task, opened: Callable[[Path], _Queue], filler: Callable[[Path], _Queue] | None = None) -> Answer:
    """Put first, outside the time, then get and acknowledge."""
    values = bodies(task.payloads, task.warm_up + task.messages)
    queue = opened(Path(task.folder))
    (filler(Path(task.folder)) if filler else queue).put(values)
    count = len(values)
    del values
    settle_memory()
    meter = Meter()
    queue.get(task.warm_up)
    meter.start()
    got = queue.get(task.messages)
    meter.stop()
    if got != task.messages:
        raise RuntimeError(f"{got} of {task.messages} came back")
    return meter.answer(task.messages, in_log=count)


def put_by_hand(task: Task) -> Answer:
    """Five hundred rows in a transaction."""
    return _put(task, _ByHand)


def put_one_by_hand(task: Task) -> Answer:
    """A row in a transaction."""
    return _put(task, lambda folder: _ByHand(folder, 1))


def get_by_hand(task: Task) -> Answer:
    """Five hundred rows, then the position."""
    return _get(task, _ByHand)


def get_one_by_hand(task: Task) -> Answer:
    """A row, then the position."""
    return _get(task, lambda folder: _ByHand(folder, 1), _ByHand)


def put_persistqueue(task: Task) -> Answer:
    """One by one: there is no other way."""
    return _put(task, _PersistQueue)


def get_persistqueue(task: Task) -> Answer:
    """`get`, `ack`."""
    return _get(task, _PersistQueue)


def get_persistqueue_batches(task: Task) -> Answer:
    """500 `get`, one `task_done`."""
    return _get(task, _PersistQueueBatches)


def put_litequeue(task: Task) -> Answer:
    """500 `put` in a transaction."""
    return _put(task, _LiteQueue)


def get_litequeue(task: Task) -> Answer:
    """500 `pop`, then 500 `done` in a transaction."""
    return _get(task, _LiteQueue)


def put_huey(task: Task) -> Answer:
    """One by one: there is no other way."""
    return _put(task, _Huey)


def get_huey(task: Task) -> Answer:
    """`dequeue`."""
    return _get(task, _Huey)
