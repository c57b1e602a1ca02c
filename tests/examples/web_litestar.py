"""A Litestar service that publishes and asks, with the worker beside it in the same process.

SEALBUS_BUS__URL=sqlite:///web.db litestar --app web_litestar:web run
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest
from litestar import Litestar, get, post
from litestar.datastructures import State
from litestar.params import FromPath, FromQuery

from sealbus import App, payload


@payload("greeting.request")
class GreetingRequest(msgspec.Struct, frozen=True, kw_only=True):
    name: str


@payload("greeting.output")
class Greeting(msgspec.Struct, frozen=True, kw_only=True):
    text: str


app = App("greeter@svc")


@app.on(GreetingRequest)
async def greet(request: GreetingRequest) -> Greeting:
    return Greeting(text=f"Hello {request.name}")


@asynccontextmanager
async def lifespan(web: Litestar) -> AsyncIterator[None]:
    """Open the bus with the server, and close it with the server."""
    async with app.running() as bus:
        web.state.bus = bus
        yield


@post("/greetings", status_code=202)
async def greet_later(name: FromQuery[str], state: State) -> dict[str, str]:
    """Once this answers, the request is durable."""
    receipt = await state.bus.publish(GreetingRequest(name=name))
    return {"message_id": receipt.message_id}


@get("/greetings/{name:str}")
async def greet_now(name: FromPath[str], state: State) -> Greeting:
    """Ask the agent, and return its payload: Litestar writes Structs as they are."""
    answer: Greeting = await state.bus.request(GreetingRequest(name=name), Greeting, timeout_s=10)
    return answer


web = Litestar([greet_later, greet_now], lifespan=[lifespan])


@pytest.mark.medium
def test_it_publishes_and_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from litestar.testing import TestClient

    monkeypatch.setenv("SEALBUS_BUS__URL", f"sqlite:///{tmp_path}/web.db")
    with TestClient(web) as client:
        accepted = client.post("/greetings", params={"name": "Ada"})
        assert (accepted.status_code, list(accepted.json())) == (202, ["message_id"])
        assert client.get("/greetings/Ada").json() == {"text": "Hello Ada"}
