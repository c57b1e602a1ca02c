"""Sagas: processes that outlive their messages, as an application sees them."""

from __future__ import annotations

import msgspec
import pytest

from consumers.delivery.inbox.sqlite import SqliteInbox
from consumers.delivery.inbox.sqlite.table import Table
from consumers.delivery.inbox.sqlite.transaction import SqliteTransaction
from producers.sealing.seal_request import SealRequest
from sealbus import App, Outgoing, Reject
from sealbus.errors import ConfigurationError
from sealbus.sagas import Saga, SagaContext, on_answer, on_failure, on_message, on_start, on_timer, upgrade_state
from tests.consumers.processes.sagas.saga_types import Cancelled, Offer, Order, Paid, Quote, QuoteRequest
from tests.kit import handling


class BuyingState(msgspec.Struct):
    seen: list[str] = []


class Buying(Saga[BuyingState], version="1.0.0"):
    @on_start(Order, key="/data/order_id")
    async def placed(self, order: Order, context: SagaContext) -> None:
        self.state.seen.append(order.order_id)
        context.ask("price", QuoteRequest(sku="tea"), to=["a@svc", "b@svc"], answer_by_s=60)

    @on_answer("price", Quote)
    async def priced(self, quote: Quote, context: SagaContext) -> None:
        context.answer(Offer(cents=quote.cents))
        context.finish()

    @on_failure("price")
    async def unpriced(self, context: SagaContext) -> None:
        assert context.failure is not None
        context.answer(Offer(cents=0, note=f"{context.failure.kind} {context.failure.reason}".strip()))
        context.finish()

    @on_message(Cancelled, key="/data/order_id")
    async def cancelled(self, _: Cancelled, context: SagaContext) -> None:
        context.finish()


def shop(saga: type[Saga[BuyingState]] = Buying) -> App:
    app = App("shop@svc", types=[QuoteRequest, Offer])
    app.add(saga)
    return app


def seller(name: str, answer: Quote | Reject) -> App:
    app = App(name)

    @app.on(QuoteRequest)
    async def quote(_: QuoteRequest) -> Quote:
        if isinstance(answer, Reject):
            raise answer
        return answer

    return app


async def test_an_answer_reaches_the_process_that_asked() -> None:
    async with shop().test(seller("a@svc", Quote(cents=5))) as bus:
        assert (await bus.request(Order(order_id="1"), Offer, timeout_s=100)).cents == 5
        bus.assert_all_handled()


async def test_steps_share_the_transactions_of_their_store(monkeypatch: pytest.MonkeyPatch) -> None:
    """A transaction of its own keeps every other step, claim and result waiting until the file is synchronised."""
    commit, begin = Table.commit, SqliteInbox.begin
    counts = {"commits": 0, "own": 0}

    def counted_commit(table: Table) -> None:
        counts["commits"] += 1
        commit(table)

    async def counted_begin(inbox: SqliteInbox) -> SqliteTransaction:
        counts["own"] += 1
        return await begin(inbox)

    async with shop().test(seller("a@svc", Quote(cents=5))) as bus:
        monkeypatch.setattr(Table, "commit", counted_commit)
        monkeypatch.setattr(SqliteInbox, "begin", counted_begin)
        for number in range(40):
            await bus.publish(Order(order_id=f"{number}"))
        await bus.settle()
        assert len(bus.sent(Offer)) == 40
        ((steps,),) = await bus.database.fetch("SELECT sum(version) FROM sealbus_processes")
    assert steps == 80
    assert counts["own"] == 0
    assert counts["commits"] < steps, counts


async def test_the_next_seller_is_asked_when_the_first_rejects() -> None:
    async with shop().test(seller("a@svc", Reject("sold out")), seller("b@svc", Quote(cents=7))) as bus:
        assert (await bus.request(Order(order_id="1"), Offer, timeout_s=100)).cents == 7


async def test_the_next_is_asked_when_the_first_is_silent_for_its_share_of_the_time() -> None:
    async with shop().test(seller("b@svc", Quote(cents=9))) as bus:
        await bus.publish(Order(order_id="1"))
        await bus.advance(39)
        assert not bus.sent(Offer)
        await bus.advance(2)
        assert bus.sent(Offer) == [Offer(cents=9)]


async def test_missing_answers_of_all_sellers_are_reported() -> None:
    async with shop().test() as bus:
        await bus.publish(Order(order_id="1"))
        await bus.advance(200)
        assert bus.sent(Offer) == [Offer(cents=0, note="silent")]


async def test_refusals_of_all_sellers_are_reported_with_the_reason() -> None:
    async with shop().test(seller("a@svc", Reject("no")), seller("b@svc", Reject("no"))) as bus:
        assert (await bus.request(Order(order_id="1"), Offer, timeout_s=100)).note == "refused rejected"


async def test_a_message_before_its_process_waits() -> None:
    async with shop().test() as bus:
        await bus.publish(Cancelled(order_id="1"))
        await bus.settle()
        await bus.publish(Order(order_id="1"))
        await bus.advance(10)
        assert not bus.dead_letters
        assert await bus.database.fetch("SELECT status FROM sealbus_processes") == [("finished",)]


async def test_a_message_without_its_process_is_dead_lettered_in_the_end() -> None:
    async with shop().test() as bus:
        await bus.publish(Cancelled(order_id="1"), ttl_s=60)
        await bus.advance(55)
        assert not bus.dead_letters
        await bus.advance(10)
        assert [letter.reason for letter in bus.dead_letters] == ["invalid_transition"]


async def test_a_message_after_the_end_of_its_process_is_refused() -> None:
    async with shop().test(seller("a@svc", Quote(cents=5))) as bus:
        await bus.request(Order(order_id="1"), Offer, timeout_s=100)
        await bus.publish(Cancelled(order_id="1"))
        await bus.settle()
        assert [letter.reason for letter in bus.dead_letters] == ["conversation_closed"]


async def test_a_second_opener_is_refused() -> None:
    async with shop().test() as bus:
        await bus.publish(Order(order_id="1"))
        await bus.publish(Order(order_id="1"))
        await bus.settle()
        assert [letter.reason for letter in bus.dead_letters] == ["invalid_transition"]


async def test_another_agent_cannot_move_a_process() -> None:
    async with shop().test() as bus:
        await bus.publish(Order(order_id="1"))
        await bus.settle()
        await bus.as_agent("stranger@svc").publish(Cancelled(order_id="1"))
        await bus.settle()
        assert [letter.reason for letter in bus.dead_letters] == ["unauthorized"]
        assert await bus.database.fetch("SELECT status FROM sealbus_processes") == [("open",)]


async def test_an_answer_from_another_agent_does_not_end_the_request() -> None:
    async with shop().test() as bus:
        await bus.publish(Order(order_id="1"))
        await bus.settle()
        (asked,) = bus.messages(QuoteRequest)
        assert asked.routing.reply_to == f"agents._mail.{bus.workers[0].app.group}"
        forger = bus.as_agent("forger@svc")
        forged = forger.publisher.sealer.seal(
            Outgoing(Quote(cents=1)), SealRequest(cause=asked, answers=True, topic=asked.routing.reply_to)
        )
        await forger.publisher.send(forged)
        await bus.settle()
        assert [letter.reason for letter in bus.dead_letters] == ["proof_invalid"]
        assert not bus.sent(Offer)


async def test_an_answer_that_comes_after_the_end_is_passed_over() -> None:
    async with shop().test() as bus:
        await bus.publish(Order(order_id="1"))
        await bus.settle()
        (asked,) = bus.messages(QuoteRequest)
        await bus.advance(200)
        late = bus.as_agent("a@svc")
        await late.publisher.send(
            late.publisher.sealer.seal(
                Outgoing(Quote(cents=1)), SealRequest(cause=asked, answers=True, topic=asked.routing.reply_to)
            )
        )
        await bus.settle()
        assert bus.sent(Offer) == [Offer(cents=0, note="silent")]
        bus.assert_all_handled()


# Timers.


class Reminding(Saga[BuyingState], version="1.0.0"):
    @on_start(Order)
    async def placed(self, _: Order, context: SagaContext) -> None:
        context.timer("reminder", 3600)

    @on_timer("reminder")
    async def remind(self, context: SagaContext) -> None:
        self.state.seen.append("reminded")
        context.send(Offer(cents=len(self.state.seen)))
        if len(self.state.seen) < 3:
            context.timer("reminder", 60)


async def test_a_timer_is_due_once_each_time_it_is_armed_and_never_early() -> None:
    async with shop(Reminding).test() as bus:
        await bus.publish(Order(order_id="1"))
        await bus.advance(3599)
        assert not bus.sent(Offer)
        await bus.advance(2)
        assert len(bus.sent(Offer)) == 1
        await bus.advance(86_400)
        assert [offer.cents for offer in bus.sent(Offer)] == [1, 2, 3]
        assert await bus.database.fetch("SELECT * FROM sealbus_waits") == []


# Several sagas on one type.


class Noting(Saga[BuyingState], version="1.0.0"):
    @on_start(Order, key="/data/order_id")
    async def placed(self, order: Order, context: SagaContext) -> None:
        context.send(Paid(order_id=order.order_id))


async def test_two_sagas_share_a_type_in_one_step() -> None:
    app = shop()
    app.add(Noting)
    async with app.test() as bus:
        await bus.publish(Order(order_id="1"))
        await bus.settle()
        assert bus.sent(Paid) == [Paid(order_id="1")]
        rows = await bus.database.fetch("SELECT saga FROM sealbus_processes ORDER BY saga")
        assert rows == [("buying",), ("noting",)]


# What is refused when it is declared.


def test_a_request_without_failure_method_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"no method handles a missing answer to 'price'"):

        class Deaf(Saga[BuyingState], version="1.0.0"):
            @on_start(Order)
            async def placed(self, _: Order, context: SagaContext) -> None: ...

            @on_answer("price", Quote)
            async def priced(self, quote: Quote, context: SagaContext) -> None: ...


def test_a_type_has_a_handler_or_a_saga() -> None:
    app = shop()
    with pytest.raises(ConfigurationError, match="a saga and a handler cannot share a type"):
        app.on(Order)
    app = handling(App("shop@svc"), Order)
    with pytest.raises(ConfigurationError, match=r"order\.placed has a handler"):
        app.add(Buying)


async def test_an_app_with_a_saga_needs_an_inbox() -> None:
    from bus.clock import SystemClock
    from bus.settings.loading import load
    from bus.telemetry.metrics import Metrics
    from bus.transports import open_transport
    from consumers.worker.host import Host

    settings = load(flags={"inbox.url": "off", "bus.url": "memory://"}, env={}, file=None).settings
    clock = SystemClock()
    transport = open_transport("memory://", clock=clock)
    host = Host(shop().declaration, transport, settings, clock=clock, metrics=Metrics())
    with pytest.raises(ConfigurationError, match="has processes"):
        await host.start()
    await host.close()
    await transport.close()


# Shapes.


class Newer(Saga[BuyingState], version="2.0.0", name="buying"):
    @on_start(Order, key="/data/order_id")
    async def placed(self, _: Order, context: SagaContext) -> None: ...

    @on_message(Cancelled, key="/data/order_id")
    async def cancelled(self, _: Cancelled, context: SagaContext) -> None:
        context.send(Offer(cents=0, note=",".join(self.state.seen)))

    @upgrade_state("1.0.0", "2.0.0")
    @staticmethod
    def with_more(state: dict[str, object]) -> dict[str, object]:
        return {**state, "seen": ["upcast", *state["seen"]]}  # type: ignore[misc]


async def test_a_state_of_an_older_version_is_upcast_and_a_newer_one_is_left_alone() -> None:
    async with shop(Newer).test() as bus:
        await bus.publish(Order(order_id="1"))
        await bus.settle()
        await bus.database.execute(
            "UPDATE sealbus_processes SET shape = '1.0.0', state = $1", b'{"data":{"seen":["x"]}}'
        )
        await bus.publish(Cancelled(order_id="1"))
        await bus.settle()
        assert [offer.note for offer in bus.sent(Offer)] == ["upcast,x"]
        await bus.database.execute("UPDATE sealbus_processes SET shape = '3.0.0'")
        await bus.publish(Cancelled(order_id="1"))
        await bus.advance(30)
        assert not bus.dead_letters
        assert len(bus.sent(Offer)) == 1
        await bus.database.execute("UPDATE sealbus_processes SET shape = '2.0.0'")
        await bus.advance(10)
        assert len(bus.sent(Offer)) == 2
