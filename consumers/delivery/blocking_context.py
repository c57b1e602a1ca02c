"""BlockingContext: the second argument of a `blocking=True` handler: the same as `Context`, with plain calls.

Owns carrying each call from the handler's thread to the worker's loop, and ending all waiting calls when the run is
cancelled. A thread cannot be cancelled, but its calls must not wait for answers that will never come.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final, TypeVar, Unpack

from bus.errors import DeadlineError, EventLoopError
from bus.payloads.class_forms import Payload
from bus.protocol.sealing import Message
from bus.trust.effective_labels import EffectiveLabels
from consumers.delivery.approval_given import ApprovalGiven
from consumers.delivery.context import Context
from consumers.delivery.inbox.base import Transaction
from producers.outcomes import Receipt
from producers.sealing.options import Options, RequestOptions

__all__ = ["BlockingContext", "BlockingTransaction"]

_T = TypeVar("_T")
_Reply = TypeVar("_Reply", bound=Payload)
_LOOK_S: Final = 1.0
"""Seconds between looks whether the loop still runs."""


class _Carrier:
    """Carries coroutines to the loop of one run, until `close`."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._lock = threading.Lock()
        self._waiting: set[concurrent.futures.Future[Any]] = set()
        self._closed = False

    def call(self, begin: Callable[[], Coroutine[Any, Any, _T]]) -> _T:
        """Return the result of the coroutine that *begin* makes on the loop."""
        if is_in_loop():
            raise EventLoopError(
                "a blocking context waits for its answer, and would stop this event loop: in coroutines take a Context "
                "and await its methods"
            )
        with self._lock:
            if self._closed:
                raise _over()
            future = asyncio.run_coroutine_threadsafe(_begun(begin), self._loop)
            self._waiting.add(future)
        try:
            while True:
                try:
                    return future.result(_LOOK_S)
                except concurrent.futures.CancelledError:
                    raise _over() from None
                except TimeoutError:
                    if future.done():
                        # It is the call's own.
                        raise
                    if self._loop.is_closed():
                        raise _over() from None
        finally:
            self._waiting.discard(future)

    def close(self) -> None:
        """Cancel all waiting calls; later calls are refused."""
        with self._lock:
            self._closed = True
            waiting = tuple(self._waiting)
        for future in waiting:
            future.cancel()


class BlockingTransaction:
    """The inbox's transaction (`Context.transaction`), by plain calls."""

    def __init__(self, transaction: Transaction, carrier: _Carrier) -> None:
        self._transaction = transaction
        self._carrier = carrier

    def execute(self, statement: str, *arguments: Any) -> None:
        """Run one statement. Raises InboxError, or the database's own error about the statement."""
        self._carrier.call(lambda: self._transaction.execute(statement, *arguments))

    def fetch(self, statement: str, *arguments: Any) -> list[tuple[Any, ...]]:
        """Run one statement and return its rows."""
        return self._carrier.call(lambda: self._transaction.fetch(statement, *arguments))

    def fetchrow(self, statement: str, *arguments: Any) -> tuple[Any, ...] | None:
        """Run one statement and return its first row, or None."""
        return self._carrier.call(lambda: self._transaction.fetchrow(statement, *arguments))


class BlockingContext:
    """One run of a blocking handler, in its thread. Do not keep it after the handler returns.

    @app.on(Order, blocking=True)
    def book(order: Order, context: BlockingContext) -> Booked:
        quote = context.request(QuoteRequest(sku=order.sku), Quote, timeout_s=20)
        plan = context.step("plan", call_model, order.text)
        context.send_now(Progress(percent=50))

    Every method does the same as that of `Context`, and blocks until it is done. Several threads of the handler may use
    it. Once the run is cancelled, every waiting call raises DeadlineError, and so does every later call.
    """

    def __init__(self, context: Context, loop: asyncio.AbstractEventLoop) -> None:
        self._context = context
        self._carrier = _Carrier(loop)

    @property
    def message(self) -> Message:
        """The sealed message, which passed every gate."""
        return self._context.message

    @property
    def attempt(self) -> int:
        """The number of this run, from 1."""
        return self._context.attempt

    @property
    def approval(self) -> ApprovalGiven | None:
        """The approvers of this run and their conditions; None if it needed no approval."""
        return self._context.approval

    @property
    def remaining_s(self) -> float:
        """Seconds until the run is cut: the smaller of its timeout and the message's lifetime."""
        return self._context.remaining_s

    @property
    def cancelled(self) -> bool:
        """Whether the result is no longer wanted: end soon."""
        return self._context.cancelled

    @property
    def labels(self) -> EffectiveLabels:
        """Trust level and sensitivity of everything that this run has read."""
        return self._context.labels

    def taint(self, level: str, source: str) -> None:
        """Declare that the handler has read outside content, at trust *level*, from *source*."""
        self._context.taint(level, source)

    def check(self, payload: Payload, **options: Unpack[Options]) -> None:
        """Raise ContractError where the bus would refuse to send *payload*; see `Context.check`."""
        self._context.check(payload, **options)

    def send(self, payload: Payload, **options: Unpack[Options]) -> None:
        """Queue *payload*, as it is now, to leave when this run succeeds, and only then."""
        self._context.send(payload, **options)

    def is_older(self, seen: int) -> bool:
        """Tell whether the message's `sequence` comes before *seen*."""
        return self._context.is_older(seen)

    def send_now(self, payload: Payload, **options: Unpack[Options]) -> Receipt:
        """Publish *payload* at once. Raises PublishRejected, PublishUnknown."""
        return self._carrier.call(lambda: self._context.send_now(payload, **options))

    def request(
        self, payload: Payload, reply: type[_Reply], *, timeout_s: float = 30.0, **options: Unpack[RequestOptions]
    ) -> _Reply:
        """Ask another agent and return its answer, a *reply*; see `Context.request`."""
        return self._carrier.call(lambda: self._context.request(payload, reply, timeout_s=timeout_s, **options))

    def step(
        self,
        name: str,
        function: Callable[..., Any],
        *arguments: Any,
        key: object = None,
        type: Any = None,  # noqa: A002 - the word for it
        **named: Any,
    ) -> Any:
        """Return the result of `function(*arguments)`; a retry of the message reuses it. See `Context.step`."""
        return self._carrier.call(lambda: self._context.step(name, function, *arguments, key=key, type=type, **named))

    def steps(self, name: str, functions: Sequence[Callable[..., Any]], **options: Any) -> list[Any]:
        """Return the results of *functions*, each a `step`; see `Context.steps`."""
        return self._carrier.call(lambda: self._context.steps(name, functions, **options))

    def checkpoint(self, value: Any) -> None:
        """Keep *value* for a later run of this message, which `resumed` gives it to."""
        self._carrier.call(lambda: self._context.checkpoint(value))

    def resumed(self, type: Any = None) -> Any:  # noqa: A002 - the word for it
        """Return the last `checkpoint` of an earlier run of this message, or None."""
        return self._carrier.call(lambda: self._context.resumed(type))

    def transaction(self) -> BlockingTransaction:
        """Return the inbox's own transaction, the same one each time; see `Context.transaction`."""
        return BlockingTransaction(self._carrier.call(self._context.transaction), self._carrier)

    def close(self) -> None:
        """End what waits: the run is over, or cut."""
        self._carrier.close()


async def _begun(begin: Callable[[], Coroutine[Any, Any, _T]]) -> _T:
    return await begin()


def is_in_loop() -> bool:
    """Tell whether the present thread runs an event loop now."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _over() -> DeadlineError:
    return DeadlineError("the run has ended: nothing is waited for any more")
