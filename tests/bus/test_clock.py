"""Chores that are due once in a while."""

from __future__ import annotations

from bus.clock import Interval, ManualClock, Ration


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
