"""TaskFollower: tells whoever follows a task of its newest state.

What this replica writes is told at once; what others write is found by one query each half second, over the tasks that
are followed here. A follower gets the newest state, not each one.
"""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Final, Self

from bus.clock import Clock
from bus.errors import BusError
from bus.telemetry.logs import get_logger
from consumers.processes.sagas.process import Process
from consumers.processes.tasks.rows import TaskRows

__all__ = ["Following", "TaskFollower"]

_EVERY_S: Final = 0.5
_AT_ONCE: Final = 500

_log = get_logger("tasks")


class Following:
    """One who follows one task; a context."""

    def __init__(self, follower: TaskFollower, identity: bytes) -> None:
        self._follower = follower
        self.identity = identity
        self.newest: Process | None = None
        self._news = asyncio.Event()

    def tell(self, process: Process) -> None:
        """Take *process*, unless a newer state is known."""
        if self.newest is None or process.version > self.newest.version:
            self.newest = process
            self._news.set()

    @property
    def is_closed(self) -> bool:
        """Tell whether nothing is told any more: the process ends."""
        return self._follower.is_closed

    def wake(self) -> None:
        """Look again."""
        self._news.set()

    async def newer(self, version: int, timeout_s: float) -> Process | None:
        """Return the task once its row is newer than *version*; None after *timeout_s*, and once it is closed."""
        loop = asyncio.get_running_loop()
        end_s = loop.time() + timeout_s
        while True:
            if self.newest is not None and self.newest.version > version:
                return self.newest
            left_s = end_s - loop.time()
            if left_s <= 0 or self.is_closed:
                return None
            self._news.clear()
            try:
                await asyncio.wait_for(self._news.wait(), left_s)
            except TimeoutError:
                return None

    def __enter__(self) -> Self:
        """Begin to follow."""
        self._follower.add(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End it."""
        self._follower.remove(self)


class TaskFollower:
    """Those who follow tasks in this process."""

    def __init__(self, rows: TaskRows, clock: Clock) -> None:
        self._rows = rows
        self._clock = clock
        self._following: dict[bytes, set[Following]] = {}
        self._known: dict[bytes, int] = {}
        """The version that was told last."""
        self.is_closed = False

    def close(self) -> None:
        """Tell nothing any more: whoever waits gets what is known."""
        self.is_closed = True
        for followers in self._following.values():
            for one in followers:
                one.wake()

    def of(self, identity: bytes) -> Following:
        """Return a follower of the task with the row *identity*."""
        return Following(self, identity)

    def add(self, one: Following) -> None:
        """Tell *one* from now on."""
        self._following.setdefault(one.identity, set()).add(one)
        self._known.setdefault(one.identity, 0)

    def remove(self, one: Following) -> None:
        """Tell *one* nothing more."""
        others = self._following.get(one.identity, set())
        others.discard(one)
        if not others:
            self._following.pop(one.identity, None)
            self._known.pop(one.identity, None)

    def tell(self, process: Process) -> None:
        """Tell of *process*, which was written, or read."""
        followers = self._following.get(process.id)
        if not followers or process.version <= self._known[process.id]:
            return
        self._known[process.id] = process.version
        for one in followers:
            one.tell(process)

    async def run(self) -> None:
        """Look for what other replicas have written, until cancelled."""
        while True:
            await self._clock.sleep(_EVERY_S)
            try:
                await self.look()
            except BusError as error:
                _log.warning("tasks.not_looked", error=str(error))

    async def look(self) -> None:
        """Read once what others have written about the tasks that are followed. Raises InboxError."""
        wanted = list(self._known.items())
        for start in range(0, len(wanted), _AT_ONCE):
            for process in await self._rows.newer(dict(wanted[start : start + _AT_ONCE])):
                self.tell(process)
