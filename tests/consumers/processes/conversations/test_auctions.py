"""A thousand auctions among carriers that decline, bid late, fail, die and stay silent: every one ends, once."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import AsyncIterator
from typing import Any, Literal

import msgspec
import pytest

from bus.protocol import sealing
from bus.protocol.timestamps import parse_ms
from bus.topics.names import mailbox_topic
from bus.transports.read_all import scan_topic
from bus.vocabulary.auction import (
    AuctionAward,
    AuctionBid,
    AuctionCall,
    AuctionFailure,
    AuctionRefusal,
    AuctionResult,
)
from bus.vocabulary.parts import ErrorInfo, Money, ReturnContract
from consumers.app.testing import TestBus
from consumers.processes.conversations.contract_net import ContractNet, SeenBid, fault_of, ranked
from sealbus import App, Context, Message, Reject, RetryLater, payload
from sealbus.sagas import SagaContext, on_start
from tests.kit import Job

CARRIERS = ("a@svc", "b@svc", "c@svc", "d@svc")
BIDS = ("bids", "bids", "bids", "ties", "declines", "dies", "is late", "is silent")
WORK = ("works", "works", "fails", "declines", "dies", "is silent", "is late")


@payload("auctions.ended", version="1.0.0")
class Ended(msgspec.Struct, frozen=True, kw_only=True):
    number: int
    how: Literal["delivered", "unsold"]
    by: str = ""


class Shipping(ContractNet, version="1.0.0"):
    @on_start(Job, key="/data/number")
    async def wanted(self, wanted: Job, context: SagaContext) -> None:
        call = AuctionCall(
            goal=str(wanted.number),
            return_contract=ReturnContract(expected_message_type="auction.result"),
            bid_by_s=10,
            answer_within_s=60,
            max_cost=Money(amount="100", currency="EUR"),
        )
        self.call_for_bids(context, call)

    async def delivered(self, result: AuctionResult, context: SagaContext) -> None:
        by = context.message.metadata.sender.id or ""
        context.send(Ended(number=self.number, how="delivered", by=by))

    async def unsold(self, context: SagaContext) -> None:
        context.send(Ended(number=self.number, how="unsold"))

    @property
    def number(self) -> int:
        assert self.state.call is not None
        return int(self.state.call.goal)


def lot(*words: object) -> int:
    """A number that *words* always have."""
    return int.from_bytes(hashlib.sha256(repr(words).encode()).digest()[:4], "big")


def trouble(does: str, context: Context, late_s: float) -> None:
    """Raise what a carrier that dies, or is late, raises."""
    if does == "dies":
        raise Reject("broken")
    if does == "is late" and context.attempt == 1:
        raise RetryLater("stuck in traffic", after_s=late_s)


def carrier(name: str) -> App:
    app = App(name)

    @app.on(AuctionCall)
    async def bid(call: AuctionCall, context: Context) -> AuctionBid | AuctionRefusal | None:
        does = BIDS[lot(call.goal, name) % len(BIDS)]
        trouble(does, context, 15)
        if does == "declines":
            return AuctionRefusal(reason_code="OVERLOADED")
        if does == "is silent":
            return None
        price = 50 if does == "ties" else 40 + lot(call.goal, name, "price") % 70
        return AuctionBid(cost=Money(amount=str(price), currency="EUR"), confidence=0.5, duration_s=5)

    @app.on(AuctionAward)
    async def carry(award: AuctionAward, context: Context) -> AuctionResult | AuctionFailure | AuctionRefusal | None:
        does = WORK[lot(award.goal, name, "work") % len(WORK)]
        trouble(does, context, 75)
        if does == "fails":
            return AuctionFailure(bid=award.bid, error=ErrorInfo(code="BROKEN", message="no wheels"))
        if does == "declines":
            return AuctionRefusal(reason_code="OVERLOADED")
        return None if does == "is silent" else AuctionResult(bid=award.bid, output={})

    return app


async def messages(bus: TestBus, topic: str) -> AsyncIterator[tuple[Message, int]]:
    async for record in scan_topic(bus.transport, topic):
        yield sealing.parse(record.value), record.timestamp_ms


async def best_first(bus: TestBus, group: str) -> dict[str, list[str]]:
    """By goal, the seals of the bids in the order of their worth, from what is in the log alone."""
    calls: dict[str, tuple[AuctionCall, int]] = {}
    bids: defaultdict[str, list[SeenBid]] = defaultdict(list)
    async for message, _ in messages(bus, "agents.auction.call"):
        call = msgspec.json.decode(message.data, type=AuctionCall)
        calls[message.message_id] = call, parse_ms(message.metadata.timestamp) or 0
    async for message, append_ms in messages(bus, mailbox_topic("agents", group)):
        if message.message_type == "auction.bid" and (known := calls.get(message.metadata.correlation_id or "")):
            said = msgspec.json.decode(message.data, type=AuctionBid)
            seen = SeenBid(
                seal=message.seal,
                agent=message.metadata.sender.id or "",
                amount=said.cost.amount,
                currency=said.cost.currency,
                confidence=said.confidence,
                duration_s=said.duration_s,
                append_ms=append_ms,
            )
            if fault_of(seen, known[0], called_ms=known[1]) is None:
                bids[known[0].goal].append(seen)
    return {call.goal: [bid.seal for bid in ranked(bids[call.goal], call)] for call, _ in calls.values()}


async def hold(numbers: range) -> tuple[int, int]:
    """Hold the auctions *numbers*; return how many delivered, and how often an award went on to another."""
    manager = App("manager@svc", types=[AuctionCall, AuctionAward, Ended])
    manager.add(Shipping)
    async with manager.test(*map(carrier, CARRIERS)) as bus:
        for number in numbers:
            await bus.publish(Job(number=number))
        for _ in range(40):
            await bus.advance(10)
        ended = {said.number: said for said in bus.sent(Ended)}
        assert sorted(said.number for said in bus.sent(Ended)) == list(numbers)
        assert await bus.database.fetch("SELECT * FROM sealbus_waits") == []
        awards: defaultdict[str, list[str]] = defaultdict(list)
        winners: defaultdict[str, list[str]] = defaultdict(list)
        async for message, _ in messages(bus, "agents.auction.award"):
            award = msgspec.json.decode(message.data, type=AuctionAward)
            assert award.rank == len(awards[award.goal]) + 1
            awards[award.goal].append(award.bid)
            recipient: Any = message.metadata.recipient
            winners[award.goal].append(recipient.id)
        worth = await best_first(bus, manager.group)
        for number in numbers:
            goal, end = str(number), ended[number]
            # Awarded in the order that anybody can work out, and not past whoever has delivered.
            assert awards[goal] == worth[goal][: len(awards[goal])]
            does = [WORK[lot(goal, name, "work") % len(WORK)] for name in winners[goal]]
            assert (end.how, end.by) == (("delivered", winners[goal][-1]) if "works" in does else ("unsold", "")), (
                number,
                does,
            )
            assert "works" not in does[:-1]
        return sum(end.how == "delivered" for end in ended.values()), sum(
            len(each) - 1 for each in awards.values() if each
        )


@pytest.mark.medium
async def test_every_auction_ends_with_the_best_who_delivers() -> None:
    delivered, went_on = await hold(range(40))
    assert 0 < delivered < 40
    assert went_on > 0


@pytest.mark.slow  # a thousand
@pytest.mark.timeout(600)
async def test_a_thousand_auctions_end_with_the_best_who_delivers() -> None:
    for begin in range(1_000, 2_000, 100):
        await hold(range(begin, begin + 100))
