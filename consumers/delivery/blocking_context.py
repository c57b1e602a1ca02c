"""BlockingContext: the second argument of a `blocking=True` handler: the same as `Context`, with plain calls.

Owns carrying each call from the handler's thread to the worker's loop, and ending all waiting calls when the run is
cancelled. A thread cannot be cancelled, but its calls must not wait for answers that will never come.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import queue
import threading
from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar, Unpack

from bus.errors import DeadlineError, EventLoopError
from bus.payloads.class_forms import Payload
from bus.protocol.sealing import Message
from bus.trust.effective_labels import EffectiveLabels
from bus.vocabulary.task import TaskClarified
from consumers.delivery.approval_given import ApprovalGiven
from consumers.delivery.context import Context
from consumers.delivery.inbox.base import Transaction
from consumers.delivery.inbox.conversation import ConversationMemory
from producers.outcomes import Receipt
from producers.requests.progress import TaskEvent, show_quietly
from producers.sealing.options import Options, RequestOptions

if TYPE_CHECKING:
    from bus.vocabulary.parts import Ref

__all__ = ["BlockingContext", "BlockingTransaction"]

_T = TypeVar("_T")
_Reply = TypeVar("_Reply", bound=Payload)
_LOOK_S: Final = 1.0
"""Seconds between looks whether the loop still runs."""
_GLANCE_S: Final = 0.05
"""Seconds between looks whether there is something to show."""


class _Carrier:
    """Carries coroutines to the loop of one run, until `close`."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._lock = threading.Lock()
        self._waiting: set[concurrent.futures.Future[Any]] = set()
        self._closed = False

    def call(self, begin: Callable[[], Coroutine[Any, Any, _T]], meanwhile: Callable[[], object] | None = None) -> _T:
        """Return the result of the coroutine that *begin* makes on the loop; call *meanwhile* in this thread while it
        runs, and once after it."""
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
        look_s = _LOOK_S if meanwhile is None else _GLANCE_S
        try:
            while True:
                if meanwhile is not None:
                    meanwhile()
                try:
                    return future.result(look_s)
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
            if meanwhile is not None:
                meanwhile()

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
        context.progress("asking", pct=50)

    Every method does the same as that of `Context`, and blocks until it is done. Several threads of the handler may use
    it. Once the run is cancelled, every waiting call raises DeadlineError, and so does every later call.
    """

    def __init__(self, context: Context, loop: asyncio.AbstractEventLoop) -> None:
        self._context = context
        self._carrier = _Carrier(loop)
        self._thread = 0

    def begin(self) -> None:
        """Note that the present thread is the handler's own."""
        self._thread = threading.get_ident()

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

    def send_now(self, payload: Payload, *, to_requester: bool = False, **options: Unpack[Options]) -> Receipt:
        """Publish *payload* at once; see `Context.send_now`. Raises PublishRejected, PublishUnknown."""
        return self._carrier.call(lambda: self._context.send_now(payload, to_requester=to_requester, **options))

    def progress(self, text: str = "", *, pct: float | None = None) -> None:
        """Say how far the work is; see `Context.progress`."""
        self._carrier.call(lambda: self._context.progress(text, pct=pct))

    def request(
        self,
        payload: Payload,
        reply: type[_Reply],
        *,
        timeout_s: float = 30.0,
        idle_s: float | None = None,
        on_progress: Callable[[TaskEvent], object] | None = None,
        progress_types: Sequence[type[Payload]] = (),
        **options: Unpack[RequestOptions],
    ) -> _Reply:
        """Ask another agent and return its answer, a *reply*; see `Context.request`.

        *on_progress* is an ordinary function, and is called in the calling thread.
        """
        asked: dict[str, Any] = {"timeout_s": timeout_s, "idle_s": idle_s, "progress_types": progress_types, **options}
        if on_progress is None:
            return self._carrier.call(lambda: self._context.request(payload, reply, **asked))
        news: queue.SimpleQueue[TaskEvent] = queue.SimpleQueue()
        return self._carrier.call(
            lambda: self._context.request(payload, reply, on_progress=news.put, **asked),
            partial(_show_all, news, on_progress),
        )

    def put_artifact(self, data: bytes | str | Path, *, media_type: str | None = None) -> Ref:
        """Store *data* and return a reference with its hash; see `Context.artifacts`."""
        return self._carrier.call(lambda: self._context.artifacts.put(data, media_type=media_type))

    def open_artifact(self, ref: Ref) -> bytes:
        """Return the content of *ref*, which has its hash; see `Context.artifacts`."""
        return self._carrier.call(lambda: self._context.artifacts.open(ref))

    def step(
        self,
        name: str,
        function: Callable[..., Any],
        *arguments: Any,
        **options: Any,
    ) -> Any:
        """Return the result of `function(*arguments)`; a retry of the message reuses it. See `Context.step`."""
        return self._carrier.call(self._asking(lambda: self._context.step(name, function, *arguments, **options)))

    def approve(self, name: str, arguments: Mapping[str, Any], approval: Any, *, key: object = None) -> ApprovalGiven:
        """Return the approval of an effect that is no function; see `Context.approve`."""
        return self._carrier.call(self._asking(lambda: self._context.approve(name, arguments, approval, key=key)))

    def clarify(self, questions: Sequence[str], **options: Any) -> TaskClarified:
        """Ask whoever sent the message, and return the answer; see `Context.clarify`."""
        return self._carrier.call(self._asking(lambda: self._context.clarify(questions, **options)))

    def _asking(self, begin: Callable[[], Coroutine[Any, Any, _T]]) -> Callable[[], Coroutine[Any, Any, _T]]:
        """Return *begin*, which may ask for an approval where the handler's own thread calls it."""
        if threading.get_ident() != self._thread:
            return begin

        async def asked() -> _T:
            self._context.lent(asyncio.current_task())
            return await begin()

        return asked

    def steps(self, name: str, functions: Sequence[Callable[..., Any]], **options: Any) -> list[Any]:
        """Return the results of *functions*, each a `step`; see `Context.steps`."""
        return self._carrier.call(lambda: self._context.steps(name, functions, **options))

    def checkpoint(self, value: Any) -> None:
        """Keep *value* for a later run of this message, which `resumed` gives it to."""
        self._carrier.call(lambda: self._context.checkpoint(value))

    def resumed(self, type: Any = None) -> Any:  # noqa: A002 - the word for it
        """Return the last `checkpoint` of an earlier run of this message, or None."""
        return self._carrier.call(lambda: self._context.resumed(type))

    def conversation(self) -> ConversationMemory:
        """Return what was said before in the conversation of the message; see `Context.conversation`."""
        return self._carrier.call(self._context.conversation)

    def transaction(self) -> BlockingTransaction:
        """Return the inbox's own transaction, the same one each time; see `Context.transaction`."""
        return BlockingTransaction(self._carrier.call(self._context.transaction), self._carrier)

    def close(self) -> None:
        """End what waits: the run is over, or cut."""
        self._carrier.close()


def _show_all(news: queue.SimpleQueue[TaskEvent], show: Callable[[TaskEvent], object]) -> None:
    while not news.empty():
        show_quietly(show, news.get())


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
