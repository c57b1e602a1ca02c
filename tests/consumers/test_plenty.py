"""A worker with plenty to do does not fetch for a few, and gets through all of it, also where the clock stands still."""

from __future__ import annotations

import msgspec

from bus.payloads import payload
from consumers.app import App


@payload("plenty.item", version="1.0.0")
class Item(msgspec.Struct, frozen=True):
    number: int


async def test_thousands_of_keys_are_handled_while_the_clock_stands_still() -> None:
    app = App("plenty@svc")
    seen: list[int] = []

    @app.on(Item)
    async def handle(item: Item) -> None:
        seen.append(item.number)

    async with app.test() as bus:
        for number in range(3_000):
            await bus.publish(Item(number))
        await bus.settle()
    assert sorted(seen) == list(range(3_000))
