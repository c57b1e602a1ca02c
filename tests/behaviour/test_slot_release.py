"""A slot is free again when its handler has ended; what is then made durable holds nobody up, and is waited for all the
same."""

from __future__ import annotations

import asyncio
from typing import Any

from bus.clock import SystemClock
from consumers.delivery.handling.slots import HandlerSlot, HandlerSlots
from consumers.delivery.state.lanes import Lane, Lanes


class Case:
    """Lanes whose drive is a handler, which counts, and a settling, which waits."""

    def __init__(self, concurrency: int) -> None:
        self.lanes: Lanes[Any] = Lanes()
        self.slots = HandlerSlots(self.lanes, self.drive, concurrency=concurrency, clock=SystemClock())
        self.at_work = self.most_at_work = self.settling = self.most_settling = self.done = 0
        self.durable = asyncio.Event()

    async def drive(self, lane: Lane[Any], slot: HandlerSlot) -> None:
        self.at_work += 1
        self.most_at_work = max(self.most_at_work, self.at_work)
        await asyncio.sleep(0)
        self.at_work -= 1
        slot.release()
        slot.release()
        self.settling += 1
        self.most_settling = max(self.most_settling, self.settling)
        await self.durable.wait()
        self.settling -= 1
        self.done += 1
        assert self.lanes.finish(lane) is None

    def add(self, count: int) -> None:
        for number in range(count):
            self.lanes.add(number, object(), 5)
        self.slots.wake_slots()


async def test_handlers_start_while_others_settle_and_never_more_than_the_slots() -> None:
    case = Case(concurrency=2)
    case.add(20)
    for _ in range(50):
        await asyncio.sleep(0)
    assert case.most_at_work == 2
    assert case.settling == 8, "four for each slot"
    case.durable.set()
    await asyncio.wait_for(case.slots.quiet(), 30)
    assert (case.done, case.most_at_work, len(case.lanes)) == (20, 2, 0)
    await case.slots.close()


async def test_quiet_waits_for_what_settles() -> None:
    case = Case(concurrency=4)
    case.add(3)
    quiet = asyncio.create_task(case.slots.quiet())
    for _ in range(20):
        await asyncio.sleep(0)
    assert case.settling == 3
    assert not quiet.done()
    case.durable.set()
    await asyncio.wait_for(quiet, 30)
    assert case.done == 3
    await case.slots.close()


async def test_an_answer_that_comes_when_all_is_closed_starts_nothing() -> None:
    case = Case(concurrency=2)
    case.lanes.add("k", object(), 5)
    lane = case.lanes.take()
    assert lane is not None
    case.lanes.ask()
    await case.slots.close()
    before = asyncio.all_tasks()
    case.lanes.answered([lane])
    case.slots.changed()
    await asyncio.sleep(0)
    assert asyncio.all_tasks() == before
    assert case.most_at_work == 0
