"""Retry: what becomes of a message whose handler failed. A pure decision.

Owns the schedule (constant, linear, exponential with jitter and cap), the choice between the lane and a tier, and
giving up, by the `bus.retry.Retry` of the group and of the message. Time and randomness are arguments. Carrying it out
is in `consumers.delivery.settling.dispositions`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final, TypeAlias

import msgspec

from bus.backoff import Backoff
from bus.errors import BusError, DependencyDown, Reject, RetryLater, text_of
from bus.protocol.envelope import RetryPolicy
from bus.retry import PROGRAM_ERRORS, Retry, asked_by
from consumers.delivery.handler_errors import HandlerGoneError, HandlerTimeoutError, leaves_of

__all__ = [
    "RetryDecision",
    "Die",
    "Retry",
    "Tier",
    "WaitInLane",
    "WaitInTier",
    "choose_tier",
    "decide_retry",
    "next_tier",
    "tier_within",
]

LANE_LIMIT_S = 2.0
_JITTER = 0.2
_RUNS_OF_A_PROGRAM_ERROR: Final = 2
_OUTAGE: Final = Backoff(1.0, 30.0)
"""Waits of a message that blames a dependency with which others got through."""
_ALWAYS: Final = (BusError, HandlerTimeoutError, HandlerGoneError)
"""Errors that `Retry(only=...)` does not cover, because it names a handler's own exceptions."""


class Tier(msgspec.Struct, frozen=True):
    """A retry topic of fixed delay; *name* as in the settings."""

    name: str
    delay_s: float


class WaitInLane(msgspec.Struct, frozen=True):
    """Keep the message and its key here for *delay_s* seconds; *attempt* runs were used."""

    delay_s: float
    attempt: int


class WaitInTier(msgspec.Struct, frozen=True):
    """Append the message to *tier*; it may run in *delay_s* seconds at the earliest; *attempt* runs were used."""

    tier: Tier
    delay_s: float
    attempt: int


class Die(msgspec.Struct, frozen=True):
    """Write a dead letter with *reason*."""

    reason: str
    text: str


RetryDecision: TypeAlias = WaitInLane | WaitInTier | Die


def decide_retry(
    error: BaseException,
    *,
    attempt: int,
    policy: Retry,
    requested: RetryPolicy | None = None,
    tiers: Sequence[Tier],
    remaining_s: float,
    randomness: float,
    lane_limit_s: float = LANE_LIMIT_S,
) -> RetryDecision:
    """Decide what becomes of a message whose run number *attempt* (from 1) failed with *error*.

    *policy* is the group's. The message may have *requested* for fewer runs and shorter waits, never for more or
    longer. *remaining_s* is the rest of its lifetime, *randomness* is in [0, 1). Waits under *lane_limit_s* are spent
    in the lane; 0 where too many wait there already. Waiting for a dependency without an attempt is in
    `consumers.delivery.resilience.circuit_breaker`; a `DependencyDown` here counts as the message's own failure.
    """
    if isinstance(error, Reject):
        return Die(error.dead_reason, text_of(error))
    if (why := _never(error, policy)) is not None:
        return Die("rejected", why)
    policies = (policy,) if requested is None else (policy, asked_by(requested))
    max_attempts = min(each.attempts for each in policies)
    if not policy.only and all(isinstance(leaf, PROGRAM_ERRORS) for leaf in leaves_of(error)):
        max_attempts = min(max_attempts, _RUNS_OF_A_PROGRAM_ERROR)
    if attempt >= max_attempts:
        return Die("retries_exhausted", f"gave up after {attempt} attempts")
    scale = 1 - _JITTER * randomness
    delay_s = min(_delay(each, attempt) for each in policies) * scale
    if isinstance(error, RetryLater) and error.after_s is not None:
        delay_s = max(delay_s, error.after_s)
    if isinstance(error, DependencyDown) and (longer_s := _OUTAGE.delay_s(attempt) * scale) > delay_s:
        # The dependency may be down once more: an outage of seconds must not use up all attempts.
        longer = _wait(longer_s, attempt, tiers=tiers, remaining_s=remaining_s, lane_limit_s=lane_limit_s)
        if not isinstance(longer, Die):
            return longer
    return _wait(delay_s, attempt, tiers=tiers, remaining_s=remaining_s, lane_limit_s=lane_limit_s)


def _wait(
    delay_s: float, attempt: int, *, tiers: Sequence[Tier], remaining_s: float, lane_limit_s: float
) -> RetryDecision:
    """Return where a message waits for *delay_s* seconds, or that it dies because it ends before."""
    if delay_s >= remaining_s:
        return Die("retries_exhausted", f"the next attempt in {delay_s:.1f} s would outlive the message")
    if delay_s < lane_limit_s or not tiers:
        return WaitInLane(delay_s, attempt)
    tier = choose_tier(tiers, delay_s)
    # What counts is when it could run: a record leaves a tier only after the whole delay.
    back_s = math.ceil(delay_s / tier.delay_s) * tier.delay_s
    if back_s >= remaining_s:
        return Die(
            "retries_exhausted", f"the next attempt in {back_s:.1f} s (tier {tier.name}) would outlive the message"
        )
    return WaitInTier(tier, delay_s, attempt)


def _never(error: BaseException, policy: Retry) -> str | None:
    """Return why *policy* does not repeat a run that ended by *error*; None if it does."""
    leaves = list(leaves_of(error))
    for leaf in leaves:
        if isinstance(leaf, policy.never):
            return f"{type(leaf).__name__} is never retried"
    if policy.only and not any(isinstance(leaf, (*policy.only, *_ALWAYS)) for leaf in leaves):
        return f"{type(leaves[0]).__name__} is not among the retried exceptions"
    return None


def choose_tier(tiers: Sequence[Tier], delay_s: float) -> Tier:
    """Return the smallest tier not shorter than *delay_s*; the largest where all are shorter (the message hops)."""
    return min(
        (tier for tier in tiers if tier.delay_s >= delay_s),
        key=lambda tier: tier.delay_s,
        default=max(tiers, key=lambda tier: tier.delay_s),
    )


def tier_within(tiers: Sequence[Tier], wait_s: float) -> Tier:
    """Return the largest tier not longer than *wait_s*; the smallest where all are longer."""
    return max(
        (tier for tier in tiers if tier.delay_s <= wait_s),
        key=lambda tier: tier.delay_s,
        default=min(tiers, key=lambda tier: tier.delay_s),
    )


def next_tier(tiers: Sequence[Tier], last: Tier | None, remaining_s: float) -> Tier | None:
    """Return the tier for a message that waits without an attempt: each time a longer one than the *last*.

    None where it would outlive its message there, which has *remaining_s* seconds left.
    """
    longer = [tier for tier in tiers if last is None or tier.delay_s > last.delay_s]
    chosen = min(longer, key=lambda tier: tier.delay_s, default=last)
    if chosen is None or chosen.delay_s < remaining_s:
        return chosen
    within = [tier for tier in tiers if tier.delay_s < remaining_s]
    return max(within, key=lambda tier: tier.delay_s, default=None)


def _delay(policy: Retry, attempt: int) -> float:
    match policy.backoff:
        case "constant":
            delay_s = policy.base_s
        case "linear":
            delay_s = policy.base_s * attempt
        case _:
            delay_s = Backoff(policy.base_s, policy.cap_s).delay_s(attempt)
    return min(delay_s, policy.cap_s)
