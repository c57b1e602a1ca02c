"""Leftover tasks: what a run that is held has started and not waited for.

They end before its message is stored: nothing of the run goes on while it waits for a decision.
"""

from __future__ import annotations

import asyncio
import sys
from contextvars import Context
from typing import Any, Final
from weakref import WeakKeyDictionary

from bus.telemetry.logs import get_logger
from producers.sealing.run_labels import CURRENT_RUN, RunLabels

__all__ = ["end_tasks_of", "watch_tasks"]

_GRACE_S: Final = 5.0
_AGAIN_S: Final = 60.0

_log = get_logger("handler")
_RUN_OF: Final[WeakKeyDictionary[asyncio.Task[Any], RunLabels]] = WeakKeyDictionary()
"""The run of each task; only needed where a task does not tell its context (before Python 3.12)."""


async def end_tasks_of(run: RunLabels, label: str) -> None:
    """Cancel the tasks that *run* has started, and wait until they have ended; *label* is the type of its message.

    A task that ignores its cancellation keeps the message: it is named in the log again and again.
    """
    own = asyncio.current_task()
    left = {task for task in asyncio.all_tasks() if task is not own and _run_of(task) is run}
    wait_s = _GRACE_S
    while left:
        for task in left:
            task.cancel()
        _, left = await asyncio.wait(left, timeout=wait_s)
        if left:
            _log.error(
                "handler.does_not_end",
                message_id=run.message.message_id,
                type=label,
                detail=f"the run waits for a decision, and {len(left)} of its tasks ignore their cancellation; its "
                "message and later ones of the same key wait",
            )
        wait_s = _AGAIN_S


def watch_tasks() -> None:
    """Remember which run starts which task of this loop, where tasks themselves do not tell."""
    loop = asyncio.get_running_loop()
    if sys.version_info >= (3, 12) or getattr(loop.get_task_factory(), "knows_runs", False):
        return
    before: Any = loop.get_task_factory()

    def made(loop: asyncio.AbstractEventLoop, coroutine: Any, *, context: Context | None = None) -> Any:
        options: dict[str, Any] = {} if context is None else {"context": context}
        task: asyncio.Task[Any] = (
            asyncio.Task(coroutine, loop=loop, **options) if before is None else before(loop, coroutine, **options)
        )
        run = CURRENT_RUN.get() if context is None else context.get(CURRENT_RUN)
        if run is not None:
            _RUN_OF[task] = run
        return task

    made.knows_runs = True  # type: ignore[attr-defined]
    loop.set_task_factory(made)


def _run_of(task: asyncio.Task[Any]) -> RunLabels | None:
    if sys.version_info >= (3, 12):
        return task.get_context().get(CURRENT_RUN)
    return _RUN_OF.get(task)
