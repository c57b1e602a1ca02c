"""Slots for handlers: a bounded number of coroutines take ready lanes, without a task or timer per message.

Owns bounded concurrency, waking only as many slots as there is work for, handler deadlines, and cancelling a handler. A
run that waits for an answer gives its slot to another run, and takes a slot again before it continues. The number of
waiting runs is limited, so that answers, and the nested calls that they depend on, always find a slot. The `drive`
argument runs a lane (`consumers.delivery.handling.executor`).
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections import deque
from collections.abc import Awaitable, Callable, Collection
from typing import Any, Final, Literal, NamedTuple

from bus.clock import Clock, Timer
from bus.own_context import OwnContext
from bus.telemetry.logs import get_logger
from consumers.delivery.crashes.crash_guard import CrashGuard
from consumers.delivery.crashes.running_messages import HANDLER, INBOX
from consumers.delivery.handler_errors import HandlerGoneError, HandlerTimeoutError, decision_in, is_decision
from consumers.delivery.handling.exclusive import ExclusiveGate
from consumers.delivery.handling.handler_stack import handler_stack
from consumers.delivery.state.delivery import Accepted, Delivery
from consumers.delivery.state.lanes import Lane, Lanes
from producers.sealing.run_labels import log_ids

__all__ = ["HandlerSlot", "HandlerSlots", "RunningHandler"]

# Per unit of concurrency one handler runs; up to three more coroutines wait for their outcomes to be durable.
_MAX_PER_SLOT = 4
_SLICE_S = 0.01
_WAITING: Final = 1_000
"""The default number of runs that may wait for answers at once."""


class RunningHandler(NamedTuple):
    """The names of a running handler and its message, for log lines."""

    handler: str
    message_type: str
    message_id: str


class HandlerSlot:
    """A coroutine that takes lanes, and the handler that it runs now."""

    __slots__ = (
        "_deadlines",
        "_gate",
        "_guard",
        "_pool",
        "alone",
        "cut",
        "deadline_s",
        "delivery",
        "ending",
        "inside",
        "is_named",
        "overdue_s",
        "queue",
        "ran",
        "released",
        "resuming",
        "seen_s",
        "settling",
        "task",
        "waits",
        "working",
    )

    def __init__(self, deadlines: Deadlines, pool: HandlerSlots, guard: CrashGuard, gate: ExclusiveGate) -> None:
        self._deadlines = deadlines
        self._gate = gate
        """Counts the handler that runs."""
        self._guard = guard
        self._pool = pool
        self.alone = False
        """Its run has the process for itself (`consumers.delivery.handling.exclusive`)."""
        self.queue: Literal["", "alone", "beside"] = ""
        """What its run waits to begin as: alone in the process, or beside others once such a run has ended."""
        self.ran = False
        """The handler has ended that ran for its delivery."""
        self.settling = False
        """The outcome of its delivery goes to the log."""
        self.inside = False
        """Whoever drives it has entered the gate for its run; else its handler is counted while it runs."""
        self.waits = 0
        """The answers that its run waits for at present."""
        self.working = True
        """False while its run waits: another may run instead."""
        self.resuming: asyncio.Future[None] | None = None
        """Set when its run, which has its answer, may go on."""
        self.task: asyncio.Task[None] | None = None
        self.delivery: Delivery | None = None
        self.deadline_s = math.inf
        self.cut: type[Exception] | None = None
        self.overdue_s: float | None = None
        """The deadline that the present handler has passed, where it has."""
        self.is_named = False
        """A log line has named that handler, with its stack."""
        self.seen_s = -math.inf
        """When the clock was last read for it, on the monotonic clock: a handler begins now, or has just ended."""
        self.ending = False
        """The worker closes: a cancellation is meant for the slot itself."""
        self.released = False
        """The handler has ended and its outcome is being made durable: another handler may run instead."""

    @property
    def in_handler(self) -> bool:
        """Whether a handler runs in this slot now; else its outcome is settled, or it waits to begin."""
        return self.deadline_s != math.inf

    async def call(
        self,
        handler: Callable[..., Awaitable[Any]],
        arguments: tuple[Any, ...],
        deadline_s: float,
        delivery: Accepted,
        *,
        has_row: bool,
    ) -> Any:
        """Run *handler* for *delivery* until *deadline_s* of the monotonic clock; *has_row*: it has a row in an inbox.

        Raises HandlerTimeoutError or HandlerCutError when it was cancelled for that reason. Raises HandlerGoneError
        when it ended by something that is no Exception.
        """
        self.deadline_s = deadline_s
        if deadline_s < self._deadlines.due_s:
            self._deadlines.watch(deadline_s)
        gate, notes, noted = self._gate, self._guard.running, 0
        # A run that has waited for its turn is counted already.
        counted = not self.inside
        gate.inside += counted
        if notes is not None:
            noted = notes.begin(delivery.control, delivery.message.metadata.message_id, INBOX if has_row else HANDLER)
        try:
            try:
                return await handler(*arguments)
            finally:
                # Usually 0: then no coroutine is created.
                if self.task is not None and self.task.cancelling():
                    await self._absorb_late_cancel()
        except asyncio.CancelledError as error:
            if self.cut is None and not self.ending:
                # Not cancelled by this worker: passed on, it would end the slot with its lane, and the message would
                # stay unsettled without a log line.
                raise HandlerGoneError("the handler cancelled its own task") from error
            raise (self.cut or error) from None
        except Exception:
            raise
        except BaseException as error:
            # The handler exits the process, or compiled code panics (PyO3's PanicException is no Exception): the slot
            # must survive for the next message.
            raise _gone(error) from error
        finally:
            # No await lies between the handler's end and here, or it absorbs every cancellation: a late cut cannot hit
            # the settling.
            self.deadline_s, self.ran = math.inf, True
            gate.inside -= counted
            if noted and notes is not None:
                notes.end(noted)
            if self.cut is not None or self.waits or not self.working or gate.closed or self._guard.crash_counts:
                self._ended(delivery)

    def _ended(self, delivery: Delivery) -> None:
        if self._gate.closed:
            self._gate.announce()
        if not self.working:
            self._pool.resume_now(self)
        self.waits = 0
        self._guard.ended(delivery)
        if self.cut is not None:
            self.cut, self.overdue_s, self.is_named = None, None, False
            if self.task is not None:
                self.task.uncancel()

    async def _absorb_late_cancel(self) -> None:
        """Absorb a cancellation that the handler requested and did not wait for.

        It would hit the code that settles the handler's message.
        """
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(0)
        if self.ending:
            raise asyncio.CancelledError
        while self.task is not None and self.task.cancelling():
            self.task.uncancel()

    def release(self) -> None:
        """Free the concurrency of this slot: its handler has ended, its outcome is being made durable."""
        if not self.released:
            self.released = True
            self._pool.slot_released()

    def begin_wait(self) -> None:
        """Note that the run waits for one more answer; it counts as waiting as long as it waits for any."""
        self.waits += 1
        if self.working:
            self._pool.pause(self)

    async def end_wait(self) -> None:
        """Note that one answer has come, and wait until the run may go on."""
        self.waits -= 1
        if not self.waits and not self.working:
            await self._pool.resume(self)

    def abandon_wait(self) -> None:
        """Note that the run no longer waits for an answer, and goes on at once: it was cancelled there."""
        self.waits -= 1
        if not self.waits and not self.working:
            self._pool.resume_now(self)

    def share(self) -> None:
        """Let others run beside this run, which had the process for itself: it gets on, or has had its time alone."""
        if self.alone:
            self.alone = False
            self._gate.share()

    def interrupt(self, reason: type[Exception]) -> None:
        """Cancel the handler that runs in this slot, once; *reason* is the error that `call` raises."""
        if self.cut is None and self.in_handler and self.task is not None:
            self.cut = reason
            self.task.cancel()


class HandlerSlots:
    """Drives the lanes of one worker with at most *concurrency* handlers at work at a time.

    Beyond *max_waiting* runs that wait for answers only lanes are taken whose head others wait for.
    """

    def __init__(
        self,
        lanes: Lanes[Delivery],
        drive: Callable[[Lane[Delivery], HandlerSlot], Awaitable[None]],
        *,
        concurrency: int,
        clock: Clock,
        guard: CrashGuard | None = None,
        max_waiting: int = _WAITING,
        max_waiting_bytes: float = math.inf,
        exclusive: ExclusiveGate | None = None,
        own: OwnContext | None = None,
    ) -> None:
        self._own = own or OwnContext()
        self._exclusive = exclusive or ExclusiveGate()
        self._exclusive.opened = self._grant
        self._max_waiting = max_waiting
        self._max_waiting_bytes = max_waiting_bytes
        self._paused: set[HandlerSlot] = set()
        self._waiting_bytes = 0
        self.holds_back = False
        """So many runs wait that no further message may begin, but those that others wait for."""
        self._resuming: deque[HandlerSlot] = deque()
        self._lanes = lanes
        self._drive = drive
        self._concurrency = concurrency
        self._clock = clock
        self._guard = guard or CrashGuard(None, clock)
        self._slots: set[HandlerSlot] = set()
        self._idle: list[asyncio.Future[None]] = []
        self._waking = 0
        self._busy = 0
        self._released = 0
        self._quiet = asyncio.Event()
        self._quiet.set()
        self._deadlines = Deadlines(self._slots, clock)
        self._stopping = self._closed = False
        self.failure: BaseException | None = None
        """The error that ended a slot unexpectedly; the worker stops on it."""

    @property
    def full(self) -> bool:
        """Whether no ready lane may start: *concurrency* handlers run, or too many runs wait for answers."""
        return not self.has_room or (self.holds_back and not self._lanes.ready_deep)

    @property
    def has_room(self) -> bool:
        """Whether fewer handlers are at work than may be."""
        return self._busy - self._released - len(self._paused) < self._concurrency

    @property
    def places(self) -> int:
        """How many handlers may be at work at once."""
        return self._concurrency

    @property
    def busy(self) -> int:
        """How many are; a run that waits for an answer is not."""
        return self._busy - self._released - len(self._paused)

    @property
    def waiting(self) -> int:
        """The number of runs that wait for answers."""
        return len(self._paused)

    def waiting_deliveries(self) -> list[Delivery]:
        """Return the deliveries whose runs wait for answers."""
        return [slot.delivery for slot in self._paused if slot.delivery is not None]

    def running(self) -> list[HandlerSlot]:
        """Return the slots that drive a lane."""
        return [slot for slot in self._slots if slot.delivery is not None]

    def runs(self) -> list[tuple[Accepted, float]]:
        """Return the deliveries whose handlers run, each with when it began on the monotonic clock."""
        return [
            (slot.delivery, slot.seen_s)
            for slot in self._slots
            if slot.in_handler and isinstance(slot.delivery, Accepted)
        ]

    def work_of(self, task: asyncio.Task[Any]) -> RunningHandler | None:
        """Name the handler that *task* runs; None if it runs none. Callable from any thread."""
        slot = next((slot for slot in tuple(self._slots) if slot.task is task and slot.in_handler), None)
        return None if slot is None else _work_in(slot)

    def named(self, slot: HandlerSlot) -> RunningHandler | None:
        """Name the handler that *slot* runs; None if it runs none."""
        return _work_in(slot) if slot.in_handler else None

    def overruns(self, now_s: float) -> list[tuple[RunningHandler, float]]:
        """Return the handlers that run, with the seconds since their deadlines. Callable from any thread."""
        slots = [slot for slot in tuple(self._slots) if slot.in_handler]
        ends = ((slot, slot.deadline_s if slot.overdue_s is None else slot.overdue_s) for slot in slots)
        return [(work, now_s - end_s) for slot, end_s in ends if (work := _work_in(slot)) is not None]

    def wake_slots(self) -> None:
        """Wake or start slots for the ready lanes, unless some are waking already.

        It wakes as many slots as are busy, in a handler or waiting for a claim. If handlers never wait, one slot is
        enough for all lanes. If they do, waking slots one by one would cost a turn of the loop each.
        """
        answered_lanes = len(self._lanes.answered_lanes)
        if self._waking or self._closed or not (answered_lanes or self._lanes.ready):
            return
        taken = self._busy - self._released - len(self._paused)
        ready = self._lanes.ready_deep if self.holds_back else self._lanes.ready
        # A slot is reserved for each lane that waits for the inbox.
        fresh = (
            0 if self._stopping else min(ready, self._concurrency - taken - answered_lanes - self._lanes.awaiting_claim)
        )
        for _ in range(min(answered_lanes + max(0, fresh), self._concurrency - taken, max(1, taken))):
            if not self._wake():
                return

    def _wake(self) -> bool:
        while self._idle:
            waiter = self._idle.pop()
            if not waiter.done():
                self._waking += 1
                waiter.set_result(None)
                return True
        if len(self._slots) - len(self._paused) >= self._concurrency * _MAX_PER_SLOT:
            return False
        self._waking += 1
        slot = HandlerSlot(self._deadlines, self, self._guard, self._exclusive)
        self._slots.add(slot)
        slot.task = self._own.begin(self._run(slot))
        slot.task.add_done_callback(lambda task: self._ended(slot, task))
        return True

    async def quiet(self) -> None:
        """Wait until nothing runs and no lane is ready; lanes may wait for a retry."""
        while not self._is_quiet():
            self._quiet.clear()
            self.wake_slots()
            await self._quiet.wait()
            if self.failure is not None:
                return

    def changed(self) -> None:
        """Note that lanes have become ready, or have come back or gone, without a slot."""
        if self._is_quiet():
            self._quiet.set()
        else:
            self.wake_slots()

    def _is_quiet(self) -> bool:
        lanes = self._lanes
        return not (
            self._busy
            or lanes.awaiting_claim
            or lanes.settling
            or lanes.answered_lanes
            or (lanes.ready and not self._stopping)
        )

    def stop(self) -> None:
        """Start no further deliveries; those that run, or that the inbox has answered, are still settled."""
        self._stopping = True
        if self._is_quiet():
            self._quiet.set()

    async def close(self) -> None:
        """End all slots and cut running handlers; one that does not end within a second is left behind."""
        self.stop()
        self._closed = True
        self._deadlines.close()
        for slot in self._slots:
            slot.ending = True
        tasks = [slot.task for slot in self._slots if slot.task is not None]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=1.0)

    async def _run(self, slot: HandlerSlot) -> None:
        started_s = self._clock.monotonic_s()
        self._waking -= 1
        while True:
            lane = self._take()
            if lane is None:
                await self._rest()
                self._waking -= 1
                started_s = self._clock.monotonic_s()
                continue
            self._busy += 1
            if not self._waking:
                self.wake_slots()
            try:
                await self._drive(lane, slot)
            finally:
                slot.delivery = None
                self._busy -= 1
                if slot.released:
                    slot.released = False
                    self._released -= 1
                if self._resuming:
                    self._grant()
                if not (self._busy or (self._lanes.ready and not self._stopping)) and self._is_quiet():
                    self._quiet.set()
            if slot.seen_s - started_s > _SLICE_S:
                # Handlers that never wait must not starve heartbeats and the poll loop.
                await asyncio.sleep(0)
                started_s = self._clock.monotonic_s()

    def _take(self) -> Lane[Delivery] | None:
        lanes, free = self._lanes, self._concurrency - self._busy + self._released + len(self._paused)
        if free <= 0:
            return None
        if lanes.answered_lanes:
            return lanes.take_back()
        return None if self._stopping or free <= lanes.awaiting_claim else lanes.take(only_deep=self.holds_back)

    def slot_released(self) -> None:
        """Note that the handler of a slot has ended, and only its outcome keeps it."""
        self._released += 1
        self._grant()
        self.wake_slots()

    # Runs that wait for answers.

    def pause(self, slot: HandlerSlot) -> None:
        """Give the place of *slot*, whose run waits, to another."""
        slot.working = False
        self._paused.add(slot)
        self._count(slot, 1)
        # What it waits for may have to run in this process: who was alone is not any more.
        self._exclusive.leave(alone=slot.alone)
        slot.alone = False
        self._grant()
        self.changed()

    async def resume(self, slot: HandlerSlot) -> None:
        """Wait until *slot*, whose run has its answer, has a place again: before every lane that is not begun."""
        may_go_on = slot.resuming
        if may_go_on is None:
            may_go_on = slot.resuming = asyncio.get_running_loop().create_future()
            self._resuming.append(slot)
            self._grant()
        if not may_go_on.done():
            # Tasks of one run may wait here together; one that is cancelled leaves the others to it.
            await asyncio.wait((may_go_on,))

    def resume_now(self, slot: HandlerSlot) -> None:
        """Have *slot* go on at once, beyond the limit if need be: its run ends, or was cancelled where it waited."""
        self._go_on(slot)

    def _grant(self) -> None:
        while self._resuming and self.has_room and not self._exclusive.closed:
            slot = self._resuming.popleft()
            if slot.resuming is not None:
                self._go_on(slot)

    def _count(self, slot: HandlerSlot, sign: int) -> None:
        self._waiting_bytes += sign * (slot.delivery.size if slot.delivery is not None else 0)
        self.holds_back = len(self._paused) >= self._max_waiting or self._waiting_bytes >= self._max_waiting_bytes

    def _go_on(self, slot: HandlerSlot) -> None:
        slot.working = True
        self._exclusive.inside += 1
        self._paused.discard(slot)
        self._count(slot, -1)
        if slot.resuming is not None:
            if not slot.resuming.done():
                slot.resuming.set_result(None)
            slot.resuming = None

    async def _rest(self) -> None:
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._idle.append(waiter)
        await waiter

    def _ended(self, slot: HandlerSlot, task: asyncio.Task[None]) -> None:
        self._slots.discard(slot)
        if task.cancelled():
            failure: BaseException | None = (
                None if slot.ending else RuntimeError("a runner was cancelled, and not because the worker ends")
            )
        else:
            failure = task.exception()
        if failure is not None:
            self.failure = failure
            self._waking = 0
            self._quiet.set()


_GRACE_S: Final = 2.0
"""Seconds that a cancelled handler has before a log line names it."""


_AGAIN_S: Final = 60.0


_log = get_logger("handler")


class Deadlines:
    """Cuts the handlers of *slots* that overrun their deadlines. The set may change."""

    def __init__(self, slots: Collection[HandlerSlot], clock: Clock) -> None:
        self._slots = slots
        self._clock = clock
        self._timer: Timer | None = None
        self.due_s = math.inf
        """The earliest deadline that is watched."""

    def watch(self, deadline_s: float) -> None:
        """Note that a handler has begun that must end by *deadline_s* of the monotonic clock."""
        # No timer per message: only an earlier deadline sets the timer again.
        if deadline_s < self.due_s:
            self.close()
            self.due_s = deadline_s
            self._timer = self._clock.call_later(max(0.0, deadline_s - self._clock.monotonic_s()), self._look)

    def close(self) -> None:
        """Cancel the timer."""
        if self._timer is not None:
            self._timer.cancel()

    def _look(self) -> None:
        self._timer, self.due_s = None, math.inf
        now_s = self._clock.monotonic_s()
        for slot in self._slots:
            if slot.deadline_s <= now_s:
                # From here on its deadline is the next look at it.
                slot.overdue_s = slot.deadline_s if slot.overdue_s is None else slot.overdue_s
                slot.deadline_s = now_s + _overrun(slot)
        waiting = [slot.deadline_s for slot in self._slots if slot.deadline_s < math.inf]
        if waiting:
            self.watch(min(waiting))


def _overrun(slot: HandlerSlot) -> float:
    """Cut the handler, or log that it goes on although it was cut; return the seconds until the next look."""
    if slot.cut is None:
        slot.interrupt(HandlerTimeoutError)
        return _GRACE_S
    delivery = slot.delivery
    if isinstance(delivery, Accepted):
        stack = {}
        if slot.task is not None and not slot.is_named:
            slot.is_named = True
            stack["stack"] = handler_stack(slot.task, HandlerSlot.call.__code__)
        _log.error(
            "handler.does_not_end",
            **log_ids(delivery.message, delivery.control.attempt + 1) | {"type": delivery.label},
            detail="the handler ignores its cancellation (threads cannot be stopped); its message and later ones of "
            "the same key wait",
            **stack,
        )
    return _AGAIN_S


def _gone(error: BaseException) -> Exception:
    """Return the error that decides for a handler that ended by *error*, which is not an Exception."""
    if isinstance(error, BaseExceptionGroup) and (ordinary := error.subgroup(Exception)) is not None:
        decision = decision_in(ordinary)
        if is_decision(decision):
            return decision
    return HandlerGoneError(f"it raised {type(error).__name__}")


def _work_in(slot: HandlerSlot) -> RunningHandler | None:
    delivery = slot.delivery
    if not isinstance(delivery, Accepted):
        return None
    handler = delivery.subscription.handler
    name = f"{handler.__module__}.{getattr(handler, '__qualname__', type(handler).__qualname__)}"
    return RunningHandler(name, delivery.label, delivery.message.message_id)
