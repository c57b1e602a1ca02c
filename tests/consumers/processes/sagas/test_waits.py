"""Waits: each is told until its process hears of it, by code that knows it; nothing else moves or ends one."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from bus.topics.names import mailbox_topic
from bus.transports.base import NewRecord
from bus.vocabulary.bus import WaitDue
from bus.vocabulary.error import ErrorReported
from consumers.app.testing import TestBus
from consumers.processes.sagas.store import FIRST_AGAIN_MS, MAX_AGAIN_MS, again_ms
from producers.sealing.seal_request import SealRequest
from sealbus import App, Outgoing
from sealbus.sagas import Saga, SagaContext, on_answer, on_failure, on_message, on_start, on_timer
from tests.consumers.processes.sagas.saga_types import Cancelled, Offer, Order, Quote, QuoteRequest

DAY_S = 86_400


class Seen(msgspec.Struct):
    what: list[str] = []


class Faults:
    """What the code of a saga does wrong for now."""

    raises = False


class Reminding(Saga[Seen], version="1.0.0"):
    @on_start(Order, key="/data/order_id")
    async def placed(self, order: Order, context: SagaContext) -> None:
        context.timer("remind", 60)
        context.ask("price", QuoteRequest(sku="tea"), to="a@svc", answer_by_s=5000)

    @on_timer("remind")
    async def reminded(self, context: SagaContext) -> None:
        if Faults.raises:
            raise ValueError("a fault of the code")
        context.send(Offer(cents=1, note="reminded"))

    @on_answer("price", Quote)
    async def priced(self, quote: Quote, context: SagaContext) -> None:
        context.send(Offer(cents=quote.cents, note="priced"))

    @on_failure("price")
    async def unpriced(self, context: SagaContext) -> None:
        context.send(Offer(cents=0, note="unpriced"))

    @on_message(Cancelled, key="/data/order_id")
    async def over(self, _: Cancelled, context: SagaContext) -> None:
        context.finish()


@pytest.fixture(autouse=True)
def sound() -> None:
    Faults.raises = False


def shop() -> App:
    app = App("shop@svc", types=[QuoteRequest, Offer])
    app.add(Reminding)
    return app


def notes(bus: TestBus) -> list[str]:
    return [offer.note for offer in bus.sent(Offer)]


async def renamed(bus: TestBus, name: str, other: str) -> None:
    """As if code that calls it *other* had armed it."""
    await bus.database.execute("UPDATE sealbus_waits SET name = $2 WHERE name = $1", name, other)


async def waits(bus: TestBus) -> list[str]:
    return [row[0] for row in await bus.database.fetch("SELECT name FROM sealbus_waits ORDER BY name")]


# Code of another version.


async def test_a_timer_of_newer_code_is_left_alone_until_that_code_hears_of_it() -> None:
    async with shop().test() as bus:
        await bus.publish(Order(order_id="1"))
        await bus.settle()
        await renamed(bus, "remind", "escalate")
        await bus.advance(3 * 3600)
        assert "escalate" in await waits(bus)
        assert (bus.dead_letters, notes(bus)) == ([], ["unpriced"])
        await renamed(bus, "escalate", "remind")
        await bus.advance(DAY_S)
        assert notes(bus).count("reminded") == 1
        assert await waits(bus) == []


async def told(bus: TestBus, answer: Any) -> None:
    """Have a@svc answer what it was asked with *answer*."""
    (asked,) = bus.messages(QuoteRequest)
    seller = bus.as_agent("a@svc").publisher
    draft = Outgoing(answer, ttl_s=2 * DAY_S)
    await seller.send(seller.sealer.seal(draft, SealRequest(cause=asked, answers=True, topic=asked.routing.reply_to)))


REFUSED = ErrorReported(
    error_code="rejected",
    error_message="no",
    source_agent="a@svc",
    timestamp=datetime(2026, 1, 1, tzinfo=UTC),
    error_class="error.semantic",
    retryable=False,
)


@pytest.mark.parametrize("answer", [Quote(cents=5), REFUSED, None], ids=["answered", "refused", "silent"])
async def test_an_ask_of_newer_code_is_left_alone_whatever_comes_of_it(answer: Any) -> None:
    async with shop().test() as bus:
        await bus.publish(Order(order_id="1"))
        await bus.settle()
        await renamed(bus, "price", "offer")
        if answer is not None:
            await told(bus, answer)
        await bus.advance(2 * 3600)
        assert (await waits(bus), notes(bus), bus.dead_letters) == (["offer"], ["reminded"], [])
        await renamed(bus, "offer", "price")
        await bus.advance(DAY_S)
        assert notes(bus)[1:] == (["priced"] if isinstance(answer, Quote) else ["unpriced"])
        assert await waits(bus) == []


@pytest.mark.parametrize("answer", [Quote(cents=5), REFUSED, None], ids=["answered", "refused", "silent"])
async def test_a_state_of_a_later_version_is_left_alone_whatever_comes(answer: Any) -> None:
    async with shop().test() as bus:
        await bus.publish(Order(order_id="1"))
        await bus.settle()
        await bus.database.execute("UPDATE sealbus_processes SET shape = '2.0.0'")
        if answer is not None:
            await told(bus, answer)
        await bus.publish(Cancelled(order_id="1"), ttl_s=2 * DAY_S)
        await bus.advance(2 * 3600)
        assert (await waits(bus), notes(bus), bus.dead_letters) == (["price", "remind"], [], [])
        await bus.database.execute("UPDATE sealbus_processes SET shape = '1.0.0'")
        await bus.advance(DAY_S)
        assert await waits(bus) == []


async def test_an_answer_that_this_code_does_not_take_waits_for_code_that_does() -> None:
    async with shop().test() as bus:
        await bus.publish(Order(order_id="1"))
        await bus.settle()
        await renamed(bus, "price", "offer")
        await told(bus, Quote(cents=5))
        await bus.advance(600)
        await renamed(bus, "offer", "price")
        await bus.advance(600)
        assert notes(bus) == ["reminded", "priced"]


# Nudges.


async def test_a_wait_with_a_failing_step_is_retried_with_growing_delay() -> None:
    async with shop().test() as bus:
        Faults.raises = True
        await bus.publish(Order(order_id="1"))
        await bus.advance(DAY_S)
        letters = [letter for letter in bus.dead_letters if letter.message_type == "wait.due"]
        assert 4 <= len(letters) <= 8
        assert len({message.message_id for message in bus.messages(WaitDue)}) >= len(letters)
        Faults.raises = False
        await bus.advance(DAY_S + 600)
        assert notes(bus).count("reminded") == 1
        assert await waits(bus) == []


async def test_deaths_at_one_nudge_are_nothing_to_the_next() -> None:
    async with shop().test() as bus:
        Faults.raises = True
        await bus.publish(Order(order_id="1"))
        await bus.advance(600)
        Faults.raises = False
        # Whatever the inbox knows by now, it says that these have ended their workers.
        await bus.database.execute("UPDATE sealbus_inbox SET state = 'free', owner = 0, deaths = 3")
        await bus.advance(3 * 3600)
        assert "reminded" in notes(bus)


def test_nudges_come_ever_later_but_every_day() -> None:
    pauses = [again_ms(number) for number in range(1, 40)]
    assert pauses[0] == FIRST_AGAIN_MS
    assert pauses == sorted(pauses)
    assert pauses[-1] == MAX_AGAIN_MS
    assert sum(pauses[:8]) < 2 * MAX_AGAIN_MS


async def nudged(bus: TestBus, wait: str, message_id: str) -> None:
    """A forged wait.due, which anybody can write where nobody has a key."""
    group = bus.workers[0].app.group
    forger = bus.as_agent("shop@svc").publisher
    forged = WaitDue(wait=wait, name="remind", due_at=datetime(2026, 1, 1, tzinfo=UTC))
    draft = Outgoing(forged, to="shop@svc", message_id=message_id)
    await forger.send(forger.sealer.seal(draft, SealRequest(topic=mailbox_topic("agents", group))))


async def test_a_forged_nudge_before_and_after_its_process_leaves_no_trace() -> None:
    async with shop().test() as bus:
        await nudged(bus, "t-of-nothing", "due-0")
        await bus.publish(Order(order_id="1"))
        await bus.settle()
        ((wait,),) = await bus.database.fetch("SELECT id FROM sealbus_waits WHERE name = 'remind'")
        before = await bus.database.fetch("SELECT count(*) FROM sealbus_inbox")
        for number in range(3):
            await nudged(bus, wait, f"due-{number}")
        await bus.settle()
        assert await bus.database.fetch("SELECT count(*) FROM sealbus_inbox") == before
        assert notes(bus) == []
        await bus.advance(62)
        assert notes(bus) == ["reminded"]
        bus.assert_all_handled()


async def test_the_id_of_a_timer_message_is_unpredictable() -> None:
    async def called() -> set[str]:
        async with shop().test() as bus:
            await bus.publish(Order(order_id="1"), message_id="01a2170d-dd9a-7c3d-87cb-e58d0291e8a3")
            await bus.advance(62)
            return {message.message_id for message in bus.messages(WaitDue)}

    assert not await called() & await called()


async def test_a_repeated_record_of_the_mailbox_sends_nothing_again() -> None:
    async with shop().test() as bus:
        await bus.publish(Order(order_id="1"))
        await bus.settle()
        await told(bus, Quote(cents=5))
        await bus.advance(62)
        mailbox = mailbox_topic("agents", bus.workers[0].app.group)
        before = len(bus.sent(Offer))
        records = await bus.transport.read(mailbox, 0, 0, max_records=100, max_bytes=1 << 20)
        for _ in range(5):
            copies = [NewRecord(mailbox, each.key, each.value, each.headers, 0) for each in records]
            await bus.transport.append(copies, timeout_s=5)
        await bus.settle()
        assert len(bus.sent(Offer)) == before
        assert bus.dead_letters == []
