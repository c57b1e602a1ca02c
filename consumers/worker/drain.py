"""Draining: let running handlers of some partitions finish, and cut those that do not.

Owns the waiting, and ending the process where a handler will not stop although its key's order is strict. Commits are
in `consumers.worker.worker`.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Collection

from bus.clock import Clock
from bus.telemetry.logs import get_logger
from consumers.delivery.handler_errors import HandlerCutError
from consumers.delivery.handling.slots import HandlerSlot, HandlerSlots
from consumers.delivery.state.delivery import Accepted
from consumers.delivery.state.partition import Partition

__all__ = ["CUT_GRACE_S", "cancel_handlers", "drain", "end_if_strict", "running_for"]

CUT_GRACE_S = 2.0
"""Seconds that a handler has to end once it was cut."""

_TURN_S = 0.01
_EXIT_SOFTWARE = 70

_log = get_logger("worker")


async def drain(
    slots: HandlerSlots,
    partitions: Collection[Partition],
    timeout_s: float,
    clock: Clock,
    on_count: Callable[[int], object] = lambda _: None,
) -> int:
    """Start nothing more of *partitions*, wait for what runs, cut it after *timeout_s*.

    Returns how many handlers were cut; *on_count* is called with the number at once.

    A handler that goes on is left behind. The next owner would start the next message of its key, so with strict order
    (`key_strict`) the process ends at once. That is safe at any moment.
    """
    for partition in partitions:
        partition.draining = True
    deadline_s = clock.monotonic_s() + timeout_s
    cut_at_s = deadline_s + CUT_GRACE_S
    count = 0
    while (running := running_for(slots, partitions)) or any(partition.awaiting_inbox for partition in partitions):
        now_s = clock.monotonic_s()
        if now_s >= cut_at_s:
            end_if_strict(running)
            break
        if now_s >= deadline_s and not count:
            count = len(running) + sum(partition.awaiting_inbox for partition in partitions)
            on_count(count)
            cancel_handlers(slots, partitions)
        await asyncio.sleep(_TURN_S)
    return count


def cancel_handlers(slots: HandlerSlots, partitions: Collection[Partition]) -> None:
    """Cancel the handlers that run for *partitions*."""
    for slot in running_for(slots, partitions):
        slot.interrupt(HandlerCutError)


def end_if_strict(running: Collection[HandlerSlot], end: Callable[[int], object] = os._exit) -> None:
    """End the process if a handler in *running* holds a key whose order is strict."""
    for slot in running:
        delivery = slot.delivery
        if slot.in_handler and isinstance(delivery, Accepted) and delivery.subscription.order == "key_strict":
            _log.critical(
                "worker.ends",
                type=delivery.label,
                detail="a handler does not stop, and its partition goes to another worker",
            )
            end(_EXIT_SOFTWARE)
            return


def running_for(slots: HandlerSlots, partitions: Collection[Partition]) -> list[HandlerSlot]:
    """Return the slots that drive deliveries of *partitions*."""
    return [slot for slot in slots.running() if slot.delivery and slot.delivery.partition in partitions]
