"""OwnContext: what runs in it sees the context it was made in, and leaves nothing behind."""

from __future__ import annotations

import asyncio
from contextvars import ContextVar

import pytest

from bus.own_context import OwnContext

SEEN: ContextVar[str] = ContextVar("seen", default="own")


async def leave(text: str) -> str:
    before = SEEN.get()
    SEEN.set(text)
    await asyncio.sleep(0)
    assert SEEN.get() == text
    return before


async def test_context_changes_of_a_coroutine_do_not_reach_the_next() -> None:
    own = OwnContext()
    assert [await own.drive(leave(text)) for text in ("one", "two")] == ["own", "own"]
    assert SEEN.get() == "own"


def test_context_changes_of_a_function_do_not_reach_the_next() -> None:
    own = OwnContext()
    for _ in range(2):
        assert own.call(lambda: (SEEN.get(), SEEN.set("left"))[0]) == "own"


async def test_background_work_that_a_run_begins_is_not_in_the_runs_context() -> None:
    own = OwnContext()
    SEEN.set("of a run")
    assert await own.begin(leave("background")) == "own"
    called: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    own.call_soon(lambda: called.set_result(SEEN.get()))
    assert await called == "own"


async def test_a_cancellation_reaches_the_coroutine_and_its_result_the_caller() -> None:
    own = OwnContext()

    async def patient() -> str:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            return "cut"
        return "not cut"

    async def outer() -> str:
        return await own.drive(patient())

    task = asyncio.create_task(outer())
    await asyncio.sleep(0)
    task.cancel()
    assert await task == "cut"


async def test_an_error_is_raised_to_the_caller_with_its_traceback() -> None:
    async def wrong() -> None:
        raise ValueError("as it is")

    with pytest.raises(ValueError, match="as it is"):
        await OwnContext().drive(wrong())
