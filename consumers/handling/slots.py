"""Slots for handlers: a fixed number of coroutines that take ready lanes, without a task or a timer per message.

Owns bounded concurrency, waking (as few runners as there is work for), and cutting a handler that must end now; one
that overruns its deadline is `consumers.deadlines`'s. Does not know what driving a delivery means: that is the `drive`
it is given.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Awaitable, Callable, Collection
from typing import Any, Final, NamedTuple

from bus.clock import Clock, Timer
from bus.telemetry.logs import get_logger
from consumers.crashes.crash_guard import CrashGuard
from consumers.handler_errors import HandlerGoneError, HandlerTimeoutError
from consumers.state.delivery import Accepted, Delivery
from consumers.state.lanes import Lane, Lanes

__all__ = ["HandlerSlot", "HandlerSlots", "RunningHandler"]

# Of one slot one runner has its handler at work, the others wait for their outcomes to be durable.
_MOST_PER_SLOT = 4
_SLICE_S = 0.01


class RunningHandler(NamedTuple):
    """What a handler is at work on, by names."""

    handler: str
    message_type: str
    message_id: str


class HandlerSlot:
    """One slot of concurrency."""

    __slots__ = (
        "_step_aside",
        "_watch",
        "_witness",
        "aside",
        "cut",
        "deadline_s",
        "delivery",
        "ending",
        "seen_s",
        "task",
    )

    def __init__(self, watch: Callable[[float], None], step_aside: Callable[[], None], witness: CrashGuard) -> None:
        self._watch = watch
        self._witness = witness
        self._step_aside = step_aside
        self.task: asyncio.Task[None] | None = None
        self.delivery: Delivery | None = None
        self.deadline_s = math.inf
        self.cut: type[Exception] | None = None
        self.seen_s = -math.inf
        """When its last handler ended."""
        self.ending = False
        """The worker closes: a cancellation is meant for the runner itself."""
        self.aside = False
        """Its handler has ended and its outcome is being made durable: another handler may run in its place."""

    @property
    def in_handler(self) -> bool:
        """Whether a handler runs in this slot now; else its outcome is being settled, or it waits for its turn."""
        return self.deadline_s != math.inf

    async def call(
        self,
        handler: Callable[..., Awaitable[Any]],
        arguments: tuple[Any, ...],
        deadline_s: float,
        delivery: Delivery,
        *,
        kept: bool,
    ) -> Any:
        """Run *handler* for *delivery*, *kept* in an inbox or not; raises HandlerTimeoutError or HandlerCutError when
        it was cancelled for that, HandlerGoneError see there."""
        self.deadline_s = deadline_s
        self._watch(deadline_s)
        noted = self._witness.begin(delivery, kept)
        try:
            try:
                return await handler(*arguments)
            finally:
                # Most often 0, and then no coroutine in between.
                if self.task is not None and self.task.cancelling():
                    await self._absorb_late_cancel()
        except asyncio.CancelledError as error:
            if self.cut is not None:
                raise self.cut from None
            if self.ending:
                raise
            # Not our doing: left alone, the runner would end with its lane and the message would be stuck in silence.
            raise HandlerGoneError("it was cancelled from inside") from error
        except Exception:
            raise
        except BaseException as error:
            # It exits, or compiled code under it panics (PyO3's PanicException is no Exception): not the end of whoever
            # handles the next one.
            raise HandlerGoneError(f"it raised {type(error).__name__}") from error
        finally:
            # No await stands between the handler's end and here, or it takes every cancellation: a late cut can't hit
            # what comes after.
            self.deadline_s = math.inf
            self._witness.end(noted, delivery)
            if self.cut is not None:
                self.cut = None
                if self.task is not None:
                    self.task.uncancel()

    async def _absorb_late_cancel(self) -> None:
        """Take a cancellation that a handler, however it ended, has asked for and not waited for: it would hit what
        settles its message."""
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(0)
        if self.ending:
            raise asyncio.CancelledError
        while self.task is not None and self.task.cancelling():
            self.task.uncancel()

    def step_aside(self) -> None:
        """The handler has ended; until its outcome is durable this is no slot any more."""
        if not self.aside:
            self.aside = True
            self._step_aside()

    def interrupt(self, reason: type[Exception]) -> None:
        """Cancel the handler that runs in this slot, once."""
        if self.cut is None and self.in_handler and self.task is not None:
            self.cut = reason
            self.task.cancel()


class HandlerSlots:
    """Drives the lanes of one worker with at most *concurrency* handlers at a time."""

    def __init__(
        self,
        lanes: Lanes[Delivery],
        drive: Callable[[Lane[Delivery], HandlerSlot], Awaitable[None]],
        *,
        concurrency: int,
        clock: Clock,
        witness: CrashGuard | None = None,
    ) -> None:
        self._lanes = lanes
        self._drive = drive
        self._concurrency = concurrency
        self._clock = clock
        self._witness = witness or CrashGuard(None, clock)
        self._runners: set[HandlerSlot] = set()
        self._idle: list[asyncio.Future[None]] = []
        self._waking = 0
        self._busy = 0
        self._aside = 0
        self._quiet = asyncio.Event()
        self._quiet.set()
        self._deadlines = Deadlines(self._runners, clock)
        self._stopping = self._closed = False
        self.failure: BaseException | None = None
        """What ended a runner that should not have ended; the worker stops on it."""

    @property
    def full(self) -> bool:
        """Whether every slot is taken."""
        return self._busy - self._aside >= self._concurrency

    def running(self) -> list[HandlerSlot]:
        """The runners whose slot is taken."""
        return [runner for runner in self._runners if runner.delivery is not None]

    def work_of(self, task: asyncio.Task[Any]) -> RunningHandler | None:
        """What *task* handles, if it is a runner's and its handler is at work. From any thread."""
        runner = next((runner for runner in tuple(self._runners) if runner.task is task and runner.in_handler), None)
        delivery = None if runner is None else runner.delivery
        if not isinstance(delivery, Accepted):
            return None
        handler = delivery.subscription.handler
        name = f"{handler.__module__}.{getattr(handler, '__qualname__', type(handler).__qualname__)}"
        return RunningHandler(name, delivery.label, delivery.message.message_id)

    def kick(self) -> None:
        """There are ready lanes: wake or start runners unless some are already on their way.

        As many as are at work, each in a handler or waiting for a claim: where handlers do not wait one is enough for
        all lanes, and where they do, waking one after another would cost each a turn of the loop.
        """
        back = len(self._lanes.back)
        if self._waking or self._closed or not (back or self._lanes.ready):
            return
        taken = self._busy - self._aside
        # A lane that is away keeps a slot.
        fresh = 0 if self._stopping else min(self._lanes.ready, self._concurrency - taken - back - self._lanes.away)
        for _ in range(min(back + max(0, fresh), self._concurrency - taken, max(1, taken))):
            if not self._wake():
                return

    def _wake(self) -> bool:
        while self._idle:
            waiter = self._idle.pop()
            if not waiter.done():
                self._waking += 1
                waiter.set_result(None)
                return True
        if len(self._runners) >= self._concurrency * _MOST_PER_SLOT:
            return False
        self._waking += 1
        runner = HandlerSlot(self._deadlines.watch, self._stepped_aside, self._witness)
        self._runners.add(runner)
        runner.task = asyncio.get_running_loop().create_task(self._run(runner))
        runner.task.add_done_callback(lambda task: self._ended(runner, task))
        return True

    async def quiet(self) -> None:
        """Wait until nothing runs and no lane is ready (lanes may wait for a retry)."""
        while not self._is_quiet():
            self._quiet.clear()
            self.kick()
            await self._quiet.wait()
            if self.failure is not None:
                return

    def changed(self) -> None:
        """Lanes are ready, back or gone without a runner's doing."""
        if self._is_quiet():
            self._quiet.set()
        else:
            self.kick()

    def _is_quiet(self) -> bool:
        lanes = self._lanes
        return not (self._busy or lanes.away or lanes.settling or lanes.back or (lanes.ready and not self._stopping))

    def stop(self) -> None:
        """Start nothing more; what runs goes on, and what was answered is ended."""
        self._stopping = True
        if self._is_quiet():
            self._quiet.set()

    async def close(self) -> None:
        """End all runners, cutting what still runs; one that does not end within a second is left behind."""
        self.stop()
        self._closed = True
        self._deadlines.close()
        for runner in self._runners:
            runner.ending = True
        tasks = [runner.task for runner in self._runners if runner.task is not None]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=1.0)

    async def _run(self, runner: HandlerSlot) -> None:
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
            self.kick()
            try:
                await self._drive(lane, runner)
            finally:
                runner.delivery = None
                self._busy -= 1
                if runner.aside:
                    runner.aside = False
                    self._aside -= 1
                if not self._busy and self._is_quiet():
                    self._quiet.set()
            if runner.seen_s - started_s > _SLICE_S:
                # Handlers that never wait must not starve heartbeats and the poll loop.
                await asyncio.sleep(0)
                started_s = self._clock.monotonic_s()

    def _take(self) -> Lane[Delivery] | None:
        lanes, slots = self._lanes, self._concurrency - self._busy + self._aside
        if slots <= 0:
            return None
        if lanes.back:
            return lanes.take_back()
        return None if self._stopping or slots <= lanes.away else lanes.take()

    def _stepped_aside(self) -> None:
        self._aside += 1
        self.kick()

    async def _rest(self) -> None:
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._idle.append(waiter)
        await waiter

    def _ended(self, runner: HandlerSlot, task: asyncio.Task[None]) -> None:
        self._runners.discard(runner)
        if task.cancelled():
            failure: BaseException | None = (
                None if runner.ending else RuntimeError("a runner was cancelled, and not because the worker ends")
            )
        else:
            failure = task.exception()
        if failure is not None:
            self.failure = failure
            self._waking = 0
            self._quiet.set()


_GRACE_S: Final = 2.0
"""So long a handler that was cancelled has to end before a line is spent on it."""


_AGAIN_S: Final = 60.0


_log = get_logger("handler")


class Deadlines:
    """Of *runners*, as they come and go."""

    def __init__(self, runners: Collection[HandlerSlot], clock: Clock) -> None:
        self._runners = runners
        self._clock = clock
        self._timer: Timer | None = None
        self._due_s = math.inf

    def watch(self, deadline_s: float) -> None:
        """A handler has begun that is to end by then."""
        # Costs nothing for all but the earliest deadline; no timer per message.
        if deadline_s < self._due_s:
            self.close()
            self._due_s = deadline_s
            self._timer = self._clock.call_later(max(0.0, deadline_s - self._clock.monotonic_s()), self._look)

    def close(self) -> None:
        """Look no more."""
        if self._timer is not None:
            self._timer.cancel()

    def _look(self) -> None:
        self._timer, self._due_s = None, math.inf
        now_s = self._clock.monotonic_s()
        for runner in self._runners:
            if runner.deadline_s <= now_s:
                runner.deadline_s = now_s + _overrun(runner)
        waiting = [runner.deadline_s for runner in self._runners if runner.deadline_s < math.inf]
        if waiting:
            self.watch(min(waiting))


def _overrun(runner: HandlerSlot) -> float:
    """Cut its handler, or tell that it was cut and goes on; seconds after which to look again."""
    if runner.cut is None:
        runner.interrupt(HandlerTimeoutError)
        return _GRACE_S
    delivery = runner.delivery
    if delivery is not None:
        _log.error(
            "handler.does_not_end",
            message_id=delivery.message.message_id if delivery.message else None,
            type=delivery.label,
            detail="it was cancelled and goes on, as a thread does: its message, and those of its key behind it, wait "
            "for it",
        )
    return _AGAIN_S
