"""A rate-limited model: workers keep to the requests and tokens a minute of its provider.

The limit is shared by all workers of the agent. What is over it waits without an attempt. A provider that is busy all
the same says when to come back.

    sealbus run rate_limited_model:app
"""

from __future__ import annotations

import msgspec

from sealbus import App, RetryLater, payload
from sealbus.limits import Concurrency, Rate


@payload("summary.wanted", version="1.0.0", performative="request")
class SummaryWanted(msgspec.Struct, frozen=True, kw_only=True):
    text: str


@payload("summary.urgent", version="1.0.0", performative="request")
class UrgentWanted(msgspec.Struct, frozen=True, kw_only=True):
    text: str


@payload("summary.made", version="1.0.0", performative="inform")
class SummaryMade(msgspec.Struct, frozen=True, kw_only=True):
    text: str


REQUESTS = Rate("model-requests", 60)
TOKENS = Rate("model-tokens", 30_000, cost=lambda wanted: 200 + len(wanted.text) // 4)
AT_ONCE = Concurrency("model-calls", 4)

app = App("summarizer@svc")
busy: list[float] = []
calls: list[str] = []


async def model(text: str) -> str:
    """Stand in for a language model whose provider may be busy."""
    calls.append(text)
    if busy:
        raise RetryLater("the provider is busy", after_s=busy.pop())
    return text.partition(".")[0]


@app.on(SummaryWanted, limits=[REQUESTS, TOKENS, AT_ONCE])
async def summarize(wanted: SummaryWanted) -> SummaryMade:
    return SummaryMade(text=await model(wanted.text))


@app.on(UrgentWanted, limits=[Rate("other-key", 10)])
async def summarize_now(wanted: UrgentWanted) -> SummaryMade:
    return SummaryMade(text=await model(wanted.text))


async def test_sixty_requests_a_minute_and_nothing_is_lost() -> None:
    async with app.test() as bus:
        for number in range(100):
            await bus.publish(SummaryWanted(text=f"Number {number}. And more."))
        await bus.advance(60)
        assert 57 <= len(bus.sent(SummaryMade)) <= 63
        await bus.advance(60)
        bus.assert_all_handled()
        assert len(bus.sent(SummaryMade)) == 100


async def test_long_texts_use_up_the_tokens_before_the_requests() -> None:
    async with app.test() as bus:
        for number in range(20):
            # About 2,700 tokens each: eleven a minute.
            await bus.publish(SummaryWanted(text=f"{number}. " + "x" * 10_000))
        await bus.advance(60)
        assert 8 <= len(bus.sent(SummaryMade)) <= 12


async def test_another_limit_is_not_behind_this_one() -> None:
    async with app.test() as bus:
        for number in range(100):
            await bus.publish(SummaryWanted(text=f"Number {number}. And more."))
        await bus.publish(UrgentWanted(text="Now. And more."))
        await bus.advance(2)
        assert SummaryMade(text="Now") in bus.sent(SummaryMade)


async def test_a_provider_that_is_busy_is_asked_again_when_it_says() -> None:
    calls.clear()
    busy[:] = [30.0, 30.0]
    async with app.test() as bus:
        await bus.publish(SummaryWanted(text="Tea. And more."))
        await bus.advance(29)
        assert len(calls) == 1
        await bus.advance(60)
        assert bus.sent(SummaryMade) == [SummaryMade(text="Tea")]
    assert len(calls) == 3
