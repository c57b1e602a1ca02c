"""Blocking handlers: ordinary functions, each call in a thread of its own.

Each gets a context of its own, whose calls are carried to the worker's loop. A thread cannot be cancelled. A cut or
timed-out handler keeps its slot and its key until it ends, and its message is not settled before. The threads are
daemons: one that hangs does not keep the process alive.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
import threading
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Final

from consumers.delivery.blocking_context import BlockingContext
from consumers.delivery.context import Context

__all__ = ["in_thread", "thread_of"]

_threads: Final[dict[asyncio.Task[Any] | None, threading.Thread]] = {}
"""By task, the thread whose end it waits for."""


def thread_of(task: asyncio.Task[Any]) -> int | None:
    """Return the id of the thread in which *task* has a blocking handler run; None where there is none."""
    thread = _threads.get(task)
    return None if thread is None else thread.ident


def in_thread(function: Callable[..., Any]) -> Callable[..., Awaitable[Any]]:
    """Wrap *function* as a handler that the event loop can await."""

    @functools.wraps(function)
    async def handler(*arguments: Any, **named: Any) -> Any:
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[Any] = loop.create_future()
        carried = [BlockingContext(each, loop) if isinstance(each, Context) else each for each in arguments]
        call = functools.partial(contextvars.copy_context().run, _begun, function, carried, named)
        thread = threading.Thread(
            target=_call, args=(call, loop, ended), name=f"handler-{function.__name__}", daemon=True
        )
        task = asyncio.current_task()
        _threads[task] = thread
        try:
            thread.start()
            # Not shielded: from Python 3.14 on asyncio reports an exception behind a shield that has no waiter left.
            await asyncio.wait((ended,))
            return ended.result()
        except asyncio.CancelledError:
            # What the thread waits for on this loop ends now; the thread itself cannot be cancelled.
            _close(carried)
            # Nothing awaits the result after this; retrieve it, or asyncio reports it as never retrieved.
            ended.add_done_callback(lambda done: done.cancelled() or done.exception())
            await _ended(ended)
            raise
        finally:
            # The traceback of an exception from the call holds this frame and `_call`'s: each would keep the other and
            # the message alive.
            _close(carried)
            _threads.pop(task, None)
            del ended, call, carried

    return handler


def _begun(function: Callable[..., Any], arguments: list[Any], named: dict[str, Any]) -> Any:
    for each in arguments:
        if isinstance(each, BlockingContext):
            each.begin()
    return function(*arguments, **named)


def _close(arguments: Iterable[Any]) -> None:
    for each in arguments:
        if isinstance(each, BlockingContext):
            each.close()


async def _ended(future: asyncio.Future[Any]) -> None:
    while not future.done():
        try:
            await asyncio.wait([future])
        except asyncio.CancelledError:
            # Cut a second time; only the worker's own end stops waiting.
            if (task := asyncio.current_task()) is not None and task.cancelling() > 1:
                raise


def _call(call: Callable[[], Any], loop: asyncio.AbstractEventLoop, ended: asyncio.Future[Any]) -> None:
    try:
        result = call()
    except BaseException as error:  # noqa: BLE001 - every exception must reach the handler's slot
        # A future refuses StopIteration, and outside a coroutine it has another meaning.
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
    settle: Callable[[asyncio.Future[Any], Any], None],
    ended: asyncio.Future[Any],
    value: Any,
) -> None:
    try:
        loop.call_soon_threadsafe(settle, ended, value)
    except RuntimeError:
        # The loop is closed: the process ends, and the message is delivered again.
        return


def _finish(ended: asyncio.Future[Any], value: Any) -> None:
    if not ended.done():
        ended.set_result(value)


def _fail(ended: asyncio.Future[Any], error: BaseException) -> None:
    if not ended.done():
        ended.set_exception(error)
