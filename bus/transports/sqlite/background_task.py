"""A task that lives as long as its transport.

Owns starting it once and stopping it quietly. The owner supplies the work and handles its failures.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from typing import Any

from bus.own_context import OwnContext

__all__ = ["Background"]


class Background:
    """Runs the endless coroutine function *live* between `start` and `stop`."""

    def __init__(self, name: str, live: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self._name = name
        self._live = live
        self._task: asyncio.Task[None] | None = None
        self._own = OwnContext()

    def start(self) -> None:
        """Start the task unless it runs already."""
        if self._task is None:
            self._task = self._own.begin(self._live(), self._name)

    async def stop(self) -> None:
        """Cancel the task and wait for its end."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
            self._task = None
