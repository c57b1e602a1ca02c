"""Policies around a run: each may have a message wait or die instead of running, and learns what the run came to.

One small class per policy, three hooks, one visible list (`consumers.worker.wiring`). The first policy that answers
decides. `idle` keeps the usual message cheap: a policy with nothing to say is not asked.
"""

from __future__ import annotations

from typing import Protocol

from bus.clock import Clock
from bus.errors import ContractError, DependencyDown
from bus.gates import EXPIRY_TOLERANCE_MS
from consumers.crashes.crash_guard import CrashGuard
from consumers.receiving.verification import RecordVerifier
from consumers.resilience.circuit_breaker import CircuitBreakers
from consumers.resilience.failure_brake import FailureBrake
from consumers.settling.dispositions import Dispositions, refused, wait_outside
from consumers.settling.outcome import Dead, Done, Outcome
from consumers.state.delivery import Accepted, Delivery

__all__ = ["EXPIRED_S", "BrakePolicy", "BreakerPolicy", "CrashPolicy", "LifetimePolicy", "RunPolicy"]

EXPIRED_S = EXPIRY_TOLERANCE_MS / 1000
"""So long after the end of its life a message is expired for certain."""
_FRESH_S, _MOMENT_S = 0.5, 0.01


class RunPolicy(Protocol):
    """One reason not to run a message now."""

    @property
    def idle(self) -> bool:
        """Whether there is nothing to ask it."""

    def before_run(self, delivery: Accepted, now_s: float) -> Outcome | None:
        """What becomes of *delivery* instead of a run; None lets it run."""

    def after_failure(self, delivery: Accepted, error: Exception) -> Outcome | None:
        """What becomes of *delivery*, whose handler raised *error*; None leaves that to the retry policy."""

    def after_run(self, delivery: Delivery, outcome: Outcome) -> None:
        """Learn what was decided about *delivery*."""


class CrashPolicy:
    """A message that ended its process too often, or that an operator has set aside, dies instead of running."""

    def __init__(self, guard: CrashGuard) -> None:
        self._guard = guard

    @property
    def idle(self) -> bool:
        """As long as no process has died and nothing is set aside."""
        return not (self._guard.tolls or self._guard.orders)

    def before_run(self, delivery: Accepted, now_s: float) -> Outcome | None:  # noqa: ARG002 - the hook's form
        """Bury what must not run again."""
        failure = self._guard.end_of(delivery)
        return None if failure is None else Dead(failure)

    def after_failure(self, delivery: Accepted, error: Exception) -> Outcome | None:
        """Says nothing."""

    def after_run(self, delivery: Delivery, outcome: Outcome) -> None:
        """Learns nothing: the guard is told by the slot."""


class LifetimePolicy:
    """A message that passed the lifetime gate when it was taken may have waited since."""

    idle = False

    def __init__(self, intake: RecordVerifier, clock: Clock) -> None:
        self._intake = intake
        self._clock = clock

    def before_run(self, delivery: Accepted, now_s: float) -> Outcome | None:
        """Ask the gate again where the message has waited."""
        if now_s - delivery.taken_s <= _FRESH_S:
            return None
        try:
            self._intake.check_lifetime(delivery, self._clock.now_ms())
        except ContractError as error:
            return refused(error)
        delivery.ends_s = now_s + self._intake.remaining_s(delivery)
        return None

    def after_failure(self, delivery: Accepted, error: Exception) -> Outcome | None:
        """Says nothing."""

    def after_run(self, delivery: Delivery, outcome: Outcome) -> None:
        """Learns nothing."""


class BrakePolicy:
    """Messages of a type of which too many die wait for a while."""

    def __init__(self, brake: FailureBrake) -> None:
        self._brake = brake
        self.idle = not brake.enabled

    def before_run(self, delivery: Accepted, now_s: float) -> Outcome | None:
        """Wait as long as the brake is on."""
        wait_s = self._brake.delay_s(delivery.label)
        return wait_outside(delivery, _within_life(delivery, wait_s, now_s)) if wait_s else None

    def after_failure(self, delivery: Accepted, error: Exception) -> Outcome | None:
        """Says nothing."""

    def after_run(self, delivery: Delivery, outcome: Outcome) -> None:
        """Count what went through and what died."""
        if isinstance(outcome, Done) and outcome.ran:
            self._brake.done(delivery.label)
        elif isinstance(outcome, Dead):
            self._brake.dead(delivery.label, outcome.failure.reason)


class BreakerPolicy:
    """Messages wait for a dependency that is down, while one of them tries whether it is up again.

    The last policy of the list: a message that it lets through may be the one that tries, and must not wait then.
    """

    def __init__(self, dependencies: CircuitBreakers, dispositions: Dispositions) -> None:
        self._dependencies = dependencies
        self._dispositions = dispositions

    @property
    def idle(self) -> bool:
        """As long as nothing is down."""
        return not self._dependencies.any_down

    def before_run(self, delivery: Accepted, now_s: float) -> Outcome | None:
        """Wait, unless this message is the probe."""
        message = delivery.message
        wait_s = self._dependencies.delay_s(message.message_type, message.message_id)
        return wait_outside(delivery, _within_life(delivery, wait_s, now_s)) if wait_s else None

    def after_failure(self, delivery: Accepted, error: Exception) -> Outcome | None:
        """Wait for what the handler says is down, unless the failure counts as the message's own."""
        message = delivery.message
        if not isinstance(error, DependencyDown):
            self._dependencies.release(message)
            return None
        wait_s = self._dependencies.blame(error, message.message_type, message.message_id)
        return None if wait_s is None else self._dispositions.wait_after_run(delivery, wait_s)

    def after_run(self, delivery: Delivery, outcome: Outcome) -> None:
        """A run that went through is a probe that succeeded; any other end says nothing."""
        if isinstance(outcome, Done) and outcome.ran and delivery.message is not None:
            self._dependencies.succeeded(delivery.message)
        self._dependencies.release(delivery.message)


def _within_life(delivery: Accepted, wait_s: float, now_s: float) -> float:
    """*wait_s*, but no longer than until *delivery* has expired for certain."""
    return min(wait_s, delivery.ends_s - now_s + EXPIRED_S + _MOMENT_S)
