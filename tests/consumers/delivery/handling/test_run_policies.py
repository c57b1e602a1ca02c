"""While every policy is idle no message is asked about; whatever makes one speak is noticed at once."""

from __future__ import annotations

from typing import Any, cast

from bus.clock import ManualClock
from bus.errors import DependencyDown
from bus.telemetry.metrics import Metrics
from consumers.deadletters.park_orders import ParkOrder
from consumers.delivery.crashes.crash_guard import CrashGuard
from consumers.delivery.handling.run_policies import (
    BreakerPolicy,
    CrashPolicy,
    LifetimePolicy,
    RunPolicies,
    RunPolicy,
)
from consumers.delivery.resilience.circuit_breaker import CircuitBreakers

CLOCK = ManualClock()


def test_only_a_policy_that_reports_its_changes_may_be_left_out() -> None:
    assert not RunPolicies([RunPolicy()]).are_idle
    assert RunPolicies([LifetimePolicy(cast("Any", None), CLOCK)]).are_idle


def test_a_park_order_is_noticed_when_it_comes_and_when_it_goes() -> None:
    guard = CrashGuard(None, CLOCK)
    policies = RunPolicies([CrashPolicy(guard)])
    guard.changed = policies.refresh
    assert policies.are_idle
    guard.ordered({("agents.a", 0, 1): cast("ParkOrder", object())})
    assert not policies.are_idle
    guard.ordered({})
    assert policies.are_idle


def test_a_dependency_is_noticed_when_it_fails_and_when_it_is_forgotten() -> None:
    dependencies = CircuitBreakers("group", CLOCK, Metrics(), lambda _: None)
    policies = RunPolicies([BreakerPolicy(dependencies, cast("Any", None))])
    dependencies.changed = policies.refresh
    assert policies.are_idle
    dependencies.blame(DependencyDown("db"), "a", "id-1")
    assert not policies.are_idle
    CLOCK.advance(3_600)
    assert policies.are_idle
