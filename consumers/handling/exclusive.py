"""The exclusive gate: handlers run side by side, but for one that must run alone in its process.

Owns waiting for the others to end, and making them wait. Does not own who must be alone: see
`consumers.inbox.claim_rules`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

__all__ = ["ExclusiveGate"]


class ExclusiveGate:
    """Handlers of one worker enter and leave, and one can be alone.

    One that enters alone waits for the rest to leave, and keeps others out meanwhile.

    While `closed` is False, entering is no more than counting: a caller in a hurry adds one to `inside` then, and calls
    `enter` else.
    """

    def __init__(self) -> None:
        self.inside = 0
        self.closed = False
        """Somebody is, or waits to be, alone."""
        self._turn = asyncio.Lock()
        self._changed = asyncio.Event()

    async def enter(self, *, alone: bool) -> None:
        """Wait until it may begin."""
        if not alone:
            while self.closed:
                await self._change()
            self.inside += 1
            return
        await self._turn.acquire()
        self.closed = True
        try:
            while self.inside:
                await self._change()
        except BaseException:
            self._open()
            raise
        self.inside += 1

    def leave(self, *, alone: bool) -> None:
        """It has ended."""
        self.inside -= 1
        if alone:
            self._open()
        elif self.closed:
            self._changed.set()

    @contextlib.asynccontextmanager
    async def alone(self) -> AsyncIterator[None]:
        """Alone from its beginning to its end."""
        await self.enter(alone=True)
        try:
            yield
        finally:
            self.leave(alone=True)

    def _open(self) -> None:
        self.closed = False
        self._turn.release()
        self._changed.set()

    async def _change(self) -> None:
        self._changed.clear()
        await self._changed.wait()
