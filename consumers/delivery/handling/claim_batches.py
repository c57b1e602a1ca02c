"""ClaimBatcher: claims and results asked of the inbox in batches, without a slot waiting for each.

Owns collecting the claims of one turn of the loop, and the results without outputs, and what follows a stored result.
After a claim or a store failure a slot takes the lane again (`consumers.delivery.handling.executor`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from bus import failpoints
from bus.clock import Clock
from bus.own_context import OwnContext
from consumers.delivery.handling.claims import ActiveClaim, ClaimRequest, InboxClient, ResultRequest
from consumers.delivery.handling.exclusive import ExclusiveGate
from consumers.delivery.inbox.base import InboxKey
from consumers.delivery.settling.dispositions import Dispositions
from consumers.delivery.state.delivery import Accepted, Delivery
from consumers.delivery.state.lanes import Lane, Lanes

__all__ = ["STALE_S", "ClaimBatcher"]

STALE_S = 0.01
"""Seconds before a lane looks again at a message whose claim another worker has taken over."""


class ClaimBatcher:
    """Batches inbox requests for one worker; *wake* reports that lanes have changed."""

    def __init__(
        self,
        claims: InboxClient,
        lanes: Lanes[Delivery],
        *,
        dispositions: Dispositions,
        exclusive: ExclusiveGate,
        clock: Clock,
        wake: Callable[[], None],
        own: OwnContext,
    ) -> None:
        self._own = own
        self._claims = claims
        self._lanes = lanes
        self._dispositions = dispositions
        self._exclusive = exclusive
        self._clock = clock
        self._wake = wake
        self._asks: list[ClaimRequest] = []
        self._ends: list[ResultRequest] = []
        self._waking = False

    def ask(self, key: InboxKey, lane: Lane[Delivery], delivery: Accepted) -> None:
        """Ask for a claim on *delivery*, the head of *lane*; it comes back with the answer in `delivery.asked`."""
        delivery.inbox_request = inbox_request = self._claims.claim_request(key, delivery, lane)
        delivery.partition.awaiting_inbox += 1
        self._lanes.ask()
        self._asks.append(inbox_request)
        if len(self._asks) == 1:
            self._own.call_soon(self._send_asks)

    def finish(self, claim: ActiveClaim, lane: Lane[Delivery], delivery: Accepted) -> None:
        """Store that *delivery*, the head of *lane*, is done without outputs; the next delivery then runs."""
        # The run counts as inside the gate until its result is stored: an exclusive run waits for it.
        self._exclusive.inside += 1
        delivery.partition.awaiting_inbox += 1
        self._lanes.settle()
        self._ends.append(
            ResultRequest(claim.key, claim.token, claim.identity, lane=lane, delivery=delivery, claim=claim)
        )
        if len(self._ends) == 1:
            self._own.call_soon(self._send_ends)

    # All requests of one turn of the loop become one question to the store.

    def _send_asks(self) -> None:
        asks, self._asks = self._asks, []
        self._claims.claim_soon(asks, self._answered)

    def _send_ends(self) -> None:
        ends, self._ends = self._ends, []
        self._claims.finish_soon(ends, self._ended)

    def _answered(self, asks: Sequence[ClaimRequest]) -> None:
        self._lanes.answered([ask.lane for ask in asks])
        self._wake_soon()

    def _ended(self, ends: Sequence[ResultRequest]) -> None:
        self._lanes.settled(len(ends))
        for end in ends:
            self._exclusive.leave(alone=False)
            lane = end.lane
            delivery = end.delivery
            if end.answer is True:
                try:
                    self._done(lane, delivery)
                # The slot raises it and ends the worker; raised here, it would be lost in a callback.
                except Exception as error:  # noqa: BLE001
                    end.answer = error
            elif end.answer is False:
                # Another worker has claimed the message since: that worker's result counts.
                self._clock.call_later(STALE_S, partial(self._again, lane))
            if isinstance(end.answer, Exception):
                delivery.inbox_request = end
                self._lanes.put_back(lane)
            else:
                delivery.partition.awaiting_inbox -= 1
        self._wake_soon()

    def _done(self, lane: Lane[Delivery], delivery: Delivery) -> None:
        failpoints.reach("inboxed")
        self._dispositions.succeeded(delivery)
        following = self._lanes.finish(lane)
        if following is not None:
            self._lanes.release(lane, following.priority, deep=following.is_deep)

    def _wake_soon(self) -> None:
        # Some stores answer a batch one by one: wake once per turn of the loop.
        if not self._waking:
            self._waking = True
            self._own.call_soon(self._wake_now)

    def _wake_now(self) -> None:
        self._waking = False
        self._wake()

    def _again(self, lane: Lane[Delivery]) -> None:
        self._lanes.release(lane, lane.head.priority, deep=lane.head.is_deep)
        self._wake()
