"""Whose process a key means, how many one sender may have, and how each has ended."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from bus.settings.loading import load
from bus.vocabulary.error import ErrorReported
from bus.vocabulary.task import TaskCancel
from consumers.app.testing import TestBus
from consumers.processes.sagas.process import Process, ending_of
from producers.sealing.seal_request import SealRequest
from sealbus import App, Outgoing, RequestFailed, payload
from sealbus.errors import ConfigurationError
from sealbus.sagas import Saga, SagaContext, on_answer, on_cancel, on_failure, on_message, on_start, on_timer
from tests.consumers.processes.sagas.saga_types import Cancelled, Offer, Order, Paid, Quote, QuoteRequest
from tests.kit import handling


class Seen(msgspec.Struct):
    what: str = ""


class Ordering(Saga[Seen], version="1.0.0"):
    @on_start(Order, key="/data/order_id")
    async def placed(self, order: Order, context: SagaContext) -> None:
        self.state.what = context.message.metadata.sender.id or ""
        context.ask("price", QuoteRequest(sku="tea"), to="helper@svc", answer_by_s=600)

    @on_answer("price", Quote)
    async def priced(self, quote: Quote, context: SagaContext) -> None:
        context.finish()

    @on_failure("price")
    async def unpriced(self, context: SagaContext) -> None:
        context.finish()

    @on_message(Paid, key="/data/order_id", missing="dead")
    async def paid(self, _: Paid, context: SagaContext) -> None:
        context.send(Offer(cents=1, note=f"paid to {self.state.what}"))

    @on_message(Cancelled, key="/data/order_id", admits="anyone", missing="dead")
    async def over(self, _: Cancelled, context: SagaContext) -> None:
        context.finish("failed", "called off")

    @on_cancel
    async def undone(self, context: SagaContext) -> None:
        context.send(Offer(cents=0, note="undone"))


def shop(*sagas: type[Saga[Any]]) -> App:
    app = App("shop@svc", types=[QuoteRequest, Offer])
    for saga in sagas or (Ordering,):
        app.add(saga)
    return app


def notes(bus: TestBus) -> list[str]:
    return [offer.note for offer in bus.sent(Offer)]


async def processes(bus: TestBus) -> list[Process]:
    steps = bus.workers[0].steps
    assert steps is not None
    return sorted(await steps.store.processes(), key=lambda process: process.sender)


async def outcomes(bus: TestBus) -> list[tuple[str, str, str]]:
    found = [ending_of(process) for process in await processes(bus)]
    return [("", "", "") if each is None else (each.outcome, each.reason, each.where) for each in found]


# Whose key.


async def test_the_first_opener_does_not_own_another_senders_key() -> None:
    async with shop().test() as bus:
        await bus.as_agent("evil@svc").publish(Order(order_id="17"))
        await bus.as_agent("buyer@svc").publish(Order(order_id="17"))
        await bus.settle()
        await bus.as_agent("buyer@svc").publish(Paid(order_id="17"))
        await bus.settle()
        assert [process.sender for process in await processes(bus)] == ["buyer@svc", "evil@svc"]
        assert (notes(bus), bus.dead_letters) == (["paid to buyer@svc"], [])


async def test_a_party_finds_the_only_process_that_knows_it() -> None:
    async with shop().test() as bus:
        await bus.as_agent("buyer@svc").publish(Order(order_id="17"))
        await bus.settle()
        await bus.as_agent("helper@svc").publish(Paid(order_id="17"))
        await bus.as_agent("stranger@svc").publish(Paid(order_id="17"))
        await bus.settle()
        assert notes(bus) == ["paid to buyer@svc"]
        assert [letter.reason for letter in bus.dead_letters] == ["unauthorized"]


async def test_an_event_that_could_mean_several_moves_none() -> None:
    async with shop().test() as bus:
        for buyer in ("a@svc", "b@svc"):
            await bus.as_agent(buyer).publish(Order(order_id="17"))
        await bus.settle()
        await bus.as_agent("helper@svc").publish(Paid(order_id="17"))
        await bus.as_agent("anyone@svc").publish(Cancelled(order_id="17"))
        await bus.settle()
        assert [letter.reason for letter in bus.dead_letters] == ["invalid_transition"] * 2
        assert {process.status for process in await processes(bus)} == {"open"}
        await bus.as_agent("a@svc").publish(Cancelled(order_id="17"))
        await bus.settle()
        assert [process.status for process in await processes(bus)] == ["finished", "open"]


async def test_a_process_that_is_over_is_over_for_others_too() -> None:
    async with shop().test() as bus:
        await bus.as_agent("a@svc").publish(Order(order_id="17"))
        await bus.settle()
        for sender in ("a@svc", "b@svc"):
            await bus.as_agent(sender).publish(Cancelled(order_id="17"))
            await bus.settle()
        assert [letter.reason for letter in bus.dead_letters] == ["conversation_closed"]


class Sharing(Saga[Seen], version="1.0.0"):
    @on_start(Order, key="/data/order_id", shared_key=True)
    async def placed(self, order: Order, context: SagaContext) -> None: ...

    @on_message(Order, key="/data/order_id", admits="anyone")
    async def again(self, order: Order, context: SagaContext) -> None:
        context.send(Offer(cents=2, note=context.message.metadata.sender.id or ""))


async def test_a_shared_key_means_one_process_for_all() -> None:
    async with shop(Sharing).test() as bus:
        for sender in ("a@svc", "b@svc"):
            await bus.as_agent(sender).publish(Order(order_id="17"))
            await bus.settle()
        assert (len(await processes(bus)), notes(bus)) == (1, ["b@svc"])


def test_a_key_is_shared_by_all_starters_or_by_none() -> None:
    with pytest.raises(ConfigurationError, match="shared_key=True needs key"):

        class Keyless(Saga[Seen], version="1.0.0"):
            @on_start(Order, shared_key=True)
            async def placed(self, order: Order, context: SagaContext) -> None: ...

    with pytest.raises(ConfigurationError, match="shares its key and another does not"):

        class Both(Saga[Seen], version="1.0.0"):
            @on_start(Order, key="/data/order_id", shared_key=True)
            async def placed(self, order: Order, context: SagaContext) -> None: ...

            @on_start(Paid, key="/data/order_id")
            async def paid(self, paid: Paid, context: SagaContext) -> None: ...


# How many.


async def counted(bus: TestBus) -> None:
    """What each worker does every ten seconds or so."""
    sweeper = bus.workers[0].sweeper
    assert sweeper is not None
    await sweeper.count()


async def test_what_a_sender_opens_beyond_its_share_waits_until_one_has_ended() -> None:
    settings = load(flags={"worker.max_processes": 3}, env={}, file=None).settings
    async with shop().test(settings=settings) as bus:
        for number in range(3):
            await bus.as_agent("a@svc").publish(Order(order_id=str(number)))
        await bus.settle()
        await counted(bus)
        await bus.as_agent("a@svc").publish(Order(order_id="3"))
        await bus.as_agent("b@svc").publish(Order(order_id="3"))
        await bus.advance(60)
        assert [process.sender for process in await processes(bus)] == ["a@svc"] * 3 + ["b@svc"]
        await bus.as_agent("a@svc").publish(Cancelled(order_id="0"))
        await bus.settle()
        await counted(bus)
        await bus.advance(400)
        assert [process.sender for process in await processes(bus)] == ["a@svc"] * 4 + ["b@svc"]
        assert bus.dead_letters == []


# Cancelling.


@pytest.mark.medium
async def test_the_owners_cancel_finds_its_process_among_any_number_of_decoys() -> None:
    async with shop().test() as bus:
        await bus.as_agent("owner@svc").publish(Order(order_id="mine"), task_id="t-1")
        decoy = bus.as_agent("decoy@svc")
        for number in range(1_100):
            await decoy.publish(Order(order_id=f"d-{number}"), task_id="t-1")
        await bus.settle()
        await bus.as_agent("owner@svc").publish(TaskCancel(reason_code="NOT_NEEDED"), task_id="t-1")
        await bus.settle()
        ended = await bus.database.fetch("SELECT sender FROM sealbus_processes WHERE status = 'finished'")
        assert ended == [("owner@svc",)]
        assert notes(bus) == ["undone"]


async def asked_to_cancel(bus: TestBus, why: str) -> None:
    """What `sealbus workflow cancel` does."""
    steps = bus.workers[0].steps
    assert steps is not None
    (process,) = await processes(bus)
    assert await steps.store.ask_to_cancel(process, why)
    assert not await steps.store.ask_to_cancel(process, why)


async def test_a_process_that_an_operator_cancels_runs_its_method_and_tells_its_requester() -> None:
    async with shop().test() as bus:
        asking = bus.as_agent("buyer@svc")

        async def ask() -> str:
            with pytest.raises(RequestFailed) as failure:
                await asking.request(Order(order_id="1"), Offer, timeout_s=500)
            return str(failure.value)

        import asyncio

        waiting = asyncio.ensure_future(ask())
        await bus.advance(1)
        await asked_to_cancel(bus, "ordered twice")
        await bus.advance(5)
        assert "ordered twice" in await waiting
        assert notes(bus) == ["undone"]
        assert await outcomes(bus) == [("cancelled", "ordered twice", "undone")]
        assert [cancel.reason_code for cancel in bus.sent(TaskCancel)] == ["CANCELLED"]
        assert await bus.database.fetch("SELECT count(*) FROM sealbus_waits") == [(0,)]


async def test_a_process_of_a_saga_that_no_worker_knows_is_cancelled_when_one_does() -> None:
    async with shop().test() as bus:
        await bus.publish(Order(order_id="1"))
        await bus.settle()
        await bus.database.execute("UPDATE sealbus_processes SET saga = 'newer'")
        await asked_to_cancel(bus, "ordered twice")
        await bus.advance(60)
        assert [process.status for process in await processes(bus)] == ["open"]
        await bus.database.execute("UPDATE sealbus_processes SET saga = 'ordering'")
        await bus.advance(600)
        assert [process.status for process in await processes(bus)] == ["finished"]


# Endings.


async def told(bus: TestBus, answer: Any) -> None:
    (asked,) = bus.messages(QuoteRequest)
    helper = bus.as_agent("helper@svc").publisher
    await helper.send(
        helper.sealer.seal(Outgoing(answer), SealRequest(cause=asked, answers=True, topic=asked.routing.reply_to))
    )


async def test_a_process_that_just_finishes_is_completed() -> None:
    async with shop().test() as bus:
        await bus.publish(Order(order_id="1"))
        await bus.settle()
        await told(bus, Quote(cents=1))
        await bus.settle()
        assert await outcomes(bus) == [("completed", "", "priced")]


async def test_a_process_that_ends_with_silence_has_timed_out() -> None:
    async with shop().test() as bus:
        await bus.publish(Order(order_id="1"))
        await bus.advance(700)
        assert await outcomes(bus) == [("timed_out", "price: silent", "unpriced")]


async def test_a_process_that_ends_with_a_refusal_has_failed() -> None:
    helper = handling(App("helper@svc"), QuoteRequest, PermissionError("no"))
    async with shop().test(helper) as bus:
        await bus.publish(Order(order_id="1"))
        await bus.advance(300)
        ((outcome, reason, where),) = await outcomes(bus)
        assert (outcome, where) == ("failed", "unpriced")
        assert reason.startswith("price: died")
        assert bus.sent(ErrorReported)


async def test_the_end_of_a_process_is_counted_and_stored_with_its_reason() -> None:
    async with shop().test() as bus:
        await bus.publish(Order(order_id="1"))
        await bus.settle()
        await bus.publish(Cancelled(order_id="1"))
        await bus.settle()
        assert await outcomes(bus) == [("failed", "called off", "over")]
        labels = {"group": bus.workers[0].app.group, "saga": "ordering", "outcome": "failed"}
        metrics = bus.publisher.metrics
        assert metrics.registry.get_sample_value("sealbus_processes_ended_total", labels) == 1
        (process,) = await processes(bus)
        assert process.version == 2


@payload("owners.tick", version="1.0.0")
class Tick(msgspec.Struct, frozen=True):
    pass


def test_an_outcome_that_is_none_is_refused_where_it_is_written() -> None:
    from bus.errors import ContractError
    from consumers.processes.sagas.context import SagaContext as Written

    context = Written.__new__(Written)
    context.over = False
    context._done = type("Done", (), {"ending": None})()
    with pytest.raises(ContractError, match="is not an outcome"):
        context.finish("finished")


def test_the_name_of_the_buss_own_wait_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="is the name of a wait of the bus"):

        class Own(Saga[Seen], version="1.0.0"):
            @on_start(Tick)
            async def tick(self, _: Tick, context: SagaContext) -> None: ...

            @on_timer("sealbus!cancel")
            async def over(self, context: SagaContext) -> None: ...
