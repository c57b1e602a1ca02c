"""What a program puts around its publishes."""

from __future__ import annotations

import msgspec
import pytest

from producers.middleware import Publishing
from sealbus import Draft, PublishRejected, Receipt, connect, payload


@payload("order.placed")
class Order(msgspec.Struct, frozen=True, kw_only=True):
    number: int


def in_task(task_id: str, seen: list[object]) -> object:
    def wrap(following: Publishing) -> Publishing:
        async def publish(draft: Draft) -> Receipt:
            seen.append(task_id)
            try:
                receipt = await following(msgspec.structs.replace(draft, task_id=task_id))
            except PublishRejected:
                seen.append("rejected")
                raise
            seen.append(receipt.offset)
            return receipt

        return publish

    return wrap


async def test_a_publish_goes_through_the_middleware_outermost_first() -> None:
    seen: list[object] = []
    around = [in_task("outer", seen), in_task("inner", seen)]
    async with connect("memory://", agent="shop@svc", env={}, middleware=around) as bus:  # type: ignore[arg-type]
        await bus.publish(Order(number=1), key="k")
        with pytest.raises(PublishRejected):
            await bus.publish(Order(number=2), ttl_s=-1)
    assert seen == ["outer", "inner", 0, 0, "outer", "inner", "rejected", "rejected"]


async def test_each_of_many_goes_through_it_and_outcomes_keep_their_order() -> None:
    seen: list[object] = []
    async with connect("memory://", agent="shop@svc", env={}, middleware=[in_task("t", seen)]) as bus:  # type: ignore[list-item]
        source = [Draft(payload=Order(number=n), key="k", ttl_s=-1 if n == 3 else 60) for n in range(1_000)]
        outcomes = [outcome async for outcome in bus.publish_many(source)]
        assert [isinstance(outcome, Receipt) for outcome in outcomes] == [n != 3 for n in range(1_000)]
        offsets = [outcome.offset for outcome in outcomes if isinstance(outcome, Receipt)]
        assert offsets == list(range(999))
    assert seen.count("t") == 1_000


async def test_a_stream_that_is_left_publishes_no_more() -> None:
    begun: list[object] = []
    async with connect("memory://", agent="shop@svc", env={}, middleware=[in_task("t", begun)]) as bus:  # type: ignore[list-item]
        stream = bus.publish_many(Order(number=n) for n in range(100_000))
        async for _ in stream:
            break
        await stream.aclose()  # type: ignore[attr-defined]
    assert begun.count("t") <= 512
