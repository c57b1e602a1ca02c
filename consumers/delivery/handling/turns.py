"""Turns: how a delivery comes to its run: at once, after the inbox's answer, or alone in its process.

Owns that order, what is looked at last before a run, and the choice of its runner.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Final

from bus.clock import Clock
from consumers.delivery.crashes.crash_guard import CrashGuard
from consumers.delivery.handling.claims import ActiveClaim, ClaimRequest
from consumers.delivery.handling.exclusive import ExclusiveGate
from consumers.delivery.handling.inbox_turns import InboxTurns
from consumers.delivery.handling.results import RunResults
from consumers.delivery.handling.run_policies import EXPIRED_S
from consumers.delivery.handling.runner import Runner
from consumers.delivery.handling.slots import HandlerSlot
from consumers.delivery.settling.outcome import AWAIT_INBOX, DROPPED, Dead, Outcome, RetryInLane
from consumers.delivery.state.delivery import Accepted, Delivery
from consumers.delivery.state.lanes import Lane

__all__ = ["Turns"]

_AGAIN_S: Final = 0.5
_ALONE_S: Final = 60.0
"""So long a run has the process for itself, where none of its steps is stored meanwhile."""


class Turns:
    """Lets deliveries run. The first of *runners* that takes one runs it, and the last takes all.

    *inbox* is None where the worker has none.
    """

    def __init__(
        self,
        runners: Sequence[Runner],
        *,
        inbox: InboxTurns | None,
        results: RunResults,
        exclusive: ExclusiveGate,
        guard: CrashGuard,
        clock: Clock,
    ) -> None:
        *self._special, self._usual = runners
        self._inbox = inbox
        self._results = results
        self._exclusive = exclusive
        self._guard = guard
        self._clock = clock

    def take(self, lane: Lane[Delivery], delivery: Accepted, slot: HandlerSlot) -> Awaitable[Outcome]:
        """Return the run of *delivery*, to be awaited at once.

        AWAIT_INBOX where the inbox is asked first, and the lane comes back with its answer.
        """
        if self._inbox is None and not self._exclusive.closed and not self._guard.crash_counts:
            # Nothing to wait for: most messages go this way, without a coroutine in between.
            return self._run(lane, delivery, slot, None)
        return self._wait_and_run(lane, delivery, slot)

    async def _wait_and_run(self, lane: Lane[Delivery], delivery: Accepted, slot: HandlerSlot) -> Outcome:
        inbox, claim = self._inbox, None
        if inbox is not None and delivery.inbox_request is not None:
            answer = await inbox.answer(delivery, delivery.inbox_request, slot)
            if isinstance(answer, ClaimRequest):
                return await self._take_alone(lane, delivery, slot, partial(inbox.claim_alone, answer, delivery, slot))
            if not isinstance(answer, ActiveClaim):
                return answer
            claim = answer
        elif inbox is not None and inbox.ask(lane, delivery):
            return AWAIT_INBOX
        elif self._guard.crash_counts and self._guard.is_suspect(delivery):
            return await self._take_alone(lane, delivery, slot, None)
        slot.queue = "beside"
        await self._exclusive.enter(alone=False)
        slot.queue, slot.inside, slot.seen_s = "", True, self._clock.monotonic_s()
        try:
            return await self._run(lane, delivery, slot, claim)
        finally:
            slot.inside = False
            self._exclusive.leave(alone=False)

    async def concluded(self, delivery: Delivery, dead: Dead, slot: HandlerSlot) -> Outcome:
        """Return *dead*, the verdict about a message that does not run, stored where the inbox keeps its row."""
        return dead if self._inbox is None else await self._inbox.concluded(delivery, dead, slot)

    async def _take_alone(
        self,
        lane: Lane[Delivery],
        delivery: Accepted,
        slot: HandlerSlot,
        claim_alone: Callable[[], Awaitable[ActiveClaim | Outcome]] | None,
    ) -> Outcome:
        """Run *delivery* while no other handler runs in this process, after its claim where the inbox keeps it."""
        slot.queue = "alone"
        await self._exclusive.enter(alone=True)
        slot.queue, slot.alone, slot.inside = "", True, True
        try:
            claim = None if claim_alone is None else await claim_alone()
            if claim is not None and not isinstance(claim, ActiveClaim):
                return claim
            slot.seen_s = self._clock.monotonic_s()
            patience = self._clock.call_later(_ALONE_S, slot.share)
            try:
                return await self._run(lane, delivery, slot, claim)
            finally:
                patience.cancel()
        finally:
            # It is not alone any more where it has waited for others.
            alone, slot.alone, slot.inside = slot.alone, False, False
            self._exclusive.leave(alone=alone)

    def _run(
        self, lane: Lane[Delivery], delivery: Accepted, slot: HandlerSlot, claim: ActiveClaim | None
    ) -> Awaitable[Outcome]:
        """Return the run of *delivery*, to be awaited at once. No coroutine of its own: every message goes this way."""
        partition = delivery.partition
        # The partition may be another worker's, which handles the next of the key. Or the message has expired while it
        # waited for the store or its turn.
        if (delivery.subscription.order == "key_strict" and partition.in_doubt()) or (
            delivery.ends_s - slot.seen_s + EXPIRED_S <= 0
        ):
            return self._results.released(claim, RetryInLane(_AGAIN_S))
        if partition.draining or partition.closed:
            # The partition goes away: the message had to wait for its turn.
            return self._results.released(claim, DROPPED)
        for runner in self._special:
            if runner.takes(delivery):
                return runner.run(lane, delivery, slot, claim)
        return self._usual.run(lane, delivery, slot, claim)
