"""OwnContext: the ContextVars with which handlers and background tasks start.

Owns isolation: ContextVars that a handler sets for one message (also structlog's bound values, decimal contexts, the
current span) are invisible to other messages. Each run and each background task starts with a copy. A background task
that inherited the context of the message that started it would log and trace in the name of that message from then on.
"""

from __future__ import annotations

import asyncio
import contextvars
import decimal
import types
from collections.abc import Callable, Coroutine, Generator
from typing import Any, ParamSpec, TypeVar

__all__ = ["OwnContext"]

_P = ParamSpec("_P")
_T = TypeVar("_T")


class OwnContext:
    """The context of the code that makes it; every call gets a copy of its own."""

    __slots__ = ("_decimal", "_own")

    def __init__(self) -> None:
        self._own = contextvars.copy_context()
        self._decimal = next((value for value in self._own.values() if isinstance(value, decimal.Context)), None)

    def call(self, function: Callable[_P, _T], *arguments: _P.args, **named: _P.kwargs) -> _T:
        """Return what *function* returns, called in a fresh copy."""
        context = self._own.copy() if self._decimal is None else self._fresh()
        return context.run(function, *arguments, **named)

    @types.coroutine
    def drive(self, coroutine: Coroutine[Any, Any, _T]) -> Generator[Any, Any, _T]:
        """Await *coroutine* in a fresh copy, in the present task: `await own.drive(run())`.

        A Task for each would do the same, and cost as much as the run of a short handler.
        """
        context = self._own.copy() if self._decimal is None else self._fresh()
        run, send = context.run, coroutine.send
        try:
            waits_for = run(send, None)
            while True:
                try:
                    sent_value = yield waits_for
                except GeneratorExit:
                    run(coroutine.close)
                    raise
                except BaseException as error:  # noqa: BLE001 - a cancellation is the coroutine's to meet
                    waits_for = run(coroutine.throw, error)
                else:
                    waits_for = run(send, sent_value)
        except StopIteration as end:
            result: _T = end.value
            return result

    def begin(self, coroutine: Coroutine[Any, Any, _T], name: str | None = None) -> asyncio.Task[_T]:
        """Return a task that runs *coroutine* in a fresh copy: background work belongs to no message."""
        return asyncio.get_running_loop().create_task(coroutine, name=name, context=self._fresh())

    def _fresh(self) -> contextvars.Context:
        context = self._own.copy()
        if self._decimal is not None:
            # `decimal.getcontext().prec = 7` changes the object itself, which every copy would share.
            context.run(decimal.setcontext, self._decimal.copy())
        return context

    def call_soon(self, function: Callable[..., object], *arguments: Any) -> None:
        """Make the loop call *function* in this context, independent of the caller's."""
        asyncio.get_running_loop().call_soon(function, *arguments, context=self._own)
