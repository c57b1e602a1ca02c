"""What `app.test()` offers a test: several apps, agents that it plays, the inbox's database, and why something died."""

from __future__ import annotations

import time
import traceback

import msgspec
import pytest
from structlog.testing import capture_logs

from sealbus import App, Context, DependencyDown, RequestFailed, payload
from sealbus.errors import ConfigurationError
from tests.kit import Order


@payload("quote.asked")
class Ask(msgspec.Struct, frozen=True, kw_only=True):
    sku: str


@payload("quote.given")
class Quote(msgspec.Struct, frozen=True, kw_only=True):
    cents: int


@payload("order.booked")
class Booked(msgspec.Struct, frozen=True, kw_only=True):
    cents: int


def shop() -> App:
    app = App("shop@svc")

    @app.on(Order)
    async def book(order: Order, context: Context) -> Booked:
        quote = await context.request(Ask(sku=order.sku), Quote)
        return Booked(cents=quote.cents)

    return app


def pricing() -> App:
    app = App("pricing@svc")

    @app.on(Ask)
    async def quote(ask: Ask) -> Quote:
        return Quote(cents=len(ask.sku) * 100)

    return app


async def test_several_apps_run_in_one_test_and_their_answers_are_seen() -> None:
    async with shop().test(pricing()) as bus:
        await bus.publish(Order())
        await bus.settle()
        bus.assert_all_handled()
        assert (bus.sent(Booked), bus.sent(Quote)) == ([Booked(cents=300)], [Quote(cents=300)])


async def test_an_agent_that_is_not_there_is_played() -> None:
    async with shop().test() as bus:
        prices = bus.fake(Ask, returns=Quote(cents=5))
        await bus.publish(Order())
        await bus.settle()
        assert (prices.received, bus.sent(Booked)) == ([Ask(sku="tea")], [Booked(cents=5)])
        prices.answer = lambda ask: Quote(cents=len(ask.sku))
        assert await bus.request(Order(sku="sugar"), Booked) == Booked(cents=5)
        prices.answer = ValueError("no price")
        with pytest.raises(RequestFailed):
            await bus.request(Order(), Booked, timeout_s=7200, retry=None)


async def test_what_an_app_handles_itself_is_not_played() -> None:
    async with shop().test(pricing()) as bus:
        with pytest.raises(ConfigurationError, match=r"pricing@svc handles quote\.asked itself"):
            bus.fake(Ask, returns=Quote(cents=5))


async def test_the_inbox_of_an_app_can_be_prepared_and_read() -> None:
    app = App("ledger@svc")

    @app.on(Booked)
    async def note(booked: Booked, context: Context) -> None:
        transaction = await context.transaction()
        await transaction.execute("insert into ledger values ($1)", booked.cents)

    async with app.test() as bus:
        await bus.database.execute("create table ledger (cents integer)")
        await bus.publish(Booked(cents=7), idempotency_key="k")
        await bus.settle()
        bus.assert_all_handled()
        assert await bus.database.fetch("select cents from ledger where cents = $1", 7) == [(7,)]


async def test_a_dead_letter_shows_the_error_its_line_and_the_handlers_frames() -> None:
    app = App("shop@svc")

    @app.on(Order)
    async def book(order: Order) -> None:
        raise KeyError(order.sku)  # the line

    async with app.test() as bus:
        await bus.publish(Order())
        await bus.advance(7200)
        (letter,) = bus.dead_letters
        line = book.__code__.co_firstlineno + 2
        assert "order.placed from test@sealbus: retries_exhausted after 5 attempts: KeyError: " in repr(letter)
        assert f"({__file__}:{line})" in repr(letter)
        assert len(repr(letter).splitlines()) == 1
        with pytest.raises(AssertionError, match=r"a dead letter:\n  <DeadLetter order\.placed") as raised:
            bus.assert_all_handled()
        cause = raised.value.__cause__
        assert isinstance(cause, KeyError)
        assert traceback.extract_tb(cause.__traceback__)[0].lineno == line


async def test_without_a_death_there_is_nothing_to_raise() -> None:
    async with pricing().test() as bus:
        bus.assert_all_handled()
        assert (await bus.request(Ask(sku="tea"), Quote)).cents == 300
        bus.assert_all_handled()


async def test_a_played_dependency_may_be_down_for_a_while() -> None:
    async with shop().test() as bus:
        prices = bus.fake(Ask, returns=DependencyDown("prices"))
        await bus.publish(Order())
        await bus.settle()
        prices.answer = Quote(cents=9)
        await bus.advance(60)
        assert bus.sent(Booked) == [Booked(cents=9)]


@pytest.mark.medium
async def test_a_handler_that_blocks_the_loop_is_named() -> None:
    app = App("shop@svc")

    @app.on(Order)
    async def book(order: Order) -> None:
        time.sleep(1.6)  # noqa: ASYNC251 - that is the mistake

    async with app.test() as bus:
        with capture_logs() as logs:
            await bus.publish(Order())
            await bus.settle()
    (line,) = [line for line in logs if line["event"] == "loop.blocked"]
    assert line["type"] == "order.placed"
    assert "book" in line["handler"]
    assert f'{__file__}", line {book.__code__.co_firstlineno + 2}' in line["stack"]
