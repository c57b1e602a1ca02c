"""Runners: the interfaces between a delivery and its handler, for approvals and for steps of processes.

Owns the interfaces of a run, and the values that cross them. `consumers.processes.sagas` and
`consumers.processes.approvals` implement `Steps` and `Approvals`; `consumers.worker.wiring` sets the order of the
runners. The executor depends on neither sagas nor approvals.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, Final, Protocol, TypeVar, runtime_checkable

import msgspec

from bus.errors import ConfigurationError
from bus.transports.base import NewRecord
from consumers.delivery.approval_given import ApprovalGiven
from consumers.delivery.handling.claims import ActiveClaim
from consumers.delivery.handling.slots import HandlerSlot
from consumers.delivery.inbox.base import Transaction, Write, Written
from consumers.delivery.inbox.remembered_steps import StepDesk
from consumers.delivery.settling.outcome import Outcome
from consumers.delivery.state.delivery import Accepted, Delivery
from consumers.delivery.state.lanes import Lane

__all__ = [
    "CALL_S",
    "Approvals",
    "BeginTransaction",
    "CallMethod",
    "HeldSteps",
    "RunPermit",
    "Runner",
    "StepTaken",
    "Steps",
    "begun_again",
    "needed_claim",
]

CALL_S: Final = 5.0
"""Seconds that a method of a saga may take."""

NeedT = TypeVar("NeedT")
BeginTransaction = Callable[[], Awaitable[Transaction]]
"""Opens the transaction that ends the inbox row of the message."""


class Runner(Protocol):
    """One way to run a delivery whose turn has come. The first runner of the worker's list that takes it runs it."""

    def takes(self, delivery: Accepted) -> bool:
        """Tell whether *delivery* is run in this way."""

    async def run(
        self, lane: Lane[Delivery], delivery: Accepted, slot: HandlerSlot, claim: ActiveClaim | None
    ) -> Outcome:
        """Run *delivery*, the head of *lane*, in *slot*, and return its outcome; *claim* is the inbox's, if any."""


@runtime_checkable
class RunPermit(Protocol):
    """An approval by which one message may run; it is consumed in the transaction of the result."""

    @property
    def agreed(self) -> ApprovalGiven:
        """The approvers."""

    async def consume(self, transaction: Transaction) -> bool:
        """Use the approval up in *transaction*; False where it has changed meanwhile."""

    def closed(self) -> Sequence[NewRecord]:
        """Return the messages to send once it is used up."""


class Approvals(Protocol[NeedT]):
    """Decides which messages need an approval, and keeps them until they have one."""

    def need_of(self, delivery: Accepted) -> NeedT | None:
        """Return the approval that *delivery* needs before it may run; None if it needs none."""

    async def judge(self, delivery: Accepted, need: NeedT, key: str, begin: BeginTransaction) -> RunPermit | Outcome:
        """Return the permit to run *delivery*, remembered under *key*, or its outcome without a run."""


class HeldSteps(StepDesk, Protocol):
    """The desk of one run, which ends by it."""

    granted: list[RunPermit]
    """Approvals that are used up with the result of the run."""

    async def hold(self, begin: BeginTransaction) -> Outcome:
        """Store the message until it is decided, or return why it does not wait for that."""


class CallMethod(Protocol):
    """Runs a method of the user's within its deadline."""

    def __call__(self, method: Callable[..., Awaitable[Any]], arguments: tuple[Any, ...], /) -> Awaitable[Any]: ...


class StepTaken(msgspec.Struct, frozen=True):
    """A step that counts once its *writes* are stored with the result; then *outputs* are sent."""

    outputs: Sequence[NewRecord]
    writes: Sequence[Write]
    ended: Callable[[Written], object]
    """Is told what became of the writes."""


class Steps(Protocol):
    """Takes the steps of processes."""

    async def take(self, delivery: Accepted, run: CallMethod) -> StepTaken | Outcome:
        """Take the step of *delivery*, or return its outcome without one.

        A step whose process has moved since it was read is taken again.
        """


def needed_claim(claim: ActiveClaim | None) -> ActiveClaim:
    """Return *claim*. Raises ConfigurationError where the worker has no inbox to claim a message in."""
    if claim is None:
        raise ConfigurationError("processes and approvals are stored in the inbox: set `inbox.url`")
    return claim


def begun_again(claim: ActiveClaim, delivery: Accepted) -> BeginTransaction:
    """Return a function that opens a new transaction of *claim*.

    The one before was rolled back, because the process had changed.
    """
    return partial(_begin_again, claim, delivery)


async def _begin_again(claim: ActiveClaim, delivery: Accepted) -> Transaction:
    claim.transaction = None
    return await claim.client.begin(claim, delivery.partition)
