"""A buyer whose processes ask, wait and ask again, and the seller that it asks; both write down what they do."""

from __future__ import annotations

import os
import time
from typing import Any

import msgspec

from sealbus import App, payload
from sealbus.sagas import Saga, SagaContext, on_answer, on_failure, on_start, on_timer, upgrade_state

PAUSE_S = 0.3


def open_ledger() -> None:
    """Write to the ledger that the environment names now."""
    global _ledger  # noqa: PLW0603 - one process, one ledger
    _ledger = os.open(os.environ.get("LEDGER", os.devnull), os.O_WRONLY | os.O_APPEND | os.O_CREAT)


_ledger = -1
open_ledger()


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
    waited_s: float = 0.0


class BuyingState(msgspec.Struct):
    number: int = 0
    paused_at_s: float = 0.0
    waited_s: float = 0.0
    steps: list[str] = []


class Buying(Saga[BuyingState], version="1.0.0"):
    @on_start(Order, key="/data/number")
    async def placed(self, order: Order, context: SagaContext) -> None:
        self.state.number = order.number
        self.state.steps.append("placed")
        context.ask("price", Asked(number=order.number, what="price"), to="seller@tests", answer_by_s=600)

    @on_answer("price", Answered)
    async def priced(self, _: Answered, context: SagaContext) -> None:
        self.state.steps.append("priced")
        self.state.paused_at_s = time.time()
        context.timer("pause", PAUSE_S)

    @on_timer("pause")
    async def paused(self, context: SagaContext) -> None:
        self.state.steps.append("paused")
        self.state.waited_s = time.time() - self.state.paused_at_s
        context.ask("goods", Asked(number=self.state.number, what="goods"), to="seller@tests", answer_by_s=600)

    @on_answer("goods", Answered)
    async def delivered(self, _: Answered, context: SagaContext) -> None:
        self.state.steps.append("delivered")
        how = ",".join(self.state.steps)
        context.send(Ended(number=self.state.number, how=how, waited_s=self.state.waited_s))
        context.finish()

    @on_failure("price")
    async def unpriced(self, context: SagaContext) -> None:
        context.send(Ended(number=self.state.number, how="failed"))
        context.finish()

    @on_failure("goods")
    async def undelivered(self, context: SagaContext) -> None:
        context.send(Ended(number=self.state.number, how="failed"))
        context.finish()


buyer = App("buyer@tests", types=[Asked, Ended])
buyer.add(Buying)


class NewBuyingState(msgspec.Struct):
    number: int = 0
    paused_at_s: float = 0.0
    waited_s: float = 0.0
    steps: list[str] = []
    paper: str = ""


class NewBuying(Saga[NewBuyingState], version="2.0.0", name="buying"):
    """The next release: it wraps, with an ask, a timer and a member of the state that the last one does not know."""

    @upgrade_state("1.0.0", "2.0.0")
    @staticmethod
    def with_paper(state: dict[str, Any]) -> dict[str, Any]:
        return {**state, "paper": "red"}

    @on_start(Order, key="/data/number")
    async def placed(self, order: Order, context: SagaContext) -> None:
        self.state.number = order.number
        self.state.paper = "blue"
        self.state.steps.append("placed")
        context.ask("price", Asked(number=order.number, what="price"), to="seller@tests", answer_by_s=600)

    @on_answer("price", Answered)
    async def priced(self, _: Answered, context: SagaContext) -> None:
        self.state.steps.append("priced")
        self.state.paused_at_s = time.time()
        context.timer("pause", PAUSE_S)

    @on_timer("pause")
    async def paused(self, context: SagaContext) -> None:
        self.state.steps.append("paused")
        self.state.waited_s = time.time() - self.state.paused_at_s
        context.ask("wrapping", Asked(number=self.state.number, what="wrapping"), to="seller@tests", answer_by_s=600)

    @on_answer("wrapping", Answered)
    async def wrapped(self, _: Answered, context: SagaContext) -> None:
        self.state.steps.append("wrapped")
        context.timer("cool", PAUSE_S)

    @on_timer("cool")
    async def cooled(self, context: SagaContext) -> None:
        self.state.steps.append("cooled")
        context.ask("goods", Asked(number=self.state.number, what="goods"), to="seller@tests", answer_by_s=600)

    @on_answer("goods", Answered)
    async def delivered(self, _: Answered, context: SagaContext) -> None:
        self.state.steps.append("delivered")
        how = ",".join(self.state.steps)
        context.send(Ended(number=self.state.number, how=how, waited_s=self.state.waited_s))
        context.finish()

    @on_failure("price")
    @on_failure("wrapping")
    @on_failure("goods")
    async def not_done(self, context: SagaContext) -> None:
        context.send(Ended(number=self.state.number, how="failed"))
        context.finish()


new_buyer = App("buyer@tests", types=[Asked, Ended])
new_buyer.add(NewBuying)

seller = App("seller@tests")


@seller.on(Asked)
async def sell(asked: Asked) -> Answered:
    os.write(_ledger, f"{asked.number} {asked.what}\n".encode())
    return Answered(number=asked.number)
