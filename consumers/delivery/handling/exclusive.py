"""ExclusiveGate: handlers run side by side, and one can run alone in its process.

A readers-writer lock. Which message must run alone is decided in `consumers.delivery.inbox.claim_rules` and
`consumers.delivery.crashes.crash_rules`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable

__all__ = ["ExclusiveGate"]


class ExclusiveGate:
    """Counts the handlers of one worker, and lets one of them run alone.

    A handler that enters alone waits until the others have left, and keeps new ones out.

    While `closed` is False, entering is only counting: a caller may add one to `inside` instead of awaiting `enter`. It
    takes it off again instead of calling `leave`, and calls `announce` where the gate is closed by then.
    """

    def __init__(self) -> None:
        self.inside = 0
        self.closed = False
        """A handler runs alone, or waits to."""
        self.opened: Callable[[], object] = _nothing
        """Called when others may enter again."""
        self._turn = asyncio.Lock()
        self._changed = asyncio.Event()

    async def enter(self, *, alone: bool) -> None:
        """Wait until the handler may begin."""
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

    def share(self) -> None:
        """Let others enter beside the handler that has entered alone, and still runs."""
        self._open()

    def leave(self, *, alone: bool) -> None:
        """Note that a handler that has entered has ended."""
        self.inside -= 1
        if alone:
            self._open()
        elif self.closed:
            self.announce()

    def announce(self) -> None:
        """Wake the handler that waits to run alone: another has left."""
        self._changed.set()

    @contextlib.asynccontextmanager
    async def alone(self) -> AsyncIterator[None]:
        """Run the body of the `async with` alone."""
        await self.enter(alone=True)
        try:
            yield
        finally:
            self.leave(alone=True)

    def _open(self) -> None:
        self.closed = False
        self._turn.release()
        self._changed.set()
        self.opened()

    async def _change(self) -> None:
        self._changed.clear()
        await self._changed.wait()


def _nothing() -> None:
    """Do nothing: no run waits to enter."""
