"""Procurement by contract net: suppliers bid, the cheapest gets the order, and the next one where it fails.

sealbus run procurement:buyer procurement:cheap procurement:dear
"""

from __future__ import annotations

import msgspec

from sealbus import App, payload
from sealbus.patterns import ContractNet
from sealbus.sagas import SagaContext, on_start
from sealbus.vocabulary import (
    AuctionAward,
    AuctionBid,
    AuctionCall,
    AuctionFailure,
    AuctionResult,
    ErrorInfo,
    Money,
    ReturnContract,
)


@payload("purchase.request", version="1.0.0")
class PurchaseRequest(msgspec.Struct, frozen=True, kw_only=True):
    what: str
    most_cents: int


@payload("purchase.result", version="1.0.0")
class PurchaseResult(msgspec.Struct, frozen=True, kw_only=True):
    supplier: str = ""


class Purchase(ContractNet, version="1.0.0"):
    @on_start(PurchaseRequest)
    async def wanted(self, request: PurchaseRequest, context: SagaContext) -> None:
        call = AuctionCall(
            goal=request.what,
            return_contract=ReturnContract(expected_message_type="auction.result"),
            bid_by_s=30,
            answer_within_s=600,
            max_cost=Money(amount=f"{request.most_cents / 100:.2f}", currency="EUR"),
        )
        self.call_for_bids(context, call)

    async def delivered(self, result: AuctionResult, context: SagaContext) -> None:
        context.answer(PurchaseResult(supplier=context.message.metadata.sender.id or ""))

    async def unsold(self, context: SagaContext) -> None:
        context.answer(PurchaseResult())


def supplier(name: str, price: str, *, has_stock: bool) -> App:
    app = App(name)

    @app.on(AuctionCall)
    async def bid(call: AuctionCall) -> AuctionBid:
        return AuctionBid(cost=Money(amount=price, currency="EUR"), confidence=0.9, duration_s=60)

    @app.on(AuctionAward)
    async def deliver(award: AuctionAward) -> AuctionResult | AuctionFailure:
        if not has_stock:
            return AuctionFailure(bid=award.bid, error=ErrorInfo(code="NO_STOCK", message="sold out"))
        return AuctionResult(bid=award.bid, output={"what": award.goal})

    return app


buyer = App("buyer@svc", types=[AuctionCall, AuctionAward, PurchaseResult])
buyer.add(Purchase)
cheap = supplier("cheap@svc", "4.00", has_stock=False)
dear = supplier("dear@svc", "6.50", has_stock=True)


async def test_the_next_supplier_delivers_where_the_cheapest_cannot() -> None:
    async with buyer.test(cheap, dear) as bus:
        wanted = PurchaseRequest(what="tea", most_cents=1_000)
        assert await bus.request(wanted, PurchaseResult, timeout_s=3_000) == PurchaseResult(supplier="dear@svc")


async def test_nobody_gets_an_order_that_is_too_expensive() -> None:
    async with buyer.test(cheap, dear) as bus:
        wanted = PurchaseRequest(what="tea", most_cents=500)
        assert await bus.request(wanted, PurchaseResult, timeout_s=3_000) == PurchaseResult()
