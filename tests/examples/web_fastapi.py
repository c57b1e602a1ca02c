"""A FastAPI service that publishes and asks, with the worker beside it in the same process.

SEALBUS_BUS__URL=sqlite:///web.db uvicorn web_fastapi:web
"""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import pytest
from fastapi import FastAPI, HTTPException, Request

from sealbus import App, Context, PublishError, RequestError, payload

T = TypeVar("T")


@payload("greeting.request", performative="request")
class GreetingRequest(msgspec.Struct, frozen=True, kw_only=True):
    name: str


@payload("greeting.output", performative="inform")
class Greeting(msgspec.Struct, frozen=True, kw_only=True):
    text: str


app = App("greeter@svc")
BEGUN, NOTICED = threading.Event(), threading.Event()


@app.on(GreetingRequest)
async def greet(request: GreetingRequest, context: Context) -> Greeting:
    if request.name == "slowly":
        BEGUN.set()
        while not context.cancelled:  # noqa: ASYNC110 - it stands for work in pieces
            await asyncio.sleep(0.05)
        NOTICED.set()
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


async def while_connected(web: Request, asking: Coroutine[Any, Any, T]) -> T:
    """Return what *asking* returns; cancel it when the client leaves, and with it the request."""
    work, gone = asyncio.ensure_future(asking), asyncio.ensure_future(disconnected(web))
    try:
        await asyncio.wait((work, gone), return_when=asyncio.FIRST_COMPLETED)
        if not work.done():
            raise HTTPException(499, "the client has left")
        return work.result()
    finally:
        work.cancel()
        gone.cancel()


async def disconnected(web: Request) -> None:
    """Wait until the client has left."""
    while (await web.receive())["type"] != "http.disconnect":
        pass


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
        asking = request.app.state.bus.request(GreetingRequest(name=name), Greeting, timeout_s=10)
        answer: Greeting = await while_connected(request, asking)
    except (RequestError, PublishError) as error:
        raise HTTPException(504, str(error)) from error
    return {"text": answer.text}


@pytest.mark.medium
@pytest.mark.filterwarnings("ignore:Using `httpx`")
def test_it_publishes_and_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from fastapi.testclient import TestClient

    monkeypatch.setenv("SEALBUS_BUS__URL", f"sqlite:///{tmp_path}/web.db")
    with TestClient(web) as client:
        accepted = client.post("/greetings", params={"name": "Ada"})
        assert (accepted.status_code, list(accepted.json())) == (202, ["message_id"])
        assert client.get("/greetings/Ada").json() == {"text": "Hello Ada"}


@pytest.mark.medium
def test_a_client_that_leaves_has_its_request_cancelled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import socket

    import uvicorn

    monkeypatch.setenv("SEALBUS_BUS__URL", f"sqlite:///{tmp_path}/web.db")
    listening = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(web, log_level="warning", timeout_graceful_shutdown=5))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
    thread.start()
    try:
        client = socket.create_connection(listening.getsockname())
        client.sendall(b"GET /greetings/slowly HTTP/1.1\r\nHost: here\r\n\r\n")
        assert BEGUN.wait(60)
        client.close()
        assert NOTICED.wait(60)
    finally:
        server.should_exit = True
        thread.join(30)
        listening.close()
