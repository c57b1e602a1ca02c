"""What becomes of a message whose handler failed: waits, tiers, limits."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from bus.errors import DependencyDown, Reject, RetryLater
from bus.protocol.envelope import RetryPolicy
from consumers.delivery.resilience.retry import (
    Die,
    Retry,
    Tier,
    WaitInLane,
    WaitInTier,
    choose_tier,
    decide_retry,
    tier_within,
)

TIERS = (Tier("5s", 5.0), Tier("30s", 30.0), Tier("5m", 300.0))
POLICIES = st.builds(
    lambda attempts, backoff, base_s, more_s: Retry(
        attempts=attempts, backoff=backoff, base_s=base_s, cap_s=base_s + more_s
    ),
    st.integers(1, 100),
    st.sampled_from(["constant", "linear", "exponential"]),
    st.floats(0, 1_000),
    st.floats(0, 10_000),
)
ERRORS = st.sampled_from(
    [
        ValueError("x"),
        RetryLater(),
        RetryLater(after_s=0.0),
        RetryLater(after_s=7.5),
        RetryLater(after_s=1e9),
        TimeoutError(),
        DependencyDown("db"),
    ]
)


def decided(error: BaseException | None = None, **changes: Any) -> Any:
    facts: dict[str, Any] = {
        "attempt": 1,
        "policy": Retry(attempts=3, base_s=1.0, cap_s=300.0),
        "tiers": TIERS,
        "remaining_s": 3_600.0,
        "randomness": 0.0,
    }
    return decide_retry(error or ValueError("x"), **facts | changes)


@given(ERRORS, POLICIES, st.integers(1, 120), st.floats(0, 1e6), st.floats(0, 1, exclude_max=True))
def test_retry_waits_respect_the_delay_the_lifetime_and_the_attempts(
    error: Exception, policy: Retry, attempt: int, remaining_s: float, randomness: float
) -> None:
    decision = decided(error, policy=policy, attempt=attempt, remaining_s=remaining_s, randomness=randomness)
    if isinstance(decision, Die):
        assert decision.reason == "retries_exhausted"
        return
    assert attempt < policy.attempts
    assert decision.attempt == attempt
    assert 0 <= decision.delay_s < remaining_s
    asked_s = getattr(error, "after_s", None) or 0.0
    assert decision.delay_s >= asked_s
    assert decision.delay_s <= max(policy.cap_s, asked_s, 30.0 if isinstance(error, DependencyDown) else 0.0)
    if isinstance(decision, WaitInTier):
        assert decision.delay_s >= 2.0
        assert decision.tier.delay_s < remaining_s
    else:
        assert decision.delay_s < 2.0


@given(st.lists(st.floats(0.001, 1e6), min_size=1, max_size=6, unique=True), st.floats(0, 1e7))
def test_the_tier_is_the_smallest_that_is_not_shorter_else_the_largest(delays: list[float], delay_s: float) -> None:
    tiers = [Tier(str(delay), delay) for delay in delays]
    chosen = choose_tier(tiers, delay_s).delay_s
    longer = [delay for delay in delays if delay >= delay_s]
    assert chosen == (min(longer) if longer else max(delays))


@given(st.lists(st.floats(0.001, 1e6), min_size=1, max_size=6, unique=True), st.floats(0, 1e7))
def test_a_known_wait_ends_in_its_tier_before_its_time_where_one_is_so_short(
    delays: list[float], wait_s: float
) -> None:
    chosen = tier_within([Tier(str(delay), delay) for delay in delays], wait_s).delay_s
    assert chosen == max([delay for delay in delays if delay <= wait_s], default=min(delays))


@pytest.mark.parametrize(
    ("backoff", "waits"),
    [("constant", [1.0, 1.0, 1.0, 1.0]), ("linear", [1.0, 2.0, 3.0, 4.0]), ("exponential", [1.0, 2.0, 4.0, 5.0])],
)
def test_the_schedule_of_waits(backoff: Any, waits: list[float]) -> None:
    policy = Retry(attempts=9, backoff=backoff, base_s=1.0, cap_s=5.0)
    assert [decided(attempt=attempt, policy=policy).delay_s for attempt in (1, 2, 3, 4)] == waits


def test_the_five_thousandth_attempt_waits_as_long_as_any() -> None:
    assert decided(attempt=5_000, policy=Retry(attempts=10_000)).delay_s == 300.0


@pytest.mark.parametrize(("randomness", "delay_s"), [(0.0, 1.0), (0.25, 0.95), (0.5, 0.9)])
def test_jitter_takes_away_its_part_of_a_fifth(randomness: float, delay_s: float) -> None:
    assert decided(randomness=randomness).delay_s == delay_s


@pytest.mark.medium
@given(POLICIES, st.integers(1, 99), st.floats(0, 1, exclude_max=True))
def test_jitter_takes_away_at_most_a_fifth(policy: Retry, attempt: int, randomness: float) -> None:
    assume(attempt < policy.attempts)
    full = decided(policy=policy, attempt=attempt, remaining_s=1e9)
    jittered = decided(policy=policy, attempt=attempt, remaining_s=1e9, randomness=randomness)
    assert full.delay_s * 0.8 <= jittered.delay_s + 1e-9
    assert jittered.delay_s <= full.delay_s


@pytest.mark.parametrize(
    ("delay_s", "place"),
    [(0.0, "lane"), (1.999, "lane"), (2.0, "5s"), (5.0, "5s"), (5.001, "30s"), (300.0, "5m"), (301.0, "5m")],
)
def test_short_waits_stay_in_the_lane(delay_s: float, place: str) -> None:
    decision = decided(policy=Retry(attempts=3, backoff="constant", base_s=delay_s, cap_s=delay_s))
    assert (decision.tier.name if isinstance(decision, WaitInTier) else "lane") == place


def test_without_tiers_everything_waits_in_the_lane() -> None:
    assert isinstance(decided(RetryLater(after_s=60), tiers=()), WaitInLane)


def test_attempts_that_blame_a_dependency_last_longer_than_half_a_minute() -> None:
    policy = Retry(attempts=6, backoff="constant", base_s=0.05)
    waits = [decided(DependencyDown("db"), policy=policy, attempt=attempt).delay_s for attempt in range(1, 6)]
    assert waits == [1.0, 2.0, 4.0, 8.0, 16.0]


def test_a_wait_for_a_dependency_ends_no_message_that_its_policy_lets_live() -> None:
    policy = Retry(attempts=6, backoff="constant", base_s=0.05)
    assert decided(DependencyDown("db"), policy=policy, attempt=5, remaining_s=14.0) == WaitInLane(0.05, 5)


def test_the_last_attempt_is_the_last() -> None:
    assert decided(attempt=3) == Die("retries_exhausted", "gave up after 3 attempts")
    assert isinstance(decided(attempt=2), WaitInTier)


def test_a_rejection_is_final_at_once() -> None:
    assert decided(Reject("never")) == Die("rejected", "never")


def test_a_wait_that_would_outlive_the_message_is_its_end() -> None:
    assert decided(RetryLater(after_s=10), remaining_s=10.0).reason == "retries_exhausted"


def test_a_wait_in_the_lane_that_ends_with_the_message_is_its_end() -> None:
    assert isinstance(decided(remaining_s=1.1), WaitInLane)
    assert decided(remaining_s=1.0) == Die("retries_exhausted", "the next attempt in 1.0 s would outlive the message")


def test_a_tier_that_would_outlive_the_message_is_its_end_too() -> None:
    late = "the next attempt in 30.0 s (tier 30s) would outlive the message"
    assert decided(RetryLater(after_s=6), remaining_s=30.0) == Die("retries_exhausted", late)
    assert decided(RetryLater(after_s=6), remaining_s=30.1).tier.name == "30s"


def test_a_wait_longer_than_the_largest_tier_goes_round_it_whole() -> None:
    assert decided(RetryLater(after_s=301), remaining_s=600.0).reason == "retries_exhausted"
    assert decided(RetryLater(after_s=301), remaining_s=600.1).tier.name == "5m"


ASKED = st.builds(
    lambda backoff, base, more, attempts: RetryPolicy(
        backoff=backoff, base_ms=base, cap_ms=base + more, max_attempts=attempts
    ),
    st.sampled_from(["constant", "linear", "exponential"]),
    st.integers(0, 2**52),
    st.integers(0, 2**52),
    st.integers(1, 100),
)


@given(ASKED, POLICIES, st.integers(1, 120), st.floats(0, 1, exclude_max=True))
def test_a_message_may_ask_for_less_never_for_more(
    asked: RetryPolicy, policy: Retry, attempt: int, randomness: float
) -> None:
    facts = {"attempt": attempt, "remaining_s": 1e12, "randomness": randomness}
    usual, told = decided(policy=policy, **facts), decided(policy=policy, requested=asked, **facts)
    if isinstance(usual, Die):
        assert told == usual
    else:
        assert isinstance(told, Die) == (attempt >= asked.max_attempts)
        assert isinstance(told, Die) or told.delay_s <= usual.delay_s


def test_a_message_that_asks_for_a_shorter_wait_gets_it() -> None:
    asked = RetryPolicy(backoff="linear", base_ms=50, cap_ms=60, max_attempts=3)
    assert decided(requested=asked) == WaitInLane(0.05, 1)
    assert decided(requested=asked, attempt=2) == WaitInLane(0.06, 2)


def test_the_default_retry_is_five_attempts_from_200_ms_to_five_minutes() -> None:
    assert Retry() == Retry(attempts=5, backoff="exponential", base_s=0.2, cap_s=300.0)


@pytest.mark.parametrize(
    "wrong", [{"attempts": 0}, {"base_s": -1.0}, {"cap_s": 1.0, "base_s": 2.0}, {"backoff": "random"}]
)
def test_a_policy_that_makes_no_sense_is_refused_by_name(wrong: dict[str, Any]) -> None:
    name, value = next(iter(wrong.items()))
    with pytest.raises(ValueError, match=rf"^Retry needs {name} to be .*; found \w+ {value!r}$"):
        Retry(**wrong)


def test_where_too_many_wait_in_lanes_a_short_wait_is_spent_in_a_tier() -> None:
    made = decide_retry(
        RetryLater(after_s=1.5),
        attempt=1,
        policy=Retry(),
        tiers=[Tier("5s", 5.0), Tier("30s", 30.0)],
        remaining_s=600,
        randomness=0.0,
        lane_limit_s=0.0,
    )
    assert isinstance(made, WaitInTier)
    assert made.tier.name == "5s"
