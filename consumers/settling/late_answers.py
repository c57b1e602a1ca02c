"""Late answers: those whose topic a broker did not know of a moment ago, sent again while nobody waits for them.

Owns these pauses, outside every slot, and settling the message when its answers are sent or dropped. Does not own which
answers these are (`consumers.settling.durable_append`). What it settles is given; a message that is not settled when
the worker ends is delivered again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

from bus.clock import Clock
from bus.transports.base import NewRecord
from consumers.settling.durable_append import DurableAppender, GaveUpError
from consumers.state.delivery import Delivery
from consumers.state.in_flight import InFlight

__all__ = ["LateAnswers"]

_PAUSES_S: Final = (0.5, 1.0, 2.0, 2.0)
"""After these a broker knows of a topic that was made, and an agent whose topic was deleted has made it again."""
_MOST: Final = 256
"""So many messages wait for that; more are not given the pause."""


class LateAnswers:
    """Of one worker."""

    def __init__(self, settlement: DurableAppender, flight: InFlight, clock: Clock) -> None:
        self._settlement = settlement
        self._flight = flight
        self._clock = clock
        self._tasks: set[asyncio.Task[None]] = set()

    def add(self, delivery: Delivery, records: Sequence[NewRecord], settle: Callable[[], object]) -> None:
        """Send *records* again in a moment, and a few times more where that is in vain; then *settle* *delivery*."""
        pauses_s = _PAUSES_S if len(self._tasks) < _MOST else _PAUSES_S[:0]
        delivery.partition.parked += 1
        task = asyncio.get_running_loop().create_task(self._send(delivery, records, settle, pauses_s))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """Send nothing more."""
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
                records = await self._settlement.send(records, delivery.partition)
                if not records:
                    break
            await self._settlement.send(records, delivery.partition, at_last=True)
            settle()
        except GaveUpError:
            self._flight.drop(delivery)
        finally:
            delivery.partition.parked -= 1
