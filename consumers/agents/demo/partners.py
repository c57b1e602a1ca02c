"""The agents of the demo's second act: one that changes things, a buyer and two suppliers, and one that greets.

Owns what each does; who is killed when is `second_act`'s.
"""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Final

import msgspec

from bus.payloads.payload_types import payload
from bus.vocabulary.act import ActInform, ActRequest
from bus.vocabulary.auction import AuctionAward, AuctionBid, AuctionCall, AuctionResult
from bus.vocabulary.parts import Money, ReturnContract
from bus.vocabulary.task import StatusUpdate
from consumers.agents.workflows.engine import workflow_engine
from consumers.app.app import App
from consumers.delivery.context import Context
from consumers.processes.approvals.approval import Approval
from consumers.processes.conversations.contract_net import ContractNet
from consumers.processes.sagas.context import SagaContext
from consumers.processes.sagas.rules import on_start

__all__ = ["ChangeMade", "PurchaseResult", "PurchaseWanted", "WantedChange"]

_GREETING_S: Final = 2.0
_ANSWER_WITHIN_S: Final = 2


@payload("demo.change", version="1.0.0", performative="request")
class WantedChange(msgspec.Struct, frozen=True, kw_only=True):
    """Something that only a person may agree to."""

    service: str


@payload("demo.change-made", version="1.0.0", performative="inform")
class ChangeMade(msgspec.Struct, frozen=True, kw_only=True):
    """The change is made, and who agreed."""

    service: str
    agreed_by: str


@payload("demo.purchase", version="1.0.0", performative="request")
class PurchaseWanted(msgspec.Struct, frozen=True, kw_only=True):
    """A purchase from the best bidder."""

    what: str


@payload("demo.purchased", version="1.0.0", performative="inform")
class PurchaseResult(msgspec.Struct, frozen=True, kw_only=True):
    """The supplier that delivered; empty if none did."""

    supplier: str = ""


class Purchase(ContractNet, version="1.0.0", name="demo-purchase"):
    """Buys by contract net."""

    @on_start(PurchaseWanted)
    async def wanted(self, wanted: PurchaseWanted, context: SagaContext) -> None:
        contract = ReturnContract(expected_message_type="auction.result")
        call = AuctionCall(goal=wanted.what, return_contract=contract, bid_by_s=2, answer_within_s=_ANSWER_WITHIN_S)
        self.call_for_bids(context, call)

    async def delivered(self, _: AuctionResult, context: SagaContext) -> None:
        context.answer(PurchaseResult(supplier=context.message.metadata.sender.id or ""))

    async def unsold(self, context: SagaContext) -> None:
        context.answer(PurchaseResult())


def _supplier(name: str, price: str, *, work_s: float) -> App:
    """Return an app that bids *price*, and delivers after *work_s* of work if it wins."""
    app = App(name, types=[StatusUpdate])

    @app.on(AuctionCall)
    async def bid(_: AuctionCall) -> AuctionBid:
        return AuctionBid(cost=Money(amount=price, currency="EUR"), confidence=0.9, duration_s=1)

    @app.on(AuctionAward)
    async def deliver(award: AuctionAward, context: Context) -> AuctionResult:
        task = context.message.metadata.task_id or context.message.message_id
        await context.send_now(StatusUpdate(task_id=task, new_status="running", timestamp=datetime.now(UTC)))
        await asyncio.sleep(work_s)
        return AuctionResult(bid=award.bid, output={"what": award.goal})

    return app


changer = App("changer@demo")
buyer = App("buyer@demo", types=[AuctionCall, AuctionAward, PurchaseResult])
buyer.add(Purchase)
cheap = _supplier("cheap@demo", "4", work_s=60.0)  # it is killed long before
dear = _supplier("dear@demo", "6", work_s=0.0)
greeter = App("greeter@demo")
engine = workflow_engine()


@changer.on(WantedChange, approval=Approval(by="human"))
async def change(wanted: WantedChange, context: Context) -> ChangeMade:
    """Make a change that a person has agreed to."""
    agreed = "nobody" if context.approval is None else ", ".join(context.approval.decided_by)
    return ChangeMade(service=wanted.service, agreed_by=agreed)


@greeter.on(ActRequest)
async def greet(_: ActRequest) -> ActInform:
    """Answer after a while, in which the workflow's engine is killed."""
    await asyncio.sleep(_GREETING_S)
    return ActInform(content={"text": "hello"})
