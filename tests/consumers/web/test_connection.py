"""Connections that ask nothing, ask slowly or take nothing end; others are served meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
import json
import select
import socket
from collections.abc import AsyncIterator
from typing import Any

import pytest
import uvicorn

from bus.clock import SystemClock
from consumers.web.connection import connection_class
from consumers.web.guard import Guard, GuardLimits
from consumers.web.listening import open_socket

LOOK_S = 0.1
LARGE = b"x" * (32 << 20)
ASK = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"


async def site(scope: Any, receive: Any, send: Any) -> None:
    """Answers at once; `/large` with more than any buffer takes; `/stream` until its client goes."""
    if scope["type"] != "http":
        return
    await send({"type": "http.response.start", "status": 200, "headers": []})
    if scope["path"] == "/stream":
        gone = asyncio.ensure_future(until_gone(receive))
        while not gone.done():
            await send({"type": "http.response.body", "body": b"x" * 65_536, "more_body": True})
            await asyncio.sleep(0)
        return
    body = LARGE if scope["path"] == "/large" else b"done"
    await send({"type": "http.response.body", "body": body, "more_body": False})


async def until_gone(receive: Any) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class Server:
    def __init__(self, port: int) -> None:
        self.port = port
        self.counted: list[str] = []
        self._open: list[asyncio.StreamWriter] = []

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        self._open.append(writer)
        return reader, writer

    def close(self) -> None:
        for writer in self._open:
            writer.close()


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    sock = open_socket("127.0.0.1", 0, "the test")
    made = Server(sock.getsockname()[1])
    http = connection_class(max_connections=3, look_s=LOOK_S, count=made.counted.append)
    config = uvicorn.Config(site, http=http, log_config=None, log_level="error", lifespan="off", ws="none")
    running = uvicorn.Server(config)
    serving = asyncio.ensure_future(running._serve([sock]))
    yield made
    made.close()
    running.should_exit = running.force_exit = True
    await serving


async def end_of(reader: asyncio.StreamReader) -> bytes:
    """What came until the end. A client that writes to a closed connection is told of a reset after it."""
    found = b""
    with contextlib.suppress(ConnectionResetError):
        async with asyncio.timeout(30):
            while part := await reader.read(65_536):
                found += part
    return found


def refusal(answer: bytes) -> tuple[int, str]:
    head, _, body = answer.partition(b"\r\n\r\n")
    assert b"content-type: application/json" in head.lower()
    found = json.loads(body)
    assert found.keys() >= {"status", "code", "class", "pointer", "message"}
    return int(head.split()[1]), found["code"]


async def test_a_connection_that_asks_nothing_is_closed(server: Server) -> None:
    reader, _ = await server.connect()
    assert await end_of(reader) == b""


async def test_a_head_that_dribbles_is_answered_and_closed(server: Server) -> None:
    reader, writer = await server.connect()
    ending = asyncio.ensure_future(end_of(reader))
    writer.write(b"GET / HTTP/1.1\r\nHost: a\r\n")
    while not ending.done():
        writer.write(b"x: y\r\n")
        await asyncio.sleep(LOOK_S / 4)
    assert refusal(await ending) == (408, "TIMEOUT")
    assert server.counted == ["TIMEOUT"]


async def test_the_second_head_of_a_connection_may_not_dribble_either(server: Server) -> None:
    reader, writer = await server.connect()
    writer.write(ASK)
    ending = asyncio.ensure_future(end_of(reader))
    writer.write(b"GET /")
    while not ending.done():
        writer.write(b"x")
        await asyncio.sleep(LOOK_S / 4)
    first, _, second = (await ending).rpartition(b"HTTP/1.1 408")
    assert b"done" in first
    assert second


async def test_a_body_that_dribbles_after_its_answer_ends_the_connection(server: Server) -> None:
    reader, writer = await server.connect()
    writer.write(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 100000\r\n\r\n")
    ending = asyncio.ensure_future(end_of(reader))
    while not ending.done():
        writer.write(b"x")
        await asyncio.sleep(LOOK_S / 4)
    assert b"done" in await ending


async def test_a_kept_connection_is_used_again(server: Server) -> None:
    reader, writer = await server.connect()
    for _ in range(2):
        writer.write(ASK)
        async with asyncio.timeout(30):
            await reader.readuntil(b"0\r\n\r\n")
        await asyncio.sleep(LOOK_S * 3)


@pytest.mark.parametrize("path", ["/large", "/stream"])
async def test_a_client_that_reads_nothing_loses_its_connection(server: Server, path: str) -> None:
    with socket.create_connection(("127.0.0.1", server.port)) as client:
        client.sendall(ASK.replace(b"/", path.encode(), 1))
        poll = select.poll()
        poll.register(client, 0)
        # Only that the peer is gone is told: nothing is read.
        assert await asyncio.to_thread(poll.poll, 30_000)


async def test_a_client_that_reads_slowly_gets_all_of_it(server: Server) -> None:
    reader, writer = await server.connect()
    writer.write(ASK.replace(b"/", b"/large", 1))
    count = 0
    async with asyncio.timeout(60):
        while count < len(LARGE):
            count += len(await reader.readexactly(min(1 << 20, len(LARGE) - count)))
            await asyncio.sleep(LOOK_S / 4)


@pytest.mark.parametrize(
    ("head", "status", "code"),
    [
        (b"GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n", 400, "INVALID_MESSAGE"),
        (b"GET / HTTP/1.1\r\nHost: a\r\nx: a\0b\r\n\r\n", 400, "INVALID_MESSAGE"),
        (b"GET / HTTP/1.1\r\n\r\n", 400, "INVALID_MESSAGE"),
        (b"\x16\x03\x01\x02\x00\r\n\r\n", 400, "INVALID_MESSAGE"),
        (b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip\r\n\r\n", 400, "INVALID_MESSAGE"),
        (b"GET / HTTP/1.1\r\nHost: a\r\nx: " + b"a" * 100_000, 431, "PAYLOAD_TOO_LARGE"),
    ],
)
async def test_what_is_no_http_is_refused_in_the_form_of_all_doors(
    server: Server, head: bytes, status: int, code: str
) -> None:
    reader, writer = await server.connect()
    writer.write(head)
    assert refusal(await end_of(reader)) == (status, code)


async def test_one_connection_too_many_is_told_so(server: Server) -> None:
    held = [await server.connect() for _ in range(3)]
    reader, _ = await server.connect()
    assert refusal(await end_of(reader)) == (503, "SERVICE_UNAVAILABLE")
    for read, _ in held:
        # Those that hold a place and ask nothing lose it, and the next one is served.
        await end_of(read)
    reader, writer = await server.connect()
    writer.write(ASK)
    async with asyncio.timeout(30):
        assert b"done" in await reader.readuntil(b"0\r\n\r\n")


async def test_a_body_that_dribbles_is_refused_in_time() -> None:
    class Everybody:
        def credential_of(self, token: str, path: str) -> object:
            return token + path

        def is_open(self, method: str, path: str) -> bool:
            return False

        def check_rate(self, credential: Any) -> None:
            pass

    async def receive() -> dict[str, Any]:
        await asyncio.sleep(0.01)
        return {"type": "http.request", "body": b"x", "more_body": True}

    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    limits = GuardLimits(body_bytes=1 << 20, header_bytes=1024, body_s=0.1)
    guard = Guard(site, Everybody(), hosts=lambda: {"a"}, origins=(), limits=limits, clock=SystemClock())
    headers = [(b"host", b"a"), (b"authorization", b"Bearer t"), (b"transfer-encoding", b"chunked")]
    async with asyncio.timeout(30):
        await guard({"type": "http", "method": "POST", "path": "/", "headers": headers}, receive, send)
    assert sent[0]["status"] == 408
    assert json.loads(sent[1]["body"])["code"] == "TIMEOUT"
