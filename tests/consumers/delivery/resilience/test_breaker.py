"""Breakers: one probe at a time, in turn, and nobody stops the others for ever."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from consumers.delivery.resilience.circuit_breaker import FORGOTTEN_S, Breakers


def test_without_blame_everything_runs() -> None:
    assert Breakers().delay_s("t", "a", 0.0) == 0


def test_a_type_waits_once_its_dependency_is_blamed_and_others_do_not() -> None:
    breakers = Breakers()
    assert breakers.blame("db", "t", "a", 10.0) == 1.0
    assert breakers.delay_s("t", "b", 10.5) == 0.5
    assert breakers.delay_s("u", "c", 10.5) == 0
    assert (set(breakers.open), breakers.waiting_types) == ({"db"}, {"t"})


def test_one_message_probes_and_the_rest_waits() -> None:
    breakers = Breakers()
    breakers.blame("db", "t", "a", 0.0)
    assert breakers.delay_s("t", "b", 1.0) == 0
    assert breakers.delay_s("t", "c", 1.0) > 0
    assert breakers.delay_s("t", "b", 1.0) == 0


def test_a_failed_probe_waits_longer_and_another_message_has_its_turn() -> None:
    breakers = Breakers()
    breakers.blame("db", "t", "a", 0.0)
    assert breakers.delay_s("t", "b", 1.0) == 0
    assert breakers.blame("db", "t", "b", 1.5) == 2.0
    assert breakers.delay_s("t", "c", 3.5) == 0


@given(st.lists(st.permutations("abcd"), min_size=8, max_size=8))
def test_while_all_keep_asking_nobody_probes_again_before_everybody_has(orders: list[list[str]]) -> None:
    breakers, now_s, probes = Breakers(), 0.0, []
    wait_s = breakers.blame("db", "t", "first", now_s)
    for order in orders:
        assert wait_s is not None
        now_s += wait_s
        turns = [message for message in order if breakers.delay_s("t", message, now_s) == 0]
        assert len(turns) == 1
        probes += turns
        wait_s = breakers.blame("db", "t", turns[0], now_s)
    assert sorted(probes[:4]) == sorted(probes[4:]) == list("abcd")


@pytest.mark.parametrize(("now_s", "wait_s"), [(5.0, 1.0), (5.1, 0.0)])
def test_a_silent_probe_blocks_others_at_most_the_backoff_and_two_seconds(now_s: float, wait_s: float) -> None:
    breakers = Breakers()
    breakers.blame("db", "t", "a", 0.0)
    breakers.delay_s("t", "b", 1.0)
    breakers.delay_s("t", "gone", 1.0)
    assert breakers.blame("db", "t", "b", 1.0) == 2.0
    assert breakers.delay_s("t", "b", now_s) == wait_s


def test_repeated_blame_of_a_down_dependency_waits_for_the_same_probe() -> None:
    breakers = Breakers()
    breakers.blame("db", "t", "a", 0.0)
    assert breakers.blame("db", "t", "b", 0.25) == 0.75
    assert breakers.blame("db", "t", "c", 1.5) == 0


def test_waits_grow_to_half_a_minute_and_no_further() -> None:
    breakers, now_s = Breakers(), 0.0
    breakers.blame("db", "t", "m0", now_s)
    for number in range(1, 12):
        now_s += 31
        assert breakers.delay_s("t", f"m{number}", now_s) == 0
        wait_s = breakers.blame("db", "t", f"m{number}", now_s)
    assert wait_s == 30.0


def test_a_probe_that_succeeds_lets_everything_run() -> None:
    breakers = Breakers()
    breakers.blame("db", "t", "a", 0.0)
    assert breakers.delay_s("t", "b", 1.0) == 0
    assert breakers.succeed("b")
    assert not breakers.open
    assert breakers.delay_s("t", "a", 1.0) == 0


def test_a_message_that_did_not_probe_closes_nothing() -> None:
    breakers = Breakers()
    breakers.blame("db", "t", "a", 0.0)
    assert not breakers.succeed("in flight since before")
    assert set(breakers.open) == {"db"}


def test_who_always_blames_is_its_own_fault_once_another_got_through() -> None:
    breakers = Breakers()
    breakers.blame("db", "t", "a", 0.0)
    breakers.delay_s("t", "b", 1.0)
    breakers.succeed("b")
    assert breakers.blame("db", "t", "a", 2.0) is None
    assert not breakers.open


def test_each_success_of_another_message_counts() -> None:
    breakers = Breakers()
    for number in range(4):
        now_s = 10.0 * number
        assert breakers.blame("db", "t", f"m{number}", now_s) == 1.0
        breakers.delay_s("t", "b", now_s + 1)
        breakers.succeed("b")
        assert breakers.blame("db", "t", f"m{number}", now_s + 2) is None


def test_a_later_success_closes_the_breaker() -> None:
    breakers = Breakers()
    breakers.blame("db", "t", "a", 0.0)
    breakers.delay_s("t", "b", 1.0)
    breakers.succeed("b")
    assert not breakers.succeed("a")
    assert breakers.blame("db", "t", "a", 2.0) == 1.0


def test_the_last_ten_thousand_who_blamed_are_remembered() -> None:
    breakers = Breakers()
    for number in range(10_001):
        breakers.blame("db", "t", f"m{number}", 0.0)
    breakers.delay_s("t", "b", 1.0)
    breakers.succeed("b")
    assert breakers.blame("db", "t", "m1", 2.0) is None
    assert breakers.blame("db", "t", "m10000", 2.0) is None
    assert breakers.blame("db", "t", "m0", 2.0) == 1.0


def test_a_trickle_of_messages_that_always_blame_stops_nobody_for_long() -> None:
    breakers, now_s, stopped = Breakers(), 0.0, 0
    for number in range(200):
        # One of them, then ten that are sound.
        assert breakers.blame("db", "t", f"poison-{number}", now_s) is not None
        for sound in range(10):
            now_s += 0.125
            if breakers.delay_s("t", f"sound-{number}-{sound}", now_s):
                stopped += 1
            else:
                breakers.succeed(f"sound-{number}-{sound}", "t", now_s)
        assert breakers.blame("db", "t", f"poison-{number}", now_s) is None
    assert stopped < 20


def test_an_outage_opens_it_however_often_it_was_said_in_vain() -> None:
    breakers, now_s = Breakers(), 0.0
    for number in range(10):
        breakers.blame("db", "t", f"poison-{number}", now_s)
        now_s += 1.5
        breakers.delay_s("t", f"sound-{number}", now_s)
        breakers.succeed(f"sound-{number}", "t", now_s)
    assert not breakers.open
    for number in range(64):
        assert breakers.blame("db", "t", f"m{number}", now_s) is not None
    assert set(breakers.open) == {"db"}


def test_a_dependency_may_be_down_again_later() -> None:
    breakers = Breakers()
    breakers.blame("db", "t", "a", 0.0)
    breakers.delay_s("t", "a", 1.0)
    breakers.succeed("a")
    assert breakers.blame("db", "t", "a", 2.0) == 1.0


def test_a_revoked_probe_makes_room_for_another() -> None:
    breakers = Breakers()
    breakers.blame("db", "t", "a", 0.0)
    breakers.delay_s("t", "b", 1.0)
    breakers.release("b", 1.5)
    assert breakers.delay_s("t", "c", 1.5) == 0


MESSAGES = st.sampled_from([f"m{number}" for number in range(6)])
DEPENDENCIES = st.sampled_from(["db", "api"])


class Traffic(RuleBasedStateMachine):
    """Messages of one type run, blame, succeed and go away in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.breakers = Breakers()
        self.now_s = 0.0
        self.running: set[str] = set()

    @rule(seconds=st.floats(0, 40))
    def time_passes(self, seconds: float) -> None:
        self.now_s += seconds

    @rule(message=MESSAGES)
    def starts(self, message: str) -> None:
        if message not in self.running:
            probing = len(self.running) if self.breakers.open else None
            delay_s = self.breakers.delay_s("t", message, self.now_s)
            assert 0 <= delay_s <= 30
            if delay_s == 0:
                self.running.add(message)
                if probing is not None:
                    assert all(breaker.probing == message for breaker in self.breakers._open.values())

    @rule(message=MESSAGES, dependency=DEPENDENCIES)
    def blames(self, message: str, dependency: str) -> None:
        if message in self.running:
            self.running.remove(message)
            delay_s = self.breakers.blame(dependency, "t", message, self.now_s)
            assert delay_s is None or 0 <= delay_s <= 30

    @rule(message=MESSAGES)
    def succeeds(self, message: str) -> None:
        if message in self.running:
            self.running.remove(message)
            self.breakers.succeed(message)

    @rule(message=MESSAGES)
    def goes_away(self, message: str) -> None:
        if message in self.running:
            self.running.remove(message)
            self.breakers.release(message, self.now_s)

    @invariant()
    def a_probe_is_running(self) -> None:
        assert all(
            breaker.probing is None or breaker.probing in self.running for breaker in self.breakers._open.values()
        )

    @invariant()
    def somebody_may_always_try_again_in_time(self) -> None:
        for breaker in self.breakers._open.values():
            assert breaker.probing is not None or breaker.next_probe_s <= self.now_s + 30


Traffic.TestCase.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
TestTraffic = pytest.mark.medium(Traffic.TestCase)


def test_unused_breakers_are_forgotten() -> None:
    breakers = Breakers()
    breakers.blame("db", "t", "a", 0.0)
    breakers.blame("mail", "u", "b", 0.0)
    assert breakers.delay_s("u", "c", 0.5) > 0
    assert breakers.forget(FORGOTTEN_S) == ["db"]
    assert (set(breakers.open), breakers.waiting_types) == ({"mail"}, {"u"})
    assert breakers.blame("db", "t", "a", FORGOTTEN_S) == 1.0


def test_what_is_being_probed_is_not_let_go_of() -> None:
    breakers = Breakers()
    breakers.blame("db", "t", "a", 0.0)
    assert breakers.delay_s("t", "a", 1.0) == 0
    assert breakers.forget(2 * FORGOTTEN_S) == []
    breakers.release("a", 2 * FORGOTTEN_S)
    assert breakers.forget(2 * FORGOTTEN_S) == ["db"]
