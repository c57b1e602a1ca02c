"""Progress of one request: what its caller wants to see of it, and handing that to the caller's function.

Owns the order, the bound and the end of what is handed over. Which messages are progress is in `bus.protocol`,
which of them are believed in `producers.requests.reply_reader`.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import math
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias

import msgspec

from bus.clock import Clock
from bus.errors import ContractError, text_of
from bus.payloads.payload_types import PayloadType, payload_type
from bus.protocol.envelope import PROGRESS_TYPES
from bus.protocol.sealing import Message
from bus.telemetry.logs import get_logger
from bus.telemetry.metrics import Metrics
from producers.outcomes import PublishRejected

__all__ = [
    "NO_WATCH",
    "OnProgress",
    "ProgressFeed",
    "TaskEvent",
    "RequestWatch",
    "check_answer_type",
    "make_watch",
    "show_quietly",
]

_KEPT: Final = 1_000
"""So many events wait for a slow function; then the oldest are dropped."""
_IDS: Final = 1_000

_log = get_logger("requests")


class TaskEvent(msgspec.Struct, frozen=True):
    """A message about a task or a request: progress, or with *is_last* its end.

    *payload* is None for a type of which no class is known.
    """

    message: Message
    payload: Any
    is_last: bool


OnProgress: TypeAlias = Callable[[TaskEvent], Any]
"""A function, or a coroutine function, that takes each event before the answer."""


class RequestWatch(msgspec.Struct, frozen=True):
    """What the caller of a request wants to know before its answer."""

    on_progress: OnProgress | None = None
    idle_s: float = math.inf
    """After so many seconds without progress the request ends."""
    kinds: tuple[PayloadType, ...] = ()
    """Types of progress besides the built-in ones."""

    @property
    def accepts(self) -> bool:
        """Whether the request asks for progress."""
        return self.on_progress is not None or self.idle_s < math.inf


NO_WATCH: Final = RequestWatch()


def make_watch(on_progress: OnProgress | None, idle_s: float | None, types: Sequence[type[Any]]) -> RequestWatch:
    """Return what these options of a request ask for. Raises PublishRejected for an illegal one."""
    if on_progress is not None and not callable(on_progress):
        raise _refused(f"is a {type(on_progress).__name__}, not a function of one event", "on_progress")
    if idle_s is not None and (isinstance(idle_s, bool) or not isinstance(idle_s, int | float) or not idle_s > 0):
        raise _refused(f"{idle_s!r} is not more than 0 seconds", "idle_s")
    if on_progress is None and idle_s is None and not types:
        return NO_WATCH
    return RequestWatch(on_progress, math.inf if idle_s is None else idle_s, tuple(map(payload_type, types)))


def check_answer_type(kind: PayloadType) -> None:
    """Raise PublishRejected where *kind* is progress, which ends no request: its answer would never come."""
    if kind.name in PROGRESS_TYPES:
        raise _refused(
            f"{kind.name} is progress and ends no request: ask for the type of the result, and give on_progress=",
            "reply",
        )


def _refused(text: str, pointer: str) -> PublishRejected:
    error = ContractError(text, pointer)
    return PublishRejected(f"refused before sending: {error}", error)


class ProgressFeed:
    """Hands the events of one request to its caller's function, one after another, in the caller's context.

    A function that fails fails no request: its error is logged.
    """

    def __init__(self, watch: RequestWatch, clock: Clock, metrics: Metrics, note: Callable[[Message], object]) -> None:
        self._show = watch.on_progress
        self._clock = clock
        self._metrics = metrics
        self._note = note
        self._context = contextvars.copy_context()
        self._waiting: deque[TaskEvent] = deque()
        self._seen: OrderedDict[str, None] = OrderedDict()
        self._handing: asyncio.Task[None] | None = None

    def put(self, event: TaskEvent) -> None:
        """Take *event*, which is accepted. The same message comes again when its sender runs again."""
        if event.message.message_id in self._seen:
            self._count("repeated")
            return
        self._seen[event.message.message_id] = None
        if len(self._seen) > _IDS:
            self._seen.popitem(last=False)
        if self._show is None:
            self._count("passed")
            return
        if len(self._waiting) >= _KEPT:
            self._waiting.popleft()
            self._count("dropped")
        self._waiting.append(event)
        if self._handing is None or self._handing.done():
            loop = asyncio.get_running_loop()
            self._handing = loop.create_task(self._hand_over(self._show), context=self._context)

    async def drain(self, left_s: float) -> None:
        """Wait until all that came is handed over, at most *left_s* seconds."""
        if self._handing is None or self._handing.done():
            return
        over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        timer = self._clock.call_later(max(0.0, left_s), over.cancel)
        try:
            await asyncio.wait((self._handing, over), return_when=asyncio.FIRST_COMPLETED)
        finally:
            timer.cancel()

    def close(self) -> None:
        """Hand nothing over any more."""
        for _ in self._waiting:
            self._count("dropped")
        self._waiting.clear()
        if self._handing is not None:
            self._handing.cancel()

    async def _hand_over(self, show: OnProgress) -> None:
        while self._waiting:
            event = self._waiting.popleft()
            # What its caller sends from now on has seen it.
            self._note(event.message)
            self._count("shown")
            if inspect.isawaitable(shown := show_quietly(show, event)):
                try:
                    await shown
                except Exception as error:  # noqa: BLE001 - what a caller shows is no part of its request
                    _tell(event, error)

    def _count(self, outcome: str) -> None:
        self._metrics.progress.labels(outcome).inc()


def show_quietly(show: OnProgress, event: TaskEvent) -> object:
    """Return what *show* returns of *event*; log its error, which is no part of the request."""
    try:
        return show(event)
    except Exception as error:  # noqa: BLE001 - it is the caller's own
        _tell(event, error)
        return None


def _tell(event: TaskEvent, error: Exception) -> None:
    _log.warning("request.on_progress_failed", type=event.message.message_type, error=text_of(error), exc_info=error)
