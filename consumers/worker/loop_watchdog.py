"""LoopWatch: a thread that measures how late the event loop runs, and names the handler that blocks it.

Owns the thread, the largest lag since the last reading, and one warning per stall. The loop only notes that it still
turns: a blocked loop cannot report itself.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Any

from bus.errors import text_of
from bus.telemetry.logs import get_logger
from consumers.delivery.handling.slots import RunningHandler

__all__ = ["LoopWatch", "find_work"]

_TICK_S = 0.1
_WARN_S = 1.0
_FRAMES = 12

_log = get_logger("loop")


def find_work(
    finders: Iterable[Callable[[asyncio.Task[Any]], RunningHandler | None]], task: asyncio.Task[Any]
) -> RunningHandler | None:
    """Return the description of *task* by the first of *finders* that recognises it."""
    return next((work for find in finders if (work := find(task)) is not None), None)


class LoopWatch:
    """Watches the running loop from `__enter__` to `__exit__`.

    *work_of* names what a task handles; the watching thread calls it.
    """

    def __init__(self, work_of: Callable[[asyncio.Task[Any]], RunningHandler | None]) -> None:
        self._work_of = work_of
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._due_s = 0.0
        self._largest_s = 0.0
        self._thread_id = 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="sealbus-loop-watch", daemon=True)

    def __enter__(self) -> LoopWatch:
        self._loop = asyncio.get_running_loop()
        self._thread_id = threading.get_ident()
        self._due_s = time.monotonic() + _TICK_S
        self._timer = self._loop.call_later(_TICK_S, self._tick)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        if self._timer is not None:
            self._timer.cancel()
        self._thread.join(1.0)

    def take_lag_s(self) -> float:
        """Return the largest lag since the last call, in seconds. Callable from any thread.

        For a stall that still lasts, its length so far.
        """
        largest_s, self._largest_s = max(self._largest_s, time.monotonic() - self._due_s), 0.0
        return max(0.0, largest_s)

    def _tick(self) -> None:
        now_s = time.monotonic()
        self._largest_s = max(self._largest_s, now_s - self._due_s)
        self._due_s = now_s + _TICK_S
        if self._loop is not None:
            self._timer = self._loop.call_later(_TICK_S, self._tick)

    def _pause_s(self, now_s: float) -> float:
        """Return the time until the loop, if it stopped now, could be worth a warning: a thread that wakes often keeps
        an idle process from being idle."""
        return max(_TICK_S, self._due_s + _WARN_S - now_s)

    def _watch(self) -> None:
        warned_s: float | None = None
        woken_s = time.monotonic()
        while not self._over.wait(pause_s := _TICK_S if warned_s is not None else self._pause_s(woken_s)):
            late_s = time.monotonic() - woken_s - pause_s
            woken_s = time.monotonic()
            due_s = self._due_s
            if warned_s is not None and due_s != warned_s:
                _log.info("loop.free", blocked_s=round(due_s - _TICK_S - warned_s, 1))
                warned_s = None
            # Where this thread is late itself, the whole process was stopped, or the interpreter was held: look once
            # more.
            if warned_s is None and woken_s - due_s > _WARN_S and late_s < _WARN_S / 2:
                warned_s = due_s
                self._warn(woken_s - due_s)

    def _warn(self, lag_s: float) -> None:
        """Log what runs in the loop's thread now."""
        fields: dict[str, object] = {"blocked_s": round(lag_s, 1)}
        try:
            task = asyncio.current_task(self._loop)
            work = None if task is None else self._work_of(task)
            if work is not None:
                fields |= {"handler": work.handler, "type": work.message_type, "message_id": work.message_id}
            # The documented way to read another thread's stack.
            frame = sys._current_frames().get(self._thread_id)  # noqa: SLF001
            if frame is not None:
                fields["stack"] = "".join(traceback.format_list(traceback.extract_stack(frame)[-_FRAMES:])).rstrip()
        except Exception as error:  # noqa: BLE001 - the loop moves on while it is looked at
            fields["unseen"] = text_of(error)
        fields["detail"] = "blocks the event loop: heartbeats, commits and deadlines stop; use blocking=True, or await"
        _log.warning("loop.blocked", **fields)
