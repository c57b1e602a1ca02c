"""Chores that are due once in a while."""

from __future__ import annotations

from bus.clock import ManualClock
from consumers.rarely import Rarely


def test_each_chore_is_due_at_once_and_again_when_its_time_has_passed() -> None:
    clock = ManualClock()
    rarely = Rarely(clock)
    assert rarely.is_time("a", 10)
    assert not rarely.is_time("a", 10)
    assert rarely.is_time("b", 10)
    clock.advance(9.9)
    assert not rarely.is_time("a", 10)
    clock.advance(0.1)
    assert rarely.is_time("a", 10)
