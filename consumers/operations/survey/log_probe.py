"""LogProbe: how long the log takes to store a record, and whether this machine's clock agrees with its own.

Both come from a record that this process writes in this look: an older one says nothing about now. It is an empty
heartbeat, which every reader of heartbeats passes over.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final

import msgspec

from bus.clock import Clock
from bus.errors import BusError, NotPermittedError, TopicMissingError
from bus.topics.names import own_topic
from bus.transports.base import Appended, NewRecord, Transport

__all__ = ["LogHealth", "LogProbe"]

_TIMEOUT_S: Final = 10.0
_KEPT: Final = 5
_FIRST, _LATER = 3, 2
"""How many appends one look is of."""
_PAUSE_S: Final = 0.4
"""Between them. A broker that stalls answers many questions at once where it goes on: in a row they say nothing."""


class LogHealth(msgspec.Struct, frozen=True, kw_only=True):
    """The log as the last probes found it."""

    append_s: float | None = None
    """How long an append took on average, in seconds; None: not measured."""
    appends: int = 0
    """How many appends the average is of."""
    clock_offset_s: float | None = None
    """How far this machine's clock is ahead of the log's (negative: behind), in seconds; None: not measured."""
    error: str = ""
    """Why it was not measured."""
    failure: str = ""
    """Why the log takes no record, though this program may write to it."""


class LogProbe:
    """Probes the log of *namespace* at each `look`, and keeps the last five times."""

    def __init__(self, transport: Transport, namespace: str, clock: Clock) -> None:
        self._transport = transport
        self._topic = own_topic(namespace, "_heartbeats")
        self._clock = clock
        self._times_s: deque[float] = deque(maxlen=_KEPT)

    async def look(self, existing: frozenset[str]) -> LogHealth:
        """Append some records, with pauses between them; *existing* are the topics that exist."""
        if self._topic not in existing:
            return LogHealth(error=f"the topic {self._topic} does not exist yet")
        offset_s = None
        for number in range(_LATER if self._times_s else _FIRST):
            if number:
                await asyncio.sleep(_PAUSE_S)
            offset_s, error = await self._append()
            if isinstance(error, NotPermittedError | TopicMissingError):
                return LogHealth(error=str(error))
            if error is not None:
                return LogHealth(failure=str(error))
        average_s = sum(self._times_s) / len(self._times_s)
        return LogHealth(append_s=average_s, appends=len(self._times_s), clock_offset_s=offset_s)

    async def _append(self) -> tuple[float | None, BusError | None]:
        """Return how far the clock is ahead of the log's, and why that is not known."""
        sent_ms, begun_s = self._clock.now_ms(), self._clock.monotonic_s()
        try:
            (outcome,) = await self._transport.append([NewRecord(self._topic, b"", None, ())], timeout_s=_TIMEOUT_S)
        except BusError as error:
            return None, error
        if not isinstance(outcome, Appended):
            return None, outcome
        self._times_s.append(self._clock.monotonic_s() - begun_s)
        # The log wrote it between these two moments of this clock.
        ahead_ms, behind_ms = sent_ms - outcome.timestamp_ms, outcome.timestamp_ms - self._clock.now_ms()
        return (ahead_ms if ahead_ms > 0 else -behind_ms if behind_ms > 0 else 0) / 1000, None
