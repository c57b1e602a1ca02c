"""`connect_sync`: the bus for programs without an event loop, such as Flask, Django and scripts.

Owns an event loop in its own thread, and passing calls to it; `producers.connection` does the work. A `SyncBus` can be
used from any thread of the process that opened it. Threads that publish at the same time share batches.
"""

from __future__ import annotations

import asyncio
import os
import queue
import threading
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, Unpack

from bus.errors import ClosedError, EventLoopError
from bus.payloads.class_forms import Payload
from bus.protocol.envelope import Agent
from bus.protocol.sealing import Message
from bus.protocol.signatures import Signer, Verifier
from bus.settings.schema import Settings
from bus.telemetry.metrics import Metrics
from bus.trust.policy.policy import Policy
from producers.connection import Bus, connect
from producers.middleware import PublishMiddleware
from producers.outcomes import Receipt, Result
from producers.requests.progress import TaskEvent, show_quietly
from producers.sealing.options import Options, RequestOptions
from producers.stream import Item

__all__ = ["SyncBus", "connect_sync"]

_Reply = TypeVar("_Reply", bound=Payload)
_Answer = TypeVar("_Answer")

_PIECE, _PIECE_S = 1024, 0.05
"""The most items sent together, and how long a piece collects items, in seconds."""
_CLOSE_S = 5.0


@contextmanager
def connect_sync(
    url: str | None = None,
    *,
    agent: str | Agent,
    namespace: str | None = None,
    config: Path | str | None = None,
    env: Mapping[str, str] | None = None,
    settings: Settings | None = None,
    metrics: Metrics | None = None,
    signer: Signer | None = None,
    verifier: Verifier | None = None,
    policy: Policy | None = None,
    middleware: Sequence[PublishMiddleware] = (),
) -> Iterator[SyncBus]:
    """Open the log at *url* as *agent*, and get a `SyncBus` to publish on, without `await`.

        with connect_sync("sqlite:///x.db", agent="shop@svc") as bus:
            receipt = bus.publish(OrderPlaced(number=7), key="customer-3")

    The arguments are those of `connect`; *middleware* runs in the thread of the bus. Open it once per process, after a
    server has forked its workers, and share it between threads. Raises UnreachableError, ConfigurationError.
    """
    thread = _LoopThread()
    try:
        opened = connect(
            url,
            agent=agent,
            namespace=namespace,
            config=config,
            env=env,
            settings=settings,
            metrics=metrics,
            signer=signer,
            verifier=verifier,
            policy=policy,
            middleware=middleware,
        )
        bus = thread.call(opened.__aenter__())
        try:
            yield SyncBus(bus, thread)
        finally:
            thread.call(opened.__aexit__(None, None, None))
    finally:
        thread.close()


class SyncBus:
    """An open connection of one agent, made by `connect_sync`. Every method waits for its outcome.

        with connect_sync("sqlite:///x.db", agent="shop@svc") as bus:
            receipt = bus.publish(OrderPlaced(number=7), key="customer-3")
            quote = bus.request(QuoteRequest(sku="tea"), Quote, timeout_s=5)
            outcomes = list(bus.publish_many(OrderPlaced(number=n) for n in range(1000)))

    It may be used from every thread of the process that opened it.
    """

    def __init__(self, bus: Bus, thread: _LoopThread) -> None:
        self._bus = bus
        self._thread = thread

    @property
    def namespace(self) -> str:
        """The namespace of everything that is published."""
        return self._bus.namespace

    @property
    def late_replies(self) -> Sequence[Message]:
        """See `Bus.late_replies`."""
        return self._bus.late_replies

    def publish(self, payload: Payload, *, timeout_s: float | None = None, **options: Unpack[Options]) -> Receipt:
        """Seal *payload* and append it durably, within *timeout_s* seconds, by default `publish.timeout_s` (30).

            receipt = bus.publish(OrderPlaced(number=7), key="customer-3", ttl_s=600)

        The *options*, and what it raises, are those of `Bus.publish`.
        """
        return self._thread.call(self._bus.publish(payload, timeout_s=timeout_s, **options))

    def request(
        self,
        payload: Payload,
        reply: type[_Reply],
        *,
        timeout_s: float = 60.0,
        idle_s: float | None = None,
        on_progress: Callable[[TaskEvent], object] | None = None,
        progress_types: Sequence[type[Payload]] = (),
        **options: Unpack[RequestOptions],
    ) -> _Reply:
        """Publish *payload* and wait at most *timeout_s* seconds, by default 60, for its answer, a *reply*.

            quote = bus.request(QuoteRequest(sku="tea"), Quote, timeout_s=5)

        All options, and what it raises, are those of `Bus.request`: a RequestError. *on_progress* is an ordinary
        function, and is called in the calling thread.
        """
        asked: dict[str, Any] = {"timeout_s": timeout_s, "idle_s": idle_s, "progress_types": progress_types, **options}
        if on_progress is None:
            return self._thread.call(self._bus.request(payload, reply, **asked))
        return self._thread.call_showing(partial(self._bus.request, payload, reply, **asked), on_progress)

    def resend(self, message: Message, *, timeout_s: float | None = None) -> Receipt:
        """Append the same bytes of *message* again, after PublishUnknown: receivers recognize its id."""
        return self._thread.call(self._bus.resend(message, timeout_s=timeout_s))

    def publish_many(self, source: Iterable[Item], *, timeout_s: float | None = None) -> Iterator[Result]:
        """Publish every payload (or `Outgoing`) of *source*.

        Yields, in order, a Receipt, PublishRejected or PublishUnknown for each. The calling thread reads *source*, one
        piece ahead of the piece being sent.
        """

        async def outcomes(piece: Sequence[Item]) -> list[Result]:
            return [outcome async for outcome in self._bus.publish_many(piece, timeout_s=timeout_s)]

        # Pieces are sent one after another, so that the order of a key holds; the next one is read meanwhile. Pieces
        # grow while the source is fast, so that no item of a slow source waits in a piece.
        sending: Future[list[Result]] | None = None
        items, limit = iter(source), 1
        error: Exception | None = None
        while error is None:
            begun_s = time.monotonic()
            piece, error = _next_piece(items, limit)
            limit = min(limit * 4, _PIECE) if time.monotonic() - begun_s < _PIECE_S else 1
            if sending is not None:
                yield from self._thread.result(sending)
                sending = None
            if piece:
                sending = self._thread.submit(outcomes(piece))
            elif error is None:
                return
        if sending is not None:
            yield from self._thread.result(sending)
        raise error


def _next_piece(items: Iterator[Item], limit: int) -> tuple[list[Item], Exception | None]:
    """Return the next *limit* items, fewer at the end or from a slow source, and the error that ended them."""
    piece: list[Item] = []
    end_s = time.monotonic() + _PIECE_S
    try:
        for item in items:
            piece.append(item)
            if len(piece) >= limit or time.monotonic() > end_s:
                break
    except Exception as error:  # noqa: BLE001 - the source's own error, raised to its reader
        return piece, error
    return piece, None


class _LoopThread:
    """An event loop in a daemon thread, until `close`."""

    def __init__(self) -> None:
        self._process = os.getpid()
        self._loop: asyncio.AbstractEventLoop | None = None
        ready = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(ready,), name="sealbus-connect-sync", daemon=True)
        self._thread.start()
        ready.wait()

    def call(self, coroutine: Coroutine[Any, Any, _Answer]) -> _Answer:
        """Run *coroutine* on the loop; wait for its result or error."""
        return self.result(self.submit(coroutine))

    def call_showing(
        self, asking: Callable[..., Coroutine[Any, Any, _Answer]], show: Callable[[TaskEvent], object]
    ) -> _Answer:
        """Run *asking* on the loop, and call *show* with its progress in this thread; return its result."""
        news: queue.SimpleQueue[TaskEvent | None] = queue.SimpleQueue()
        pending = self.submit(asking(on_progress=news.put))
        pending.add_done_callback(lambda _: news.put(None))
        try:
            while (event := news.get()) is not None:
                show_quietly(show, event)
        except BaseException:
            pending.cancel()
            raise
        return self.result(pending)

    def submit(self, coroutine: Coroutine[Any, Any, _Answer]) -> Future[_Answer]:
        """Start *coroutine* on the loop."""
        try:
            return asyncio.run_coroutine_threadsafe(coroutine, self._usable())
        except BaseException:
            coroutine.close()
            raise

    def _usable(self) -> asyncio.AbstractEventLoop:
        if self._process != os.getpid():
            raise EventLoopError(
                "this bus was opened before the process was forked, and its thread stayed behind: call connect_sync "
                "after the fork"
            )
        if threading.current_thread() is self._thread:
            raise EventLoopError("this call would block its own event loop: in coroutines use connect and await")
        if self._loop is None:
            raise ClosedError("the bus is closed: use it inside its `with` block")
        return self._loop

    def result(self, pending: Future[_Answer]) -> _Answer:
        """Wait for *pending*; an interrupted wait (Ctrl-C) cancels it, so that nothing keeps running."""
        try:
            return pending.result()
        except BaseException:
            pending.cancel()
            raise

    def close(self) -> None:
        """Stop the loop, which cancels everything that still runs on it."""
        loop, self._loop = self._loop, None
        if loop is not None and self._process == os.getpid():
            loop.call_soon_threadsafe(loop.stop)
            self._thread.join(_CLOSE_S)

    def _run(self, ready: threading.Event) -> None:
        with asyncio.Runner() as runner:
            loop = self._loop = runner.get_loop()
            loop.call_soon(ready.set)
            loop.run_forever()
