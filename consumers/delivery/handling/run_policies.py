"""Run policies: each may make a message wait or die instead of running, and learns the outcome of a run.

One small class per policy, three hooks, one visible list (`consumers.worker.wiring`). The first policy that answers
decides. The usual message is cheap: while all policies are idle, none is asked.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar, Final

from bus.clock import Clock
from bus.errors import ContractError, DependencyDown
from bus.gates import EXPIRY_TOLERANCE_MS
from bus.telemetry.logs import get_logger
from bus.trust.keys.key_pairing import KeyFault
from consumers.delivery.crashes.crash_guard import CrashGuard
from consumers.delivery.receiving.verification import RecordVerifier
from consumers.delivery.resilience.circuit_breaker import CircuitBreakers
from consumers.delivery.resilience.failure_brake import FailureBrake
from consumers.delivery.settling.dispositions import Dispositions, refused, wait_outside
from consumers.delivery.settling.outcome import Dead, Done, Outcome, Skipped
from consumers.delivery.state.delivery import Accepted, Delivery

__all__ = [
    "EXPIRED_S",
    "FRESH_S",
    "BrakePolicy",
    "BreakerPolicy",
    "CrashPolicy",
    "KeyPolicy",
    "LifetimePolicy",
    "RunPolicies",
    "RunPolicy",
]

EXPIRED_S = EXPIRY_TOLERANCE_MS / 1000
"""Seconds after the end of its lifetime after which a message has certainly expired."""
FRESH_S: Final = 0.5
"""Seconds after which the lifetime of a message that has waited is judged again."""
_MOMENT_S = 0.01
_KEY_WAIT_S = 5.0

_log = get_logger("handling")


class RunPolicy:
    """One reason not to run a message now. A hook that a policy does not define is never called."""

    reports_changes: ClassVar[bool] = False
    """Whether what makes it idle or not calls `RunPolicies.refresh`; else it is asked about every message."""
    asks_fresh: ClassVar[bool] = True
    """Whether it has anything to ask of a message that was taken at most FRESH_S ago."""

    @property
    def idle(self) -> bool:
        """Whether there is nothing to ask before a run."""
        return False

    def before_run(self, delivery: Accepted, now_s: float) -> Outcome | None:
        """Decide the outcome of *delivery* instead of a run; None lets it run."""

    def after_failure(self, delivery: Accepted, error: Exception) -> Outcome | None:
        """Decide about *delivery*, whose handler raised *error*; None leaves that to the retry policy."""

    def after_run(self, delivery: Delivery, outcome: Outcome) -> None:
        """Learn the *outcome* of *delivery*."""


class RunPolicies:
    """The policies of one worker, in the order in which they are asked. Per hook, only those that define it."""

    def __init__(self, policies: Sequence[RunPolicy]) -> None:
        self._all = policies
        self.are_idle = False
        """No policy has anything to ask of a message that was taken at most FRESH_S ago, nor to learn from its end."""
        self.refresh()
        self._before = [policy for policy in policies if type(policy).before_run is not RunPolicy.before_run]
        self._failure = [policy for policy in policies if type(policy).after_failure is not RunPolicy.after_failure]
        self._after = [policy for policy in policies if type(policy).after_run is not RunPolicy.after_run]

    def refresh(self) -> None:
        """Look anew whether all are idle."""
        self.are_idle = all(not policy.asks_fresh or (policy.reports_changes and policy.idle) for policy in self._all)

    def outcome_before(self, delivery: Accepted, now_s: float) -> Outcome | None:
        """Return the outcome of *delivery* instead of a run; None lets it run."""
        for policy in self._before:
            if not policy.idle and (outcome := policy.before_run(delivery, now_s)) is not None:
                return outcome
        return None

    def outcome_after_failure(self, delivery: Accepted, error: Exception) -> Outcome | None:
        """Return the outcome of *delivery*, whose handler raised *error*; None if no policy decides that."""
        for policy in self._failure:
            if (outcome := policy.after_failure(delivery, error)) is not None:
                return outcome
        return None

    def notify(self, delivery: Delivery, outcome: Outcome) -> None:
        """Tell the policies the *outcome* of *delivery*."""
        for policy in self._after:
            policy.after_run(delivery, outcome)


class CrashPolicy(RunPolicy):
    """A message that crashed its process too often, or that an operator has set aside, dies instead of running."""

    reports_changes = True

    def __init__(self, guard: CrashGuard) -> None:
        self._guard = guard

    @property
    def idle(self) -> bool:
        """True while no process has died and nothing is set aside."""
        return not (self._guard.crash_counts or self._guard.orders)

    def before_run(self, delivery: Accepted, now_s: float) -> Outcome | None:  # noqa: ARG002 - the hook's form
        """Bury a message that must not run again."""
        failure = self._guard.end_of(delivery)
        return None if failure is None else Dead(failure)


class KeyPolicy(RunPolicy):
    """Messages wait while the worker's own key must not sign: what came of them could not be sent.

    Nothing runs, so nothing is done twice. A key that is put in its place counts within a second.
    """

    def __init__(self, fault: Callable[[], KeyFault | None]) -> None:
        self._fault = fault
        self._logged: KeyFault | None = None

    @property
    def idle(self) -> bool:
        """True while the key may sign."""
        found = self._fault()
        if found != self._logged:
            self._logged = found
            if found is not None:
                _log.error("trust.key_refused", reason=found.reason, detail=f"{found.text}; messages wait until then")
        return found is None

    def before_run(self, delivery: Accepted, now_s: float) -> Outcome | None:
        """Wait for a key that may sign."""
        return wait_outside(delivery, _within_life(delivery, _KEY_WAIT_S, now_s))


class LifetimePolicy(RunPolicy):
    """A message may have expired while it waited after the lifetime gate."""

    asks_fresh = False

    def __init__(self, verification: RecordVerifier, clock: Clock) -> None:
        self._verification = verification
        self._clock = clock

    def before_run(self, delivery: Accepted, now_s: float) -> Outcome | None:
        """Run the lifetime gate again where the message has waited."""
        if now_s - delivery.taken_s <= FRESH_S:
            return None
        try:
            self._verification.check_lifetime(delivery, self._clock.now_ms())
        except ContractError as error:
            return refused(error)
        delivery.ends_s = now_s + self._verification.remaining_s(delivery)
        return None


class BrakePolicy(RunPolicy):
    """Messages of a type wait while the failure brake is on."""

    def __init__(self, brake: FailureBrake) -> None:
        self._brake = brake

    def before_run(self, delivery: Accepted, now_s: float) -> Outcome | None:
        """Wait for the rest of the brake's pause."""
        wait_s = self._brake.delay_s(delivery.label)
        return wait_outside(delivery, _within_life(delivery, wait_s, now_s)) if wait_s else None

    def after_run(self, delivery: Delivery, outcome: Outcome) -> None:
        """Count successes and deaths."""
        if isinstance(outcome, Done) and outcome.ran:
            self._brake.done(delivery.label)
        elif isinstance(outcome, Dead) and not isinstance(outcome, Skipped):
            self._brake.dead(delivery.label, outcome.failure.reason)


class BreakerPolicy(RunPolicy):
    """Messages wait for a dependency that is down, while one of them probes it.

    The last policy of the list: the message that it lets through may be the probe, and must not wait then.
    """

    reports_changes = True

    def __init__(self, dependencies: CircuitBreakers, dispositions: Dispositions) -> None:
        self._dependencies = dependencies
        self._dispositions = dispositions

    @property
    def idle(self) -> bool:
        """True while no dependency is down or doubted."""
        return not self._dependencies.any_down

    def before_run(self, delivery: Accepted, now_s: float) -> Outcome | None:
        """Wait, unless this message is the probe."""
        message = delivery.message
        wait_s = self._dependencies.delay_s(message.message_type, message.message_id)
        return wait_outside(delivery, _within_life(delivery, wait_s, now_s)) if wait_s else None

    def after_failure(self, delivery: Accepted, error: Exception) -> Outcome | None:
        """Wait for the dependency that the handler blames, unless the failure counts as the message's own."""
        message = delivery.message
        if not isinstance(error, DependencyDown):
            self._dependencies.release(message)
            return None
        wait_s = self._dependencies.blame(error, message.message_type, message.message_id)
        return None if wait_s is None else self._dispositions.wait_after_run(delivery, wait_s)

    def after_run(self, delivery: Delivery, outcome: Outcome) -> None:
        """Count a success as a successful probe; other outcomes are no evidence about a dependency."""
        if self._dependencies.any_down and delivery.message is not None:
            if isinstance(outcome, Done) and outcome.ran:
                self._dependencies.succeeded(delivery.message)
            self._dependencies.release(delivery.message)


def _within_life(delivery: Accepted, wait_s: float, now_s: float) -> float:
    """Limit *wait_s* to the time at which *delivery* has certainly expired."""
    return min(wait_s, delivery.ends_s - now_s + EXPIRED_S + _MOMENT_S)
