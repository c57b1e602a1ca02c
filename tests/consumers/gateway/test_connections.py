"""A thousand connections that ask nothing, or read nothing: whoever works beside them is served."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

from tests.consumers.gateway.conftest import Opened, Place

pytestmark = pytest.mark.medium
MANY = 1_000


@asynccontextmanager
async def connections(place: Place, count: int, request: bytes) -> AsyncIterator[list[asyncio.StreamReader]]:
    """Open *count* connections that send *request* and read nothing by themselves."""
    port = int(place.url.rpartition(":")[2])
    async with AsyncExitStack() as stack:
        readers = []
        for _ in range(count):
            reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=64)
            stack.callback(writer.close)
            writer.write(request)
            readers.append(reader)
        yield readers


async def test_a_thousand_idle_connections_hinder_nobody(opened: Opened) -> None:
    async with opened() as place, connections(place, MANY, b"GET /tasks HT"), place.client() as client:
        answer = await client.post("/tasks", json={"to": "researcher@svc", "goal": "compare"})
        assert answer.status_code == 202


async def test_a_thousand_readers_that_never_read_hinder_nobody(opened: Opened) -> None:
    async with opened() as place, place.client(streams=MANY) as client, place.client("other") as other:
        task = (await client.post("/tasks", json={"to": "researcher@svc", "goal": "compare"})).json()
        request = (
            f"GET /tasks/{task['id']}/events HTTP/1.1\r\nHost: {place.url[7:]}\r\n"
            f"Authorization: Bearer {place.tokens['ci']}\r\n\r\n"
        )
        async with connections(place, MANY, request.encode()):
            async with asyncio.timeout(60):
                while place.gateway.quotas.streams < MANY:  # noqa: ASYNC110 - the others are told by no event
                    await asyncio.sleep(0.02)
            refused = await client.get(f"/tasks/{task['id']}/events")
            assert (refused.status_code, refused.json()["code"]) == (429, "RATE_LIMIT")
            assert (await client.post(f"/tasks/{task['id']}/cancel")).status_code == 202
            assert (await other.get("/tasks")).status_code == 200
        async with asyncio.timeout(60):
            while place.gateway.quotas.streams:  # noqa: ASYNC110
                await asyncio.sleep(0.02)


@pytest.mark.parametrize("header", [b"Content-Length: 1\r\nContent-Length: 2", b"x: a\0b"])
async def test_what_is_no_http_is_refused_in_the_form_of_all_doors(opened: Opened, header: bytes) -> None:
    async with opened() as place, connections(place, 1, b"POST /tasks HTTP/1.1\r\n%s\r\n\r\n" % header) as (reader,):
        async with asyncio.timeout(30):
            head, _, body = (await reader.read()).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400 ")
    assert json.loads(body)["code"] == "INVALID_MESSAGE"


@pytest.mark.parametrize(
    ("method", "headers", "status"),
    [
        ("GET", "Sec-WebSocket-Version: 13", 400),
        ("POST", "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==", 400),
        ("GET", "Sec-WebSocket-Version: 8\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==", 426),
    ],
)
async def test_what_begins_no_websocket_is_refused_in_the_form_of_all_doors(
    opened: Opened, method: str, headers: str, status: int
) -> None:
    async with opened() as place:
        host = place.url.removeprefix("http://")
        asked = (
            f"{method} /ws HTTP/1.1\r\nHost: {host}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n{headers}\r\n\r\n"
        )
        async with connections(place, 1, f"{asked}\r\n".encode()) as (reader,), asyncio.timeout(30):
            head, _, body = (await reader.read()).partition(b"\r\n\r\n")
    assert int(head.split()[1]) == status
    assert json.loads(body)["code"] == "INVALID_MESSAGE"


async def test_a_body_with_two_lengths_ends_its_connection(opened: Opened) -> None:
    async with opened() as place, place.client():
        asked = (
            f"POST /tasks HTTP/1.1\r\nHost: {place.url.removeprefix('http://')}\r\n"
            f"Authorization: Bearer {place.tokens['ci']}\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n"
            "0\r\n\r\nGET /tasks HTTP/1.1\r\n"
        )
        async with connections(place, 1, asked.encode()) as (reader,), asyncio.timeout(30):
            # It is read to the end of the connection.
            head, _, body = (await reader.read()).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400 ")
    assert json.loads(body)["pointer"] == "/headers/transfer-encoding"
