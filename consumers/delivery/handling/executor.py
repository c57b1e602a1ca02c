"""Executor: drives a lane's deliveries to their outcomes.

Reads top to bottom as the life of one delivery: the policies that may keep it from running, its turn
(`consumers.delivery.handling.turns`), its run (`consumers.delivery.handling.runner`), and its `Outcome`, which is
settled in one place. Slots and deadlines are in `consumers.delivery.handling.slots`, outcomes in
`consumers.delivery.settling.dispositions`.
"""

from __future__ import annotations

from bus.clock import Clock
from bus.errors import ContractError
from bus.own_context import OwnContext
from consumers.delivery.handler_errors import GaveUpError
from consumers.delivery.handling.run_policies import FRESH_S, RunPolicies
from consumers.delivery.handling.slots import HandlerSlot
from consumers.delivery.handling.turns import Turns
from consumers.delivery.receiving.verification import RecordVerifier
from consumers.delivery.settling.dispositions import Dispositions, refused
from consumers.delivery.settling.outcome import AWAIT_INBOX, DONE, DROPPED, Dead, MoveToTier, Outcome, PassOn
from consumers.delivery.state.delivery import Accepted, Delivery, Refused
from consumers.delivery.state.lane_timers import LaneTimers
from consumers.delivery.state.lanes import Lane, Lanes

__all__ = ["Executor"]


class Executor:
    """Drives lanes for one worker. *policies* are asked in their order before each run."""

    def __init__(
        self,
        turns: Turns,
        *,
        policies: RunPolicies,
        dispositions: Dispositions,
        verification: RecordVerifier,
        lanes: Lanes[Delivery],
        timers: LaneTimers,
        own: OwnContext,
        clock: Clock,
    ) -> None:
        self._turns = turns
        self._policies = policies
        self._dispositions = dispositions
        self._verification = verification
        self._lanes = lanes
        self._timers = timers
        self._own = own
        self._clock = clock

    async def run_lane(self, lane: Lane[Delivery], slot: HandlerSlot) -> None:
        """Settle the head of *lane*, and those behind it while no other lane is ready."""
        while True:
            slot.delivery, slot.ran = lane.head, False
            # Whatever code of users does for one message, from its policies to its report, begins in the worker's own
            # context, and nothing of it is left in what runs next.
            if not await self._own.drive(self._settle_head(lane, lane.head, slot)):
                return
            following = self._lanes.finish(lane)
            if following is None:
                return
            if (
                self._lanes.ready
                or self._lanes.answered_lanes
                or slot.released
                or following.is_deep is not lane.flow.deep
            ):
                self._lanes.release(lane, following.priority, deep=following.is_deep)
                return

    async def _settle_head(self, lane: Lane[Delivery], delivery: Delivery, slot: HandlerSlot) -> bool:
        """Bring *delivery*, the head of *lane*, to its end; return False where the lane waits with it."""
        wait_s = None
        try:
            slot.seen_s = self._clock.monotonic_s()
            verdict = self._before_run(delivery, slot.seen_s)
            if isinstance(verdict, Accepted):
                outcome = await self._turns.take(lane, verdict, slot)
            elif isinstance(verdict, Dead):
                outcome = await self._turns.concluded(delivery, verdict, slot)
            else:
                outcome = verdict
            if outcome is AWAIT_INBOX:
                return False
            if outcome is DONE:
                if not self._policies.are_idle:
                    self._policies.notify(delivery, outcome)
                self._dispositions.succeeded(delivery)
            else:
                self._policies.notify(delivery, outcome)
                slot.settling = True
                wait_s = await self._dispositions.settle(delivery, outcome)
        except GaveUpError:
            self._policies.notify(delivery, DROPPED)
            self._dispositions.drop(delivery)
        slot.settling = False
        # From Python 3.12 on the traceback of its error keeps this frame: both, and the message, would wait for the
        # collector.
        outcome = verdict = DROPPED
        return wait_s is None or not self._wait(lane, delivery, wait_s)

    def _before_run(self, delivery: Delivery, now_s: float) -> Accepted | Outcome:
        """Return *delivery* where its handler may run now, else what becomes of it."""
        partition = delivery.partition
        if not isinstance(delivery, Accepted):
            if isinstance(delivery, Refused) and not (partition.draining or partition.closed):
                return self._outcome_of_refusal(delivery)
            return DROPPED
        if delivery.inbox_request is not None:
            return delivery
        if partition.draining or partition.closed:
            return DROPPED
        if delivery.requeue is not None:
            left_s = self._verification.remaining_s(delivery)
            return MoveToTier(delivery.requeue, delivery.control) if left_s > 0 else _late()
        if delivery.unreadable is not None:
            return refused(delivery.unreadable)
        if self._policies.are_idle and now_s - delivery.taken_s <= FRESH_S:
            return delivery
        outcome = self._policies.outcome_before(delivery, now_s)
        return delivery if outcome is None else outcome

    def _outcome_of_refusal(self, delivery: Refused) -> Outcome:
        if (
            delivery.requeue is not None
            and delivery.message is not None
            and self._verification.remaining_s(delivery) > 0
        ):
            return PassOn(delivery.requeue)
        return refused(delivery.error)

    def _wait(self, lane: Lane[Delivery], delivery: Delivery, wait_s: float) -> bool:
        """Make *lane* wait and try again here; drop *delivery* and return False where its partition has gone."""
        if delivery.partition.closed:
            self._dispositions.drop(delivery)
            return False
        if isinstance(delivery, Accepted):
            # The failed run may have changed its payload; the next run must start from the original.
            self._verification.read_again(delivery)
        self._timers.add(lane, wait_s)
        return True


def _late() -> Dead:
    error = ContractError("it was to wait beyond the end of its life", "/routing/expires_at", "expired")
    return refused(error)
