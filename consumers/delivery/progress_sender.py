"""ProgressSender: sends what runs say of their progress, at most five messages a second and run.

Owns the pace: of what a run says in between, the last wins, and it leaves before the run's answer. A progress that
cannot be sent is counted and logged, and fails no run.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from bus.clock import Clock
from bus.errors import text_of
from bus.own_context import OwnContext
from bus.telemetry.logs import get_logger
from producers.publisher import Publisher
from producers.sealing.sealed_record import SealedRecord

__all__ = ["ProgressSender", "RunProgress"]

_EVERY_S: Final = 0.2
_SEND_S: Final = 5.0
"""Seconds that the log has for one message."""
_LAST_S: Final = 2.0
"""Seconds for which the end of a run waits for its last progress."""
_FORGOTTEN_S: Final = 5.0
"""Seconds for which nothing is sent to a topic that has taken nothing."""
_MAX_GONE: Final = 1_000

_log = get_logger("handler")


class ProgressSender:
    """What the runs of one worker share: a topic that takes nothing is not tried by each of them."""

    def __init__(self, publisher: Publisher) -> None:
        self.publisher = publisher
        self.own = OwnContext()
        self._gone: dict[str, float] = {}

    async def send(self, make: Callable[[], SealedRecord]) -> None:
        """Seal and send what *make* makes, or count it as lost."""
        clock, metrics = self.publisher.clock, self.publisher.metrics
        outcome, topic = "lost", ""
        try:
            sealed = make()
            topic = sealed.record.topic
            if self._gone.get(topic, 0.0) <= clock.monotonic_s():
                await self.publisher.send(sealed, timeout_s=_SEND_S)
                outcome = "sent"
        except Exception as error:  # noqa: BLE001 - a policy and a type's own code may raise anything
            if topic:
                if len(self._gone) >= _MAX_GONE:
                    self._gone.clear()
                self._gone[topic] = clock.monotonic_s() + _FORGOTTEN_S
            _log.warning("progress.lost", topic=topic or None, error=text_of(error))
        metrics.progress.labels(outcome).inc()

    def of_run(self) -> RunProgress:
        """Return what one run says."""
        return RunProgress(self, self.publisher.clock)


class RunProgress:
    """What one run says of its progress."""

    def __init__(self, sender: ProgressSender, clock: Clock) -> None:
        self._sender = sender
        self._clock = clock
        self._latest: Callable[[], SealedRecord] | None = None
        self._sending: asyncio.Task[None] | None = None
        self._turn: asyncio.Future[None] | None = None
        self._leaving: asyncio.Future[None] | None = None
        """Done once what is on its way to the log is there, or is lost."""
        self._ended = False

    def say(self, make: Callable[[], SealedRecord]) -> None:
        """Send what *make* makes, now or when it is its turn; something newer may take its place."""
        if self._latest is not None:
            self._sender.publisher.metrics.progress.labels("merged").inc()
        self._latest = make
        if self._sending is None or self._sending.done():
            first, self._latest = self._latest, None
            self._leaving = asyncio.get_running_loop().create_future()
            self._sending = self._sender.own.begin(self._go_on(first))

    async def left(self) -> None:
        """Wait until what is on its way has left: what comes next is to lie behind it."""
        if self._leaving is not None and not self._leaving.done():
            await asyncio.wait((self._leaving,))

    async def end(self) -> None:
        """Let the last one leave, at most for a moment."""
        if self._sending is None or self._sending.done():
            return
        self._ended = True
        self._take_turn()
        over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        timer = self._clock.call_later(_LAST_S, over.cancel)
        try:
            await asyncio.wait((self._sending, over), return_when=asyncio.FIRST_COMPLETED)
        finally:
            timer.cancel()

    async def _go_on(self, make: Callable[[], SealedRecord]) -> None:
        while True:
            try:
                await self._sender.send(make)
            finally:
                if self._leaving is not None and not self._leaving.done():
                    self._leaving.set_result(None)
            await self._pause()
            if self._latest is None:
                return
            make, self._latest = self._latest, None
            self._leaving = asyncio.get_running_loop().create_future()

    async def _pause(self) -> None:
        """Wait until the next one may leave; not where the run has ended."""
        if self._ended:
            return
        self._turn = asyncio.get_running_loop().create_future()
        timer = self._clock.call_later(_EVERY_S, self._take_turn)
        try:
            await self._turn
        finally:
            timer.cancel()

    def _take_turn(self) -> None:
        if self._turn is not None and not self._turn.done():
            self._turn.set_result(None)
