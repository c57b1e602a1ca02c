"""Delete what a topic need not keep.

Owns the periodic sweep by age, by size (per partition, as in Kafka) and by key, in steps so small that appends hardly
wait. `admin` owns the settings. Freed space is reused; the file does not shrink.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterable, Sequence
from functools import partial

from bus.clock import Clock
from bus.errors import BusError
from bus.transports.sqlite.background_task import Background
from bus.transports.sqlite.group_commit import LogWriter
from bus.transports.sqlite.read_connection import ReadConnection
from bus.transports.sqlite.write_transaction import LogFile, Topic

__all__ = ["Sweeper", "expendable"]

_Row = tuple[int, int, int]
"""Offset, time in milliseconds, size in bytes."""

_STEP = 1000
_SIZE = "coalesce(length(key), 0) + coalesce(length(value), 0) + coalesce(length(headers), 0)"
# The inserted text is a constant.
_OLDEST = f"SELECT off, CAST(ts AS INTEGER), {_SIZE} FROM records WHERE part = ? ORDER BY off LIMIT ?"  # noqa: S608


def expendable(rows: Iterable[_Row], oldest_ms: int | None, excess: int) -> list[_Row]:
    """Return the first of *rows* that can be deleted: older than *oldest_ms*, or beyond the size limit by *excess*
    bytes.

    Consumes one row more than it returns.
    """
    going = []
    for row in rows:
        _, time_ms, size = row
        too_old = oldest_ms is not None and time_ms < oldest_ms
        too_much = excess > 0 and size <= excess
        if not too_old and not too_much:
            break
        excess -= size
        going.append(row)
    return going


class Sweeper:
    """Sweeps every *interval_s* seconds once started."""

    def __init__(self, clock: Clock, writer: LogWriter, reader: ReadConnection, interval_s: float) -> None:
        self._clock = clock
        self._writer = writer
        self._reader = reader
        self._interval_s = interval_s
        self._compacted_to: dict[int, int] = {}
        self._background = Background("sealbus-retention", self._live)

    def start(self) -> None:
        self._background.start()

    async def stop(self) -> None:
        await self._background.stop()

    async def _live(self) -> None:
        while True:
            await self._clock.sleep(self._interval_s)
            # Appends report a full or locked log; the next sweep tries again.
            with contextlib.suppress(BusError):
                await self.sweep()

    async def sweep(self) -> None:
        """Run one pass over all topics."""
        topics: list[Topic] = await self._writer.run(lambda log: list(log.topics.values()))
        for topic in topics:
            for part in topic.parts:
                if topic.spec.retention_ms is not None or topic.spec.retention_bytes is not None:
                    await self._trim(topic, part)
                if topic.spec.compacted:
                    await self._compact(part)

    async def _trim(self, topic: Topic, part: int) -> None:
        age, limit = topic.spec.retention_ms, topic.spec.retention_bytes
        oldest_ms = None if age is None else self._clock.now_ms() - age
        while await self._writer.run(partial(_trimmed, part=part, oldest_ms=oldest_ms, limit=limit)) == _STEP:
            pass

    async def _compact(self, part: int) -> None:
        end, offsets = await self._reader.run(partial(_superseded, part=part, after=self._compacted_to.get(part, -1)))
        for start in range(0, len(offsets), _STEP):
            await self._writer.run(partial(_delete, part=part, offsets=offsets[start : start + _STEP]))
        self._compacted_to[part] = end


def _trimmed(log: LogFile, part: int, oldest_ms: int | None, limit: int | None) -> int:
    used_bytes, start = log.connection.execute(
        "SELECT bytes, start_offset FROM partitions WHERE id = ?", (part,)
    ).fetchone()
    # Read row by row: rows read and kept would fill this connection's page cache at every sweep.
    with contextlib.closing(log.connection.execute(_OLDEST, (part, _STEP))) as rows:
        going = expendable(rows, oldest_ms, 0 if limit is None else used_bytes - limit)
    if going:
        last = going[-1][0]
        log.connection.execute("DELETE FROM records WHERE part = ? AND off <= ?", (part, last))
        _account(log, part, sum(size for _, _, size in going))
        log.connection.execute(
            "UPDATE partitions SET start_offset = max(start_offset, ?) WHERE id = ?", (last + 1, part)
        )
        # A group without a commit would silently start again at the oldest record left. The commit at the old start
        # makes the loss visible.
        log.connection.execute("UPDATE leases SET committed = ? WHERE part = ? AND committed IS NULL", (start, part))
    return len(going)


def _superseded(connection: sqlite3.Connection, part: int, after: int) -> tuple[int, list[int]]:
    """Return the partition's end, and the offsets whose key has a newer record; none if nothing came since *after*."""
    end = connection.execute("SELECT next_offset FROM partitions WHERE id = ?", (part,)).fetchone()[0]
    if end == after:
        return end, []
    rows = connection.execute(
        """SELECT off FROM (SELECT off, row_number() OVER (PARTITION BY key ORDER BY off DESC) AS age
           FROM records WHERE part = ? AND key IS NOT NULL) WHERE age > 1""",
        (part,),
    )
    return end, [off for (off,) in rows]


def _delete(log: LogFile, part: int, offsets: Sequence[int]) -> None:
    marks = ", ".join("?" * len(offsets))
    # The inserted text is question marks and a constant.
    query = f"DELETE FROM records WHERE part = ? AND off IN ({marks}) RETURNING {_SIZE}"  # noqa: S608
    size = sum(row[0] for row in log.connection.execute(query, (part, *offsets)).fetchall())
    _account(log, part, size)


def _account(log: LogFile, part: int, size: int) -> None:
    # Records added by hand were never counted.
    log.connection.execute("UPDATE partitions SET bytes = max(0, bytes - ?) WHERE id = ?", (size, part))
