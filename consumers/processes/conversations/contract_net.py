"""Contract net: call for bids, award the best, and the next best where the winner fails or stays silent.

    phase      event                                   then
    called     auction.bid, auction.refusal            called; a bid that is late or too expensive is told so, and
                                                       one that its bidder has replaced
    called     time for bids is over                   awarded, or unsold without a bid
    awarded    auction.result of the winner            done
    awarded    auction.failure, auction.refusal        awarded to the next, at once; unsold without one
    awarded    silence                                 awarded to the next, 10 s after the award's time

A bid is in time when the log took it in time. The choice is a pure function of the call and of those bids, so it can
be made again from the log. An award is a lease: a result counts for the award that stands, and for no other.
"""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from types import MappingProxyType
from typing import ClassVar, Final

import msgspec

from bus.errors import ContractError
from bus.protocol.envelope import Agent
from bus.vocabulary.auction import (
    AuctionAward,
    AuctionBid,
    AuctionCall,
    AuctionFailure,
    AuctionLoss,
    AuctionRefusal,
    AuctionResult,
)
from consumers.processes.sagas.context import SagaContext
from consumers.processes.sagas.rules import Saga, on_answer, on_failure, on_progress, on_timer

__all__ = ["AuctionState", "ContractNet", "SeenBid", "fault_of", "ranked"]

_LAG_S: Final = 1.0
"""How long after the end of bidding the mailbox may bring bids that were in time."""
_SECOND_LOOK_S: Final = 5.0
_CALL_LIVES_S: Final = 30.0


class SeenBid(msgspec.Struct, frozen=True, kw_only=True):
    """The content of a bid, and the time at which the log received it."""

    seal: str
    agent: str
    amount: str
    currency: str
    confidence: float
    duration_s: int
    append_ms: int


class AuctionState(msgspec.Struct, kw_only=True):
    """One auction."""

    phase: str = ""
    call: AuctionCall | None = None
    called_ms: int = 0
    task_id: str = ""
    bids: list[SeenBid] = []
    order: list[str] = []
    """The seals of the bids, best first."""
    rank: int = 0
    """Which of them has the award, from 1."""
    looked_again: bool = False


class ContractNet(Saga[AuctionState], abstract=True):
    """An auction among agents. A subclass starts it, and handles its result.

    class Shipping(ContractNet, version="1.0.0"):
        @on_start(ShipmentWanted)
        async def wanted(self, shipment, context):
            self.call_for_bids(context, AuctionCall(goal=..., ...), to=Agent(role="carrier"))

        async def delivered(self, result, context): context.answer(Shipped(...))
        async def unsold(self, context): context.answer(NotShipped())
    """

    phases = MappingProxyType({"called": ("awarded", "unsold"), "awarded": ("awarded", "done", "unsold")})
    sends = (AuctionCall,)
    max_bids: ClassVar[int] = 500
    """Maximum bidders of one auction; later ones are rejected as FULL."""

    async def delivered(self, result: AuctionResult, context: SagaContext) -> None:
        """Act on the *result* of the winner."""
        raise NotImplementedError

    async def unsold(self, context: SagaContext) -> None:
        """Act on an auction without a winner, or in which every winner failed."""
        raise NotImplementedError

    def call_for_bids(
        self, context: SagaContext, call: AuctionCall, *, to: Agent | None = None, task_id: str | None = None
    ) -> None:
        """Call for bids of everybody, or of a role; in the method that opens the process."""
        state = self.state
        state.phase, state.call, state.called_ms = "called", call, context.now_ms
        state.task_id = task_id or context.task_id
        context.ask("bids", call, to=to, many=True, answer_by_s=call.bid_by_s + _CALL_LIVES_S, task_id=state.task_id)
        context.timer("close", call.bid_by_s + _LAG_S)

    @on_answer("bids", AuctionBid)
    async def bid_came(self, bid: AuctionBid, context: SagaContext) -> None:
        message, call = context.message, self._called()
        seen = SeenBid(
            seal=message.seal,
            agent=message.metadata.sender.id or "",
            amount=bid.cost.amount,
            currency=bid.cost.currency,
            confidence=bid.confidence,
            duration_s=bid.duration_s,
            append_ms=context.append_ms,
        )
        fault = fault_of(seen, call, called_ms=self.state.called_ms)
        if fault is None and self.state.phase != "called":
            fault = "LATE"
        standing = next((each for each in self.state.bids if each.agent == seen.agent), None)
        if fault is None and standing is None and len(self.state.bids) >= self.max_bids:
            fault = "FULL"
        if fault is not None:
            context.send(AuctionLoss(bid=seen.seal, reason_code=fault), to=seen.agent)
            return
        if standing is not None:
            # A bidder has one bid: the last that is in time.
            self.state.bids.remove(standing)
            context.send(AuctionLoss(bid=standing.seal, reason_code="REPLACED"), to=standing.agent)
        self.state.bids.append(seen)

    @on_progress("bids", AuctionRefusal)
    async def not_bidding(self, refusal: AuctionRefusal, context: SagaContext) -> None:
        """Do nothing: an agent without a bid is not awarded."""

    @on_timer("close")
    async def close(self, context: SagaContext) -> None:
        if self.state.phase != "called":
            return
        if not self.state.bids and not self.state.looked_again:
            # The mailbox may lag: what the log took in time still counts.
            self.state.looked_again = True
            context.timer("close", _SECOND_LOOK_S)
            return
        context.cancel("bids")
        best_first = ranked(self.state.bids, self._called())
        self.state.order = [bid.seal for bid in best_first]
        for bid in best_first[1:]:
            context.send(AuctionLoss(bid=bid.seal, reason_code="OUTBID", is_runner_up=True), to=bid.agent)
        await self._award_next(context)

    @on_timer("bids")
    async def bids_are_over(self, context: SagaContext) -> None:
        await self.close(context)

    @on_answer("work", AuctionResult)
    async def result_came(self, result: AuctionResult, context: SagaContext) -> None:
        if result.bid != self._standing():
            raise ContractError("its award is not valid", "/data/bid", "invalid_transition")
        self.state.phase = "done"
        await self.delivered(result, context)
        context.finish("completed")

    @on_answer("work", AuctionFailure, AuctionRefusal)
    async def winner_failed(self, _: AuctionFailure | AuctionRefusal, context: SagaContext) -> None:
        await self._award_next(context)

    @on_failure("work")
    async def winner_silent(self, context: SagaContext) -> None:
        await self._award_next(context)

    async def _award_next(self, context: SagaContext) -> None:
        state, call = self.state, self._called()
        if state.rank >= len(state.order):
            state.phase = "unsold"
            await self.unsold(context)
            context.finish("failed", "unsold")
            return
        state.phase, state.rank = "awarded", state.rank + 1
        seal = self._standing()
        bid = next(each for each in state.bids if each.seal == seal)
        award = AuctionAward(
            bid=seal, rank=state.rank, goal=call.goal, inputs=call.inputs, return_contract=call.return_contract
        )
        key = f"auction-{context.opener.message_id}"
        context.ask(
            "work",
            award,
            to=bid.agent,
            answer_by_s=call.answer_within_s,
            task_id=state.task_id,
            # The same for every award: an effect that honours it happens once, also where two have worked.
            idempotency_key=key,
        )

    def _standing(self) -> str:
        return self.state.order[self.state.rank - 1]

    def _called(self) -> AuctionCall:
        if self.state.call is None:
            raise ContractError("nothing was called for: self.call_for_bids(...) in the method that opens it", "/data")
        return self.state.call


def fault_of(bid: SeenBid, call: AuctionCall, *, called_ms: int) -> str | None:
    """Return why *bid* does not count, as the code of an auction.loss; None where it does. Pure."""
    if bid.append_ms > called_ms + call.bid_by_s * 1000:
        return "LATE"
    ceiling = call.max_cost
    if ceiling is not None and (bid.currency != ceiling.currency or Decimal(bid.amount) > Decimal(ceiling.amount)):
        return "TOO_EXPENSIVE"
    if call.required_confidence is not None and bid.confidence < call.required_confidence:
        return "CONFIDENCE_TOO_LOW"
    return "LATE" if bid.duration_s > call.answer_within_s else None


def ranked(bids: Sequence[SeenBid], call: AuctionCall) -> list[SeenBid]:
    """Return *bids* best first, by the call's rule. Ties: higher confidence, earlier append, smaller seal. Pure."""

    def worth(bid: SeenBid) -> tuple[Decimal | float, float, int, str]:
        first: Decimal | float = Decimal(bid.amount)
        if call.choice == "highest_confidence":
            first = -bid.confidence
        elif call.choice == "soonest":
            first = bid.duration_s
        return first, -bid.confidence, bid.append_ms, bid.seal

    return sorted(bids, key=worth)
