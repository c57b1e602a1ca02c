"""A request that nobody reads says so when it times out."""

from __future__ import annotations

import asyncio
import os

import msgspec
import pytest

from bus.errors import EventLoopError
from bus.transports.base import GroupInfo
from producers.outcomes import RequestTimedOut
from producers.requests.unread_requests import unread_text
from sealbus import App, connect, payload

TOPIC = "ns.quote.request"


@payload("lost.request", performative="request")
class Lost(msgspec.Struct, frozen=True, kw_only=True):
    n: int = 1


@payload("lost.answer", performative="inform")
class Answer(msgspec.Struct, frozen=True, kw_only=True):
    n: int = 1


def group(name: str, *, members: int = 0, topic: str = TOPIC) -> GroupInfo:
    owned = {f"m{number}": ((topic, number),) for number in range(members)}
    return GroupInfo(name=name, members=owned, committed={(topic, 0): 1})


@pytest.mark.parametrize(
    ("infos", "text"),
    [
        ([], "no group reads ns.quote.request: is a worker with a handler of quote.request running"),
        ([group("other", members=1, topic="ns.else")], "no group reads ns.quote.request"),
        ([group("shop")], "no worker reads ns.quote.request now: shop read it before and has no members"),
        ([group("shop", members=1)], ""),
        ([group("shop"), group("new", members=1)], ""),
    ],
)
def test_what_the_groups_show_is_said(infos: list[GroupInfo], text: str) -> None:
    assert unread_text(infos, TOPIC, "quote.request").startswith(text)
    assert bool(unread_text(infos, TOPIC, "quote.request")) == bool(text)


async def test_a_request_of_what_nobody_handles_says_so() -> None:
    app = App("idle@svc")
    async with app.test() as bus:
        with pytest.raises(RequestTimedOut, match=r"no group reads .*\.lost\.request"):
            await bus.request(Lost(), Answer, timeout_s=5)


async def test_a_request_that_a_worker_read_says_nothing_of_groups() -> None:
    app = App("silent@svc")

    @app.on(Lost)
    async def take(lost: Lost) -> None:
        return None

    async with app.test() as bus:
        with pytest.raises(RequestTimedOut) as caught:
            await bus.request(Lost(), Answer, timeout_s=5)
    assert "group" not in str(caught.value)


async def test_a_request_to_an_agent_that_nobody_knows_says_so() -> None:
    app = App("silent@svc")

    @app.on(Lost)
    async def take(lost: Lost) -> None:
        return None

    async with app.test() as bus:
        with pytest.raises(RequestTimedOut, match=r"gone@svc may not be running: gone-svc-\w+, the group"):
            await bus.request(Lost(), Answer, to="gone@svc", timeout_s=5)
        with pytest.raises(RequestTimedOut) as caught:
            await bus.request(Lost(), Answer, to="silent@svc", timeout_s=5)
    assert "running" not in str(caught.value)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_bus_in_a_forked_child_names_the_fork() -> None:
    async def opened() -> object:
        return await connect("memory://", agent="planner@svc").__aenter__()

    async def published(bus: object) -> str:
        try:
            await bus.publish(Lost())  # type: ignore[attr-defined]
        except EventLoopError as error:
            return str(error)
        return "published"

    bus = asyncio.run(opened())
    read, write = os.pipe()
    if not (child := os.fork()):
        os.write(write, asyncio.run(published(bus)).encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as told:
        assert "before the process was forked" in told.read()
    os.waitpid(child, 0)
    assert "another thread" in asyncio.run(published(bus))
