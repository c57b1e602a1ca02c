"""Doing what a timeline says: each kind of fault, done to the processes of one run and undone again.

Owns the table of deeds that need no cluster. Those of brokers and links are `clusterdeeds`'.
"""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from harness import disks
from harness.timeline import Fault

from bus.transports import open_transport

if TYPE_CHECKING:
    from harness.arena import Arena

__all__ = ["DEEDS", "Deed"]

Deed = Callable[["Arena", Fault], Awaitable[None]]


async def kill(arena: Arena, fault: Fault) -> None:
    """SIGKILL; the seat stays empty for as long as the fault lasts."""
    await arena.crew.seat(fault.whom).kill(fault.for_s)
    await asyncio.sleep(fault.for_s)


async def failpoint(arena: Arena, fault: Fault) -> None:
    """The next process in that seat dies at a named place, the n-th time it comes there."""
    seat = arena.crew.seat(fault.whom)
    seat.once = {"SEALBUS_FAILPOINT": fault.how}
    if seat.running:
        await seat.kill()
    else:
        await seat.start()


async def freeze(arena: Arena, fault: Fault) -> None:
    """SIGSTOP, later SIGCONT."""
    await arena.crew.seat(fault.whom).freeze(fault.for_s)


async def ask(arena: Arena, fault: Fault) -> None:
    """SIGTERM, and once more if the detail says so; somebody new sits down afterwards."""
    seat = arena.crew.seat(fault.whom)
    if not seat.running:
        return
    seat.ask()
    if fault.how == "twice":
        await asyncio.sleep(0.2)
        seat.ask()
    await asyncio.sleep(fault.for_s)


async def join(arena: Arena, fault: Fault) -> None:
    """One more worker, for as long as the fault lasts; then it leaves, in order or not."""
    seat = arena.crew.seat(fault.whom)
    await seat.start()
    await asyncio.sleep(fault.for_s)
    if fault.how == "killed":
        seat.wanted = False
        await seat.kill()
    else:
        arena.codes.append(await seat.stop())


async def publisher(arena: Arena, fault: Fault) -> None:
    """The publisher is killed, and another goes on from its journal; or it stands still for a while."""
    if fault.how == "freeze":
        await arena.freeze_publisher(fault.for_s)
        return
    arena.kill_publisher()
    await asyncio.sleep(fault.for_s)
    await arena.start_publisher()


async def flag(arena: Arena, fault: Fault) -> None:
    """The dependency that some handlers need is down."""
    arena.flag.touch()
    await asyncio.sleep(fault.for_s)
    arena.flag.unlink(missing_ok=True)


async def broken(arena: Arena, _: Fault) -> None:
    """The same, until somebody repairs it: the row's script."""
    arena.flag.touch()


async def lock(arena: Arena, fault: Fault) -> None:
    """Somebody else holds the write lock of a file: the log, or the inbox beside it."""
    path = arena.log_path if fault.whom == "log" else arena.inbox_path
    connection = await asyncio.to_thread(
        sqlite3.connect, path, timeout=30.0, isolation_level=None, check_same_thread=False
    )
    try:
        await asyncio.to_thread(connection.execute, "BEGIN IMMEDIATE")
        await asyncio.sleep(fault.for_s)
    finally:
        with contextlib.suppress(sqlite3.Error):
            connection.execute("ROLLBACK")
        connection.close()


async def full(arena: Arena, fault: Fault) -> None:
    """The file system of the log and the inbox is full: no result becomes durable meanwhile, as if all workers stood
    still."""
    with disks.filled(arena.log_path.parent):
        arena.crew.note_all()
        await asyncio.sleep(fault.for_s)
    arena.crew.note_all()


async def late_topics(arena: Arena, fault: Fault) -> None:
    """Topics that were missing so far are there once the fault is over."""
    await asyncio.sleep(fault.for_s)
    transport = open_transport(arena.direct_url)
    try:
        await transport.admin.create_topics(arena.topics)
    finally:
        await transport.close()


async def gap(arena: Arena, fault: Fault) -> None:
    """Offsets that no record has, as compaction and transaction markers leave them."""
    with contextlib.closing(sqlite3.connect(arena.log_path, timeout=30.0, isolation_level=None)) as connection:
        connection.execute(
            """UPDATE partitions SET next_offset = next_offset + ? WHERE next_offset > 0 AND topic_id IN
            (SELECT id FROM topics WHERE name IN (?, ?, ?))""",
            (int(fault.how), *(f"{arena.namespace}.{name}" for name in ("fault.task", "fault.strict", "fault.free"))),
        )


async def clock(arena: Arena, fault: Fault) -> None:
    """The wall clocks of workers, or of the publisher, are wrong by so many seconds."""
    path = arena.clock(fault.whom)
    path.write_text(fault.how)
    await asyncio.sleep(fault.for_s)
    path.write_text("0")


DEEDS: dict[str, Deed] = {
    "kill": kill,
    "failpoint": failpoint,
    "freeze": freeze,
    "ask": ask,
    "join": join,
    "publisher": publisher,
    "flag": flag,
    "break": broken,
    "lock": lock,
    "full": full,
    "late-topics": late_topics,
    "gap": gap,
    "clock": clock,
}
