"""Every built-in part in two agents: the boss holds, calls, hands over, has reviewed, notices and keeps a board; the
helper does what it is asked."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec

from bus.vocabulary.act import ActInform, ActRequest
from bus.vocabulary.auction import AuctionAward, AuctionBid, AuctionCall, AuctionResult
from bus.vocabulary.handoff import HandoffAccepted, HandoffCompleted, HandoffRequest
from bus.vocabulary.parts import Money, Ref, ReturnContract
from bus.vocabulary.review import ReviewRequest, ReviewResult
from bus.vocabulary.task import TaskRequest, TaskResult
from consumers.processes.conversations.blackboard import Blackboard
from consumers.processes.conversations.contract_net import ContractNet
from consumers.processes.conversations.handoff import Handoff
from consumers.processes.conversations.review import IteratedReview
from consumers.processes.conversations.subscriptions import Subscription
from sealbus import App, Approval, Context, Reject, payload
from sealbus.sagas import SagaContext, on_message, on_progress, on_start


@payload("parts.deploy", version="1.0.0", performative="request")
class Deploy(msgspec.Struct, frozen=True, kw_only=True):
    service: str


@payload("parts.ship", version="1.0.0", performative="request")
class Ship(msgspec.Struct, frozen=True, kw_only=True):
    goal: str


@payload("parts.fix", version="1.0.0", performative="request")
class Fix(msgspec.Struct, frozen=True, kw_only=True):
    what: str


@payload("parts.write", version="1.0.0", performative="request")
class Write(msgspec.Struct, frozen=True, kw_only=True):
    title: str


@payload("parts.price", version="1.0.0", performative="inform")
class Price(msgspec.Struct, frozen=True, kw_only=True):
    sku: str
    cents: int


@payload("parts.patch", version="1.0.0", performative="inform")
class Patch(msgspec.Struct, frozen=True, kw_only=True):
    diff: str


@payload("parts.ended", version="1.0.0", performative="inform")
class Ended(msgspec.Struct, frozen=True, kw_only=True):
    how: str


@payload("parts.repair", version="1.0.0", performative="request")
class Repair(msgspec.Struct, frozen=True, kw_only=True):
    pass


@payload("parts.dream", version="1.0.0", performative="request")
class Dream(msgspec.Struct, frozen=True, kw_only=True):
    pass


class Shipping(ContractNet, version="1.0.0"):
    @on_start(Ship)
    async def wanted(self, wanted: Ship, context: SagaContext) -> None:
        call = AuctionCall(
            goal=wanted.goal,
            return_contract=ReturnContract(expected_message_type="auction.result"),
            bid_by_s=2,
            answer_within_s=60,
            max_cost=Money(amount="100", currency="EUR"),
        )
        self.call_for_bids(context, call)

    async def delivered(self, result: AuctionResult, context: SagaContext) -> None:
        context.answer(Ended(how="delivered"))

    async def unsold(self, context: SagaContext) -> None:
        context.answer(Ended(how="unsold"))


class Fixing(Handoff, version="1.0.0"):
    @on_start(Fix)
    async def wanted(self, wanted: Fix, context: SagaContext) -> None:
        request = HandoffRequest(
            handoff_id="h1",
            original_goal=wanted.what,
            delegated_goal=wanted.what,
            acceptance_criteria=("it works",),
            return_contract=ReturnContract(expected_message_type="parts.patch"),
        )
        self.hand_over(context, request, to="helper@svc", within_s=600)

    @on_progress("handoff", Patch)
    async def patched(self, patch: Patch, context: SagaContext) -> None:
        self.keep(patch)

    async def handed_back(self, completed: HandoffCompleted, context: SagaContext) -> None:
        context.answer(Ended(how="fixed"))

    async def not_handed_back(self, why: str, context: SagaContext) -> None:
        context.answer(Ended(how=why))


class Writing(IteratedReview, version="1.0.0"):
    @on_start(Write)
    async def wanted(self, wanted: Write, context: SagaContext) -> None:
        self.begin(context, wanted.title, author="helper@svc", reviewer="helper@svc", rounds=3)

    async def approved(self, review: ReviewResult, context: SagaContext) -> None:
        context.answer(Ended(how=f"approved in round {self.state.round}"))

    async def abandoned(self, why: str, context: SagaContext) -> None:
        context.answer(Ended(how=why))


class Prices(Subscription, version="1.0.0"):
    @on_message(Price, every=True, admits="anyone")
    async def changed(self, price: Price, context: SagaContext) -> None:
        if self.state.subject == price.sku:
            self.notify(context, {"cents": price.cents})


boss = App("boss@svc")
for saga in (Shipping, Fixing, Writing, Prices, Blackboard):
    boss.add(saga)


@boss.on(Deploy, approval=Approval(by="human"))
async def deploy(order: Deploy, context: Context) -> Ended:
    return Ended(how=f"deployed {order.service}")


leaky = App("leaky@svc")


@payload("parts.leak", version="1.0.0", performative="inform")
class Leak(msgspec.Struct, frozen=True, kw_only=True):
    pass


@payload("parts.undeclared", version="1.0.0", performative="inform")
class Undeclared(msgspec.Struct, frozen=True, kw_only=True):
    pass


@leaky.on(Leak)
async def leak(_: Leak, context: Context) -> None:
    context.send(Undeclared())


helper = App("helper@svc")
NOWHERE = Ref(uri="message:x", sha256="sha256:" + "0" * 64)


@helper.on(AuctionCall)
async def bid(_: AuctionCall) -> AuctionBid:
    return AuctionBid(cost=Money(amount="5", currency="EUR"), confidence=0.5, duration_s=5)


@helper.on(AuctionAward)
async def carry(award: AuctionAward) -> AuctionResult:
    return AuctionResult(bid=award.bid, output={})


@helper.on(HandoffRequest)
async def fix(_: HandoffRequest) -> list[HandoffAccepted | Patch | HandoffCompleted]:
    completed = HandoffCompleted(handoff_id="h1", status="completed", result_ref=NOWHERE, summary="done")
    return [HandoffAccepted(handoff_id="h1"), Patch(diff="+1"), completed]


@helper.on(Repair)
async def repair(_: Repair) -> None:
    if not Path("repaired").exists():
        raise Reject("not repaired yet")


@helper.on(Dream)
async def dream(_: Dream, context: Context) -> None:
    Path("dreaming").touch()
    while not context.cancelled:  # noqa: ASYNC110 - as users are shown it
        await asyncio.sleep(0.05)
    Path("woken").touch()


@helper.on(TaskRequest)
async def draft(_: TaskRequest) -> TaskResult:
    return TaskResult(status="completed", summary="a draft")


@helper.on(ReviewRequest)
async def review(_: ReviewRequest) -> ReviewResult:
    return ReviewResult(verdict="approved")


@helper.on(ActRequest)
async def act(_: ActRequest) -> ActInform:
    return ActInform(content={"text": "found"})
