"""A FastAPI service that publishes and asks, with the worker beside it in the same process.

SEALBUS_BUS__URL=sqlite:///web.db uvicorn web_fastapi:web
"""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest
from fastapi import FastAPI, HTTPException, Request

from sealbus import App, PublishError, RequestError, payload


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


def end(_: BaseException) -> None:
    """Let the server end in order when the worker beside it has failed."""
    os.kill(os.getpid(), signal.SIGTERM)


@asynccontextmanager
async def lifespan(web: FastAPI) -> AsyncIterator[None]:
    """Open the bus with the server, and close it with the server."""
    async with app.running(on_failure=end) as bus:
        web.state.bus = bus
        yield


web = FastAPI(lifespan=lifespan)


@web.post("/greetings", status_code=202)
async def greet_later(name: str, request: Request) -> dict[str, str]:
    """Once this answers, the request is durable."""
    try:
        receipt = await request.app.state.bus.publish(GreetingRequest(name=name))
    except PublishError as error:
        raise HTTPException(503, str(error)) from error
    return {"message_id": receipt.message_id}


@web.get("/greetings/{name}")
async def greet_now(name: str, request: Request) -> dict[str, str]:
    """Ask the agent, and wait for its answer."""
    try:
        answer = await request.app.state.bus.request(GreetingRequest(name=name), Greeting, timeout_s=10)
    except (RequestError, PublishError) as error:
        raise HTTPException(504, str(error)) from error
    return {"text": answer.text}


@pytest.mark.filterwarnings("ignore:Using `httpx`")
def test_it_publishes_and_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from fastapi.testclient import TestClient

    monkeypatch.setenv("SEALBUS_BUS__URL", f"sqlite:///{tmp_path}/web.db")
    with TestClient(web) as client:
        accepted = client.post("/greetings", params={"name": "Ada"})
        assert (accepted.status_code, list(accepted.json())) == (202, ["message_id"])
        assert client.get("/greetings/Ada").json() == {"text": "Hello Ada"}
