"""Run tasks: what frameworks start in the run of an agent ends by an error, and never ends the worker.

An event loop passes on the SystemExit of a task, and the process ends with all its runs. In a handler's own task the
bus sees it; frameworks call nodes, tools and hooks in tasks of their own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextvars import ContextVar
from typing import Any

__all__ = ["guard_tasks"]


def guard_tasks(run: ContextVar[Any]) -> None:
    """From now on let the tasks of this loop that are started where *run* is set end by an error instead of an exit."""
    loop = asyncio.get_running_loop()
    before: Any = loop.get_task_factory()
    if getattr(before, "guards_exits", False):
        return

    def made(loop: asyncio.AbstractEventLoop, coroutine: Any, **options: Any) -> Any:
        context = options.get("context")
        if (run.get(None) if context is None else context.get(run)) is not None:
            coroutine = _WithoutExit(coroutine)
        if before is None:
            return asyncio.Task(coroutine, loop=loop, **options)
        return before(loop, coroutine, **options)

    made.guards_exits = True  # type: ignore[attr-defined]
    made.knows_runs = getattr(before, "knows_runs", False)  # type: ignore[attr-defined]
    loop.set_task_factory(made)


class _WithoutExit(Coroutine[Any, Any, Any]):
    """The coroutine *inner*, which ends by an error where it would exit.

    No coroutine around it: one that is cancelled before it begins would leave *inner* behind.
    """

    def __init__(self, inner: Coroutine[Any, Any, Any]) -> None:
        self._inner = inner

    def send(self, value: Any) -> Any:
        try:
            return self._inner.send(value)
        except SystemExit as error:
            raise _error_of(error) from error

    def throw(self, *error: Any) -> Any:
        try:
            return self._inner.throw(*error)
        except SystemExit as exit_:
            raise _error_of(exit_) from exit_

    def close(self) -> None:
        self._inner.close()

    def __await__(self) -> Any:
        return self._inner.__await__()

    def __getattr__(self, name: str) -> Any:
        # The frame, for whoever shows where a task waits.
        return getattr(self._inner, name)


def _error_of(error: SystemExit) -> RuntimeError:
    return RuntimeError(f"it called sys.exit({error.code!r:.80})")
