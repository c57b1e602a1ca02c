"""Contract net: whatever bidders and winners do, every auction ends, once."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bus.vocabulary.auction import (
    AuctionAward,
    AuctionBid,
    AuctionCall,
    AuctionFailure,
    AuctionLoss,
    AuctionRefusal,
    AuctionResult,
)
from bus.vocabulary.parts import ErrorInfo, Money, ReturnContract
from consumers.processes.conversations.contract_net import ContractNet, SeenBid, fault_of, ranked
from producers.sealing.seal_request import SealRequest
from sealbus import App, Context, Outgoing, Reject, payload
from sealbus.sagas import SagaContext, on_start


@payload("net.wanted", version="1.0.0")
class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    goal: str


@payload("net.ended", version="1.0.0")
class Ended(msgspec.Struct, frozen=True, kw_only=True):
    how: str
    by: str = ""


CALL = AuctionCall(
    goal="carry it",
    return_contract=ReturnContract(expected_message_type="auction.result"),
    bid_by_s=10,
    answer_within_s=60,
    max_cost=Money(amount="100", currency="EUR"),
)


class Shipping(ContractNet, version="1.0.0"):
    @on_start(Wanted)
    async def wanted(self, _: Wanted, context: SagaContext) -> None:
        self.call_for_bids(context, CALL)

    async def delivered(self, result: AuctionResult, context: SagaContext) -> None:
        context.answer(Ended(how="delivered", by=context.message.metadata.sender.id or ""))

    async def unsold(self, context: SagaContext) -> None:
        context.answer(Ended(how="unsold"))


def manager() -> App:
    app = App("manager@svc", types=[AuctionCall, AuctionAward, AuctionLoss, Ended])
    app.add(Shipping)
    return app


def carrier(name: str, cents: int, work: Any, *, bids: bool = True) -> App:
    app = App(name)

    @app.on(AuctionCall)
    async def bid(_: AuctionCall) -> AuctionBid | AuctionRefusal:
        if not bids:
            return AuctionRefusal(reason_code="OVERLOADED")
        return AuctionBid(cost=Money(amount=str(cents), currency="EUR"), confidence=0.5, duration_s=5)

    @app.on(AuctionAward)
    async def carry(award: AuctionAward, context: Context) -> AuctionResult | AuctionFailure | None:
        if isinstance(work, Exception):
            raise work
        if work == "fails":
            error = ErrorInfo(code="BROKEN", message="no wheels")
            return AuctionFailure(bid=award.bid, error=error)
        return None if work == "silent" else AuctionResult(bid=award.bid, output={})

    return app


async def end_of(*carriers: App) -> Ended:
    async with manager().test(*carriers) as bus:
        await bus.publish(Wanted(goal="carry it"))
        await bus.advance(300)
        (ended,) = bus.sent(Ended)
        assert await bus.database.fetch("SELECT * FROM sealbus_waits") == []
        return ended


async def test_the_cheapest_delivers() -> None:
    assert await end_of(carrier("a@svc", 20, "works"), carrier("b@svc", 10, "works")) == Ended(
        how="delivered", by="b@svc"
    )


async def test_the_next_delivers_where_the_winner_fails() -> None:
    assert (await end_of(carrier("a@svc", 20, "works"), carrier("b@svc", 10, "fails"))).by == "a@svc"


async def test_the_next_delivers_where_the_winner_dies() -> None:
    assert (await end_of(carrier("a@svc", 20, "works"), carrier("b@svc", 10, Reject("no")))).by == "a@svc"


async def test_the_next_delivers_where_the_winner_is_silent() -> None:
    assert (await end_of(carrier("a@svc", 20, "works"), carrier("b@svc", 10, "silent"))).by == "a@svc"


@pytest.mark.medium
async def test_an_auction_without_bids_ends_unsold() -> None:
    assert await end_of(carrier("a@svc", 20, "works", bids=False)) == Ended(how="unsold")
    assert await end_of() == Ended(how="unsold")


async def test_everybody_fails() -> None:
    assert await end_of(carrier("a@svc", 20, "fails"), carrier("b@svc", 10, "silent")) == Ended(how="unsold")


async def test_a_bid_above_the_limit_is_rejected_with_the_reason() -> None:
    async with manager().test(carrier("a@svc", 500, "works")) as bus:
        await bus.publish(Wanted(goal="carry it"))
        await bus.advance(60)
        assert [loss.reason_code for loss in bus.sent(AuctionLoss)] == ["TOO_EXPENSIVE"]
        assert bus.sent(Ended) == [Ended(how="unsold")]


# The choice is pure.

SEEN = st.builds(
    SeenBid,
    seal=st.text("0123456789abcdef", min_size=4, max_size=4),
    agent=st.just("a"),
    amount=st.integers(0, 3).map(str),
    currency=st.just("EUR"),
    confidence=st.sampled_from([0.1, 0.5]),
    duration_s=st.integers(1, 3),
    append_ms=st.integers(0, 3),
)


CHOICES = st.sampled_from(["lowest_cost", "highest_confidence", "soonest"])


@given(st.lists(SEEN, unique_by=lambda bid: bid.seal), CHOICES, st.randoms())
def test_the_choice_is_the_same_in_whatever_order_bids_came(bids: list[SeenBid], choice: Any, chance: Any) -> None:
    call = msgspec.structs.replace(CALL, choice=choice)
    mixed = list(bids)
    chance.shuffle(mixed)
    assert ranked(bids, call) == ranked(mixed, call)


@given(SEEN)
def test_a_bid_counts_by_when_the_log_took_it(bid: SeenBid) -> None:
    assert fault_of(bid, CALL, called_ms=0) is None
    assert fault_of(msgspec.structs.replace(bid, append_ms=10_001), CALL, called_ms=0) == "LATE"


async def test_a_bidder_has_one_bid_and_an_auction_a_most_of_bidders() -> None:
    class Small(Shipping, version="1.0.0"):
        max_bids = 2

    app = App("manager@svc", types=[Ended])
    app.add(Small)
    async with app.test() as bus:
        await bus.publish(Wanted(goal="x"))
        await bus.settle()
        (call,) = bus.messages(AuctionCall)
        for name, cents in (("a@svc", 50), ("b@svc", 40), ("a@svc", 30), ("c@svc", 1)):
            bidder = bus.as_agent(name).publisher
            bid = AuctionBid(cost=Money(amount=str(cents), currency="EUR"), confidence=0.5, duration_s=5)
            draft = Outgoing(bid, task_id=call.metadata.task_id)
            await bidder.send(
                bidder.sealer.seal(draft, SealRequest(cause=call, answers=True, topic=call.routing.reply_to))
            )
            await bus.settle()
        assert [loss.reason_code for loss in bus.sent(AuctionLoss)] == ["REPLACED", "FULL"]
        await bus.advance(13)
        (award,) = bus.messages(AuctionAward)
        assert award.metadata.recipient is not None
        assert award.metadata.recipient.id == "a@svc"
