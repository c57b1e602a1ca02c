"""Chores that are due once in a while, and timers that belong to no message."""

from __future__ import annotations

import asyncio
from contextvars import ContextVar

from bus.clock import Interval, ManualClock, Ration, SystemClock

OF_A_RUN: ContextVar[str] = ContextVar("of a run", default="")


def test_each_chore_is_due_at_once_and_again_when_its_time_has_passed() -> None:
    clock = ManualClock()
    rarely = Interval(clock)
    assert rarely.is_due("a", 10)
    assert not rarely.is_due("a", 10)
    assert rarely.is_due("b", 10)
    clock.advance(9.9)
    assert not rarely.is_due("a", 10)
    clock.advance(0.1)
    assert rarely.is_due("a", 10)


def test_a_ration_is_limited_in_each_interval() -> None:
    clock = ManualClock()
    ration = Ration(clock, max_count=2, every_s=10)
    assert [ration.take() for _ in range(4)] == [True, True, False, False]
    clock.advance(9.9)
    assert not ration.take()
    clock.advance(0.1)
    assert ration.take()


async def test_a_timer_does_not_run_in_the_context_of_the_message_that_has_set_it() -> None:
    """It looks after all messages, and its log lines would carry the ids of that one."""
    clock = SystemClock()
    OF_A_RUN.set("first message")
    seen: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    clock.call_later(0, lambda: seen.set_result(OF_A_RUN.get()))
    assert await seen == ""
