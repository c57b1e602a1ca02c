"""Request and reply: a shop asks another agent for a price, and says what it does when no answer comes.

sealbus run request_reply:shop request_reply:pricing
"""

from __future__ import annotations

import msgspec

from sealbus import App, Context, Reject, RequestFailed, RequestTimedOut, RetryLater, payload


@payload("quote.request")
class QuoteRequest(msgspec.Struct, frozen=True, kw_only=True):
    sku: str


@payload("quote.output")
class Quote(msgspec.Struct, frozen=True, kw_only=True):
    cents: int


@payload("order.placed")
class OrderPlaced(msgspec.Struct, frozen=True, kw_only=True):
    sku: str


@payload("order.priced")
class OrderPriced(msgspec.Struct, frozen=True, kw_only=True):
    sku: str
    cents: int


shop, pricing = App("shop@svc"), App("pricing@svc")
PRICES = {"tea": 450, "cup": 900}


@shop.on(OrderPlaced)
async def price(order: OrderPlaced, context: Context) -> OrderPriced:
    try:
        quote = await context.request(QuoteRequest(sku=order.sku), Quote, timeout_s=20)
    except RequestTimedOut as error:
        raise RetryLater(after_s=60) from error  # the pricing agent is away: try again in a minute
    except RequestFailed as error:
        raise Reject(f"no price: {error.reason}") from error  # it refused
    return OrderPriced(sku=order.sku, cents=quote.cents)


@pricing.on(QuoteRequest)
async def quote(request: QuoteRequest) -> Quote:
    if request.sku not in PRICES:
        raise Reject(f"{request.sku} is not sold here")
    return Quote(cents=PRICES[request.sku])


async def test_an_order_is_priced_by_the_other_agent() -> None:
    async with shop.test(pricing) as bus:
        await bus.publish(OrderPlaced(sku="tea"))
        await bus.settle()
        assert bus.sent(OrderPriced) == [OrderPriced(sku="tea", cents=450)]


async def test_a_refusal_ends_the_order_with_a_reason() -> None:
    async with shop.test(pricing) as bus:
        await bus.publish(OrderPlaced(sku="gold"))
        await bus.settle()
        assert {letter.message_type for letter in bus.dead_letters} == {"quote.request", "order.placed"}


async def test_an_agent_that_is_away_delays_the_order() -> None:
    async with shop.test() as bus:
        await bus.publish(OrderPlaced(sku="cup"))
        await bus.settle()
        await bus.advance(25)  # the request has ended by its deadline
        prices = bus.fake(QuoteRequest, returns=Quote(cents=1))
        await bus.advance(400)
        assert bus.sent(OrderPriced) == [OrderPriced(sku="cup", cents=1)]
        assert QuoteRequest(sku="cup") in prices.received
