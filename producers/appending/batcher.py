"""Combine concurrent appends into few, with as many in flight as the log can use.

All other records wait together and leave with the next append. Owns coalescing (an append leaves with the first turn
of the loop that brings no more records), each append's own deadline, and isolating a slow partition from callers that
do not write to it. `producers.appending.byte_budget` limits the buffer.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence, Set
from functools import partial

from bus.clock import Clock, Timer
from bus.errors import AppendUnknownError, ClosedError, ConfigurationError, DeadlineError, TransportError, text_of
from bus.own_context import OwnContext
from bus.transports.base import Appended, AppendFailure, AppendOutcome, NewRecord, Transport
from producers.appending.byte_budget import ByteBudget

__all__ = ["Batcher", "buffered_size"]

_MAX_BATCH_RECORDS = 2_000
_MAX_BATCH_BYTES = 4 * 1_048_576
_GRACE_S = 1.0
_LATE_S = 0.5
_GATHER_S = 0.01
"""Seconds for which turns of the loop that each bring a record delay an append."""
_ENOUGH_ITEMS = 64


class _Item:
    __slots__ = ("deadline_s", "done", "records", "size")

    def __init__(
        self, records: Sequence[NewRecord], size: int, deadline_s: float, done: asyncio.Future[Sequence[AppendOutcome]]
    ) -> None:
        self.records = records
        self.size = size
        self.deadline_s = deadline_s
        self.done = done

    def fail(self, error: AppendFailure) -> None:
        if not self.done.done():
            self.done.set_result([error] * len(self.records))


class Batcher:
    """Appends the records of many callers to one transport; used from one event loop."""

    def __init__(self, transport: Transport, clock: Clock, *, buffer_bytes: int) -> None:
        self._transport = transport
        self._clock = clock
        self._room = ByteBudget(clock, buffer_bytes)
        self._pending: deque[_Item] = deque()
        self._flights: dict[asyncio.Task[None], tuple[Sequence[_Item], int]] = {}
        """The appends in flight, each with the number of the log's answers when it left."""
        self._answers = 0
        self._late: set[asyncio.Task[None]] = set()
        self._looking: Timer | None = None
        self._departing = False
        self._timer: Timer | None = None
        self._timer_due_s = 0.0
        self._closed = False
        self._own = OwnContext()

    async def append(self, records: Sequence[NewRecord], *, timeout_s: float) -> Sequence[AppendOutcome]:
        """Append in order; return one outcome per record, at the latest after *timeout_s*.

        Never raises for a record.
        """
        return await (await self.submit(records, timeout_s=timeout_s))

    async def submit(
        self, records: Sequence[NewRecord], *, timeout_s: float, size: int | None = None
    ) -> asyncio.Future[Sequence[AppendOutcome]]:
        """Queue records once there is room; the future's result is their outcomes.

        *size* is their size in bytes, if the caller knows it.
        """
        if size is None:
            size = sum(buffered_size(record) for record in records)
        item = _Item(records, size, self._clock.monotonic_s() + timeout_s, asyncio.get_running_loop().create_future())
        if await self._room.acquire(size, timeout_s=timeout_s):
            self._enqueue(item)
        elif self._closed:
            item.fail(ClosedError("the bus is closed"))
        else:
            item.fail(DeadlineError(f"the buffer of {self._room.max_bytes} bytes was full until the deadline"))
        return item.done

    def submit_now(
        self, records: Sequence[NewRecord], *, deadline_s: float, size: int
    ) -> asyncio.Future[Sequence[AppendOutcome]] | None:
        """Submit if there is room without waiting; otherwise return None."""
        if not self._room.acquire_nowait(size):
            return None
        item = _Item(records, size, deadline_s, asyncio.get_running_loop().create_future())
        self._enqueue(item)
        return item.done

    async def close(self) -> None:
        """Finish the queued appends, each within its own deadline; later appends are refused."""
        self._closed = True
        self._room.close()
        while self._departing or self._flights:
            await asyncio.wait(self._flights) if self._flights else await asyncio.sleep(0)
        for timer in (self._timer, self._looking):
            if timer is not None:
                timer.cancel()

    def _enqueue(self, item: _Item) -> None:
        self._pending.append(item)
        if self._timer is None or item.deadline_s < self._timer_due_s:
            self._arm(item.deadline_s)
        if not self._departing:
            self._depart_soon()

    def _depart_soon(self) -> None:
        # Records published in this turn of the loop join the same append.
        self._departing = True
        self._own.call_soon(self._gather, len(self._pending), self._clock.monotonic_s() + _GATHER_S)

    def _gather(self, before: int, until_s: float) -> None:
        """Depart, unless this turn of the loop has brought more.

        Handlers of one fetch begin over several turns. Their answers would leave in as many appends, and stay apart
        from then on: each append costs about as much as the work on ten records.
        """
        count = len(self._pending)
        if before < count < _ENOUGH_ITEMS and self._clock.monotonic_s() < until_s:
            self._own.call_soon(self._gather, count, until_s)
        else:
            self._depart()

    def _depart(self) -> None:
        self._departing = False
        max_flights = self._transport.features.appends_in_flight
        while self._pending and len(self._flights) - len(self._late) < max_flights:
            if items := self._take():
                flight = self._own.begin(self._append(items))
                self._flights[flight] = items, self._answers
                flight.add_done_callback(self._landed)
        if self._pending and max_flights > 1 and self._looking is None:
            self._looking = self._clock.call_later(_LATE_S, partial(self._look, frozenset(self._flights)))

    def _look(self, before: Set[asyncio.Task[None]]) -> None:
        """Stop counting appends that were in flight *before* and still wait for a slow partition.

        The log has answered others since, and the queued records must not wait for that partition too. If the log
        answers nothing at all, queued records stay: they are certainly not in the log.
        """
        self._looking = None
        self._late |= {flight for flight in before & self._flights.keys() if self._flights[flight][1] < self._answers}
        if self._pending and not self._departing:
            self._depart_soon()

    def _landed(self, flight: asyncio.Task[None]) -> None:
        self._late.discard(flight)
        self._forget(self._flights.pop(flight)[0])
        if self._pending and not self._departing:
            self._depart_soon()

    def _take(self) -> Sequence[_Item]:
        taken: list[_Item] = []
        count = size = 0
        while self._pending and (not taken or (count < _MAX_BATCH_RECORDS and size < _MAX_BATCH_BYTES)):
            item = self._pending.popleft()
            if item.done.done():
                self._forget([item])
                continue
            taken.append(item)
            count += len(item.records)
            size += item.size
        return taken

    async def _append(self, items: Sequence[_Item]) -> None:
        records = items[0].records if len(items) == 1 else [record for item in items for record in item.records]
        # The transport may take a little longer than the most patient caller; the timer keeps each caller's own
        # deadline.
        timeout_s = max(item.deadline_s for item in items) - self._clock.monotonic_s() + _GRACE_S
        try:
            outcomes = await self._transport.append(
                records, timeout_s=max(_GRACE_S, timeout_s), on_outcomes=partial(self._on_outcomes, items)
            )
        except (TransportError, ConfigurationError) as error:
            for item in items:
                item.fail(error)
            return
        except Exception as error:  # noqa: BLE001 - an adapter's fault must not leave callers waiting for ever
            for item in items:
                item.fail(AppendUnknownError(text_of(error) or type(error).__name__))
            return
        self._answers += _has_answered(outcomes)
        at = 0
        for item in items:
            if not item.done.done():
                item.done.set_result(outcomes[at : at + len(item.records)])
            at += len(item.records)

    def _on_outcomes(self, items: Sequence[_Item], outcomes: Sequence[AppendOutcome | None]) -> None:
        """Settle the items whose outcomes are complete, while others are late."""
        self._answers += _has_answered(outcomes)
        at = 0
        for item in items:
            known = [outcome for outcome in outcomes[at : at + len(item.records)] if outcome is not None]
            at += len(item.records)
            if len(known) == len(item.records) and not item.done.done():
                item.done.set_result(known)
                self._forget([item])
                item.size = 0

    def _forget(self, items: Sequence[_Item]) -> None:
        self._room.release(sum(item.size for item in items))

    def _arm(self, due_s: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_due_s = due_s
        self._timer = self._clock.call_later(max(0.0, due_s - self._clock.monotonic_s()), self._sweep)

    def _sweep(self) -> None:
        """Enforce deadlines: waiting records were certainly not written, those in flight may have been."""
        self._timer = None
        now_s = self._clock.monotonic_s()
        for item in self._pending:
            if item.deadline_s <= now_s:
                item.fail(DeadlineError("the deadline passed before the log took the message up"))
        flying = [item for items, _ in self._flights.values() for item in items]
        for item in flying:
            if item.deadline_s <= now_s:
                item.fail(AppendUnknownError("the deadline passed while the log was writing"))
        open_items = [item.deadline_s for item in (*self._pending, *flying) if not item.done.done()]
        if open_items:
            self._arm(min(open_items))


def _has_answered(outcomes: Sequence[AppendOutcome | None]) -> bool:
    return any(isinstance(outcome, Appended) for outcome in outcomes)


def buffered_size(record: NewRecord) -> int:
    """Estimate the bytes that *record* takes in the buffer."""
    return len(record.value or b"") + len(record.key or b"") + 64
