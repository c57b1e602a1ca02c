"""Handlers that block: ordinary functions, each call in a thread of its own.

Owns the thread and waiting for it. A thread cannot be cancelled, so a cut or timed-out handler keeps its slot, and its
key, until it ends: nothing of its message is decided while it still runs. The threads are daemons: one that hangs for
ever does not keep the process.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
import threading
from collections.abc import Awaitable, Callable
from typing import Any

__all__ = ["in_thread"]


def in_thread(function: Callable[..., Any]) -> Callable[..., Awaitable[Any]]:
    """*function* as a handler that the event loop can wait for."""

    @functools.wraps(function)
    async def handler(*arguments: Any) -> Any:
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[Any] = loop.create_future()
        call = functools.partial(contextvars.copy_context().run, function, *arguments)
        threading.Thread(
            target=_call, args=(call, loop, ended), name=f"handler-{function.__name__}", daemon=True
        ).start()
        try:
            # Not shielded: from Python 3.14 on asyncio reports what is raised behind a shield that nobody waits at any
            # more.
            await asyncio.wait((ended,))
            return ended.result()
        except asyncio.CancelledError:
            # What it raises now nobody waits for any more, and asyncio would report it as forgotten.
            ended.add_done_callback(lambda done: done.cancelled() or done.exception())
            await _ended(ended)
            raise
        finally:
            # What the call raised has this frame in its traceback, and `_call`'s: each would hold the other, and the
            # message.
            del ended, call

    return handler


async def _ended(future: asyncio.Future[Any]) -> None:
    while not future.done():
        try:
            await asyncio.wait([future])
        except asyncio.CancelledError:
            # Cut once more; only the worker's own end goes on without waiting.
            if (task := asyncio.current_task()) is not None and task.cancelling() > 1:
                raise


def _call(call: Callable[[], Any], loop: asyncio.AbstractEventLoop, ended: asyncio.Future[Any]) -> None:
    try:
        result = call()
    except BaseException as error:  # noqa: BLE001 - whatever it was, the handler's slot must hear of it
        # A future cannot carry it, and outside a coroutine it would mean something else.
        _tell(
            loop,
            _fail,
            ended,
            RuntimeError("the handler raised StopIteration") if isinstance(error, StopIteration) else error,
        )
    else:
        _tell(loop, _finish, ended, result)
    finally:
        del ended


def _tell(
    loop: asyncio.AbstractEventLoop,
    told: Callable[[asyncio.Future[Any], Any], None],
    ended: asyncio.Future[Any],
    value: Any,
) -> None:
    try:
        loop.call_soon_threadsafe(told, ended, value)
    except RuntimeError:
        # The loop is closed: the process ends, and the message is delivered again.
        return


def _finish(ended: asyncio.Future[Any], value: Any) -> None:
    if not ended.done():
        ended.set_result(value)


def _fail(ended: asyncio.Future[Any], error: BaseException) -> None:
    if not ended.done():
        ended.set_exception(error)
