"""ExclusiveGate: whoever must be alone waits for the others to leave and keeps them out, and nobody waits for ever."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from consumers.delivery.handling.exclusive import ExclusiveGate


async def test_whoever_has_left_is_neither_counted_nor_waited_for() -> None:
    exclusive = ExclusiveGate()
    async with asyncio.timeout(30):
        await exclusive.enter(alone=False)
        await exclusive.enter(alone=False)
        exclusive.leave(alone=False)
        assert (exclusive.inside, exclusive.closed) == (1, False)
        exclusive.leave(alone=False)
        await exclusive.enter(alone=True)
        assert (exclusive.inside, exclusive.closed) == (1, True)
        exclusive.leave(alone=True)
        assert (exclusive.inside, exclusive.closed) == (0, False)


@pytest.mark.medium
@given(st.lists(st.tuples(st.booleans(), st.integers(0, 3)), max_size=12))
def test_exclusive_runs_are_alone_and_every_run_gets_a_turn(visits: list[tuple[bool, int]]) -> None:
    exclusive, inside, turns = ExclusiveGate(), [], []

    async def visit(number: int, alone: bool, naps: int) -> None:
        if alone or exclusive.closed:
            await exclusive.enter(alone=alone)
        else:
            exclusive.inside += 1
        inside.append(alone)
        assert len(inside) == 1 or not any(inside)
        assert exclusive.inside == len(inside)
        for _ in range(naps):
            await asyncio.sleep(0)
        inside.remove(alone)
        turns.append(number)
        exclusive.leave(alone=alone)

    async def everybody() -> None:
        async with asyncio.timeout(30):
            await asyncio.gather(*(visit(number, *each) for number, each in enumerate(visits)))

    asyncio.run(everybody())
    assert sorted(turns) == list(range(len(visits)))
    assert (exclusive.inside, exclusive.closed) == (0, False)


async def test_whoever_gives_up_waiting_to_be_alone_lets_the_others_in() -> None:
    exclusive = ExclusiveGate()
    exclusive.inside += 1
    waiting = asyncio.create_task(exclusive.enter(alone=True))
    await asyncio.sleep(0)
    assert exclusive.closed
    beside = asyncio.create_task(exclusive.enter(alone=False))
    await asyncio.sleep(0)
    waiting.cancel()
    await beside
    assert exclusive.inside == 2
