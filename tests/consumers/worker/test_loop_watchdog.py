"""The watching thread lets an idle process be idle, and still sees a stall on time."""

from __future__ import annotations

import asyncio
import threading

import pytest

from consumers.worker import loop_watchdog
from consumers.worker.loop_watchdog import LoopWatch


class Waits(threading.Event):
    """Records how long the thread means to sleep."""

    def __init__(self) -> None:
        super().__init__()
        self.timeouts_s: list[float | None] = []
        self.begun = threading.Event()

    def wait(self, timeout: float | None = None) -> bool:
        self.timeouts_s.append(timeout)
        self.begun.set()
        return super().wait(timeout)


async def test_the_watching_thread_sleeps_until_a_stall_could_be_worth_a_warning() -> None:
    watch = LoopWatch(lambda _: None)
    watch._over = over = Waits()
    with watch:
        await asyncio.to_thread(over.begun.wait, 30)
    # A thread that begins late, on a loaded machine, has less to wait; each tenth of a second is what it must not be.
    assert watch._pause_s(watch._due_s - loop_watchdog._TICK_S) == pytest.approx(1.1)
    assert over.timeouts_s[0] is not None
    assert over.timeouts_s[0] > 2 * loop_watchdog._TICK_S


def test_a_loop_that_is_overdue_is_looked_at_often() -> None:
    watch = LoopWatch(lambda _: None)
    watch._due_s = 100.0
    assert watch._pause_s(100.3) == pytest.approx(0.7)
    assert watch._pause_s(109.0) == loop_watchdog._TICK_S
