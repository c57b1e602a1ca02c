"""Run a command's coroutine, and handle SIGINT and SIGTERM.

The first signal ends the command in order, the second at once; the exit code then is the signal's. The worker's own
signals are in `consumers.worker.process`.
"""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any

from bus.errors import BusError
from consumers.worker.signals import RepeatedSignal

__all__ = ["Interrupts", "asking", "execute"]

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interrupts:
    """The effect of a signal: cancel the command, or call *soften* if the command can end in order."""

    def __init__(self, task: asyncio.Task[Any]) -> None:
        self.soften: Callable[[], object] | None = None
        self.received = 0
        self._task = task
        self._insistence = RepeatedSignal()

    def receive(self, number: int) -> None:
        """Handle a signal."""
        insists = self._insistence.grows()
        if insists:
            os._exit(128 + number)
        if insists is not None:
            return
        self.received = number
        if self.soften is not None:
            self.soften()
        else:
            self._task.cancel()


@contextmanager
def asking() -> Iterator[None]:
    """Let signals end the process as usual while it waits for an answer of the user, which blocks the event loop."""
    before = {number: signal.getsignal(number) for number in _SIGNALS}
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def execute(body: Callable[[Interrupts], Coroutine[Any, Any, int]]) -> int:
    """Run *body* and return its exit code; 130 or 143 if a signal ended it."""
    return asyncio.run(_guard(body))


async def _guard(body: Callable[[Interrupts], Coroutine[Any, Any, int]]) -> int:
    task = asyncio.current_task()
    assert task is not None  # noqa: S101 - a coroutine runs in a task
    interrupts = Interrupts(task)
    loop = asyncio.get_running_loop()
    # Signals reach only the main thread: a program that calls the command line in another one handles them itself.
    numbers = _SIGNALS if threading.current_thread() is threading.main_thread() else ()
    for number in numbers:
        loop.add_signal_handler(number, interrupts.receive, number)
    try:
        code = await body(interrupts)
    except (asyncio.CancelledError, BusError):
        # After a signal, a failure on the way out is a consequence of the signal.
        if not interrupts.received:
            raise
        code = 0
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)
    return 128 + interrupts.received if interrupts.received else code
