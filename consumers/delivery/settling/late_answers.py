"""LateAnswers: repeats sending answers whose topic the broker did not know yet, without occupying a slot.

Owns the pauses, and settling the message once its answers are sent or dropped.
`consumers.delivery.settling.durable_append` decides which answers these are. A message that is unsettled when the
worker ends is delivered again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

from bus.clock import Clock
from bus.transports.base import NewRecord
from consumers.delivery.settling.durable_append import DurableAppender, GaveUpError
from consumers.delivery.state.delivery import Delivery
from consumers.delivery.state.in_flight import InFlight

__all__ = ["LateAnswers"]

_PAUSES_S: Final = (0.5, 1.0, 2.0, 2.0)
"""After these pauses a broker knows a new topic, and an agent has created its deleted topic again."""
_LIMIT: Final = 256
"""Messages that may wait at once; further ones get no pauses."""


class LateAnswers:
    """Sends the late answers of one worker."""

    def __init__(self, appender: DurableAppender, in_flight: InFlight, clock: Clock) -> None:
        self._appender = appender
        self._in_flight = in_flight
        self._clock = clock
        self._tasks: set[asyncio.Task[None]] = set()

    def add(self, delivery: Delivery, records: Sequence[NewRecord], settle: Callable[[], object]) -> None:
        """Send *records* again after a pause, up to four times, then settle *delivery* by *settle*."""
        pauses_s = _PAUSES_S if len(self._tasks) < _LIMIT else _PAUSES_S[:0]
        delivery.partition.awaiting_inbox += 1
        task = asyncio.get_running_loop().create_task(self._send(delivery, records, settle, pauses_s))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """Cancel the sending: unsettled messages are delivered again."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def _send(
        self, delivery: Delivery, records: Sequence[NewRecord], settle: Callable[[], object], pauses_s: Sequence[float]
    ) -> None:
        try:
            for pause_s in pauses_s:
                await self._clock.sleep(pause_s)
                if delivery.partition.closed:
                    raise GaveUpError
                records = await self._appender.send(records, delivery.partition)
                if not records:
                    break
            await self._appender.send(records, delivery.partition, at_last=True)
            settle()
        except GaveUpError:
            self._in_flight.drop(delivery)
        finally:
            delivery.partition.awaiting_inbox -= 1
