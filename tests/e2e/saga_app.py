"""A buyer whose processes ask, wait and ask again, and the seller that it asks; both write down what they do."""

from __future__ import annotations

import os

import msgspec

from sealbus import App, Saga, SagaContext, answers, due, failed, payload, starts

_ledger = os.open(os.environ.get("LEDGER", os.devnull), os.O_WRONLY | os.O_APPEND | os.O_CREAT)


@payload("test.order", version="1.0.0")
class Order(msgspec.Struct, frozen=True, kw_only=True):
    number: int


@payload("test.asked", version="1.0.0")
class Asked(msgspec.Struct, frozen=True, kw_only=True):
    number: int
    what: str


@payload("test.answered", version="1.0.0")
class Answered(msgspec.Struct, frozen=True, kw_only=True):
    number: int


@payload("test.ended", version="1.0.0")
class Ended(msgspec.Struct, frozen=True, kw_only=True):
    number: int
    how: str


class BuyingState(msgspec.Struct):
    number: int = 0
    steps: list[str] = []


class Buying(Saga[BuyingState], version="1.0.0"):
    @starts(Order, key="/data/number")
    async def placed(self, order: Order, context: SagaContext) -> None:
        self.state.number = order.number
        self.state.steps.append("placed")
        context.ask("price", Asked(number=order.number, what="price"), to="seller@tests", answer_by_s=600)

    @answers("price", Answered)
    async def priced(self, _: Answered, context: SagaContext) -> None:
        self.state.steps.append("priced")
        context.timer("pause", 0.3)

    @due("pause")
    async def paused(self, context: SagaContext) -> None:
        self.state.steps.append("paused")
        context.ask("goods", Asked(number=self.state.number, what="goods"), to="seller@tests", answer_by_s=600)

    @answers("goods", Answered)
    async def delivered(self, _: Answered, context: SagaContext) -> None:
        self.state.steps.append("delivered")
        context.send(Ended(number=self.state.number, how=",".join(self.state.steps)))
        context.finish()

    @failed("price")
    async def unpriced(self, context: SagaContext) -> None:
        context.send(Ended(number=self.state.number, how="failed"))
        context.finish()

    @failed("goods")
    async def undelivered(self, context: SagaContext) -> None:
        context.send(Ended(number=self.state.number, how="failed"))
        context.finish()


buyer = App("buyer@tests", types=[Asked, Ended])
buyer.add(Buying)

seller = App("seller@tests")


@seller.on(Asked)
async def sell(asked: Asked) -> Answered:
    os.write(_ledger, f"{asked.number} {asked.what}\n".encode())
    return Answered(number=asked.number)
