"""A pooler in front of a real PostgreSQL that gives its sessions out by the transaction, or keeps one for each client.

Owns as much of PostgreSQL's protocol (version 3) as tells where a transaction ends. No passwords, no TLS, no
cancelling.
"""

from __future__ import annotations

import asyncio
import contextlib
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import parse_qs, urlsplit, urlunsplit

__all__ = ["pooled"]

_TLS_ASKED = 80877103
_READY = b"Z\0\0\0\5I"
_ENDS = (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError)


@asynccontextmanager
async def pooled(url: str, *, by_transaction: bool) -> AsyncIterator[str]:
    """The URL of a pooler for the database behind *url*, whose server listens on a socket of the file system."""
    parts = urlsplit(url)
    pooler = _Pooler(f"{parse_qs(parts.query)['host'][0]}/.s.PGSQL.5432", by_transaction=by_transaction)
    server = await asyncio.start_server(pooler.serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    try:
        yield urlunsplit(parts._replace(netloc=f"{parts.username}@127.0.0.1:{port}", query=""))
    finally:
        server.close()
        await pooler.close()


class _Client:
    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self.writer = writer
        self.session: _Session | None = None


class _Session:
    """With the server; what it says goes to whichever client has it."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.client: _Client | None = None


class _Pooler:
    def __init__(self, socket: str, *, by_transaction: bool) -> None:
        self._socket = socket
        self._by_transaction = by_transaction
        self._idle: list[_Session] = []
        self._greeting = b""
        self._tasks: set[asyncio.Task[None]] = set()
        self._writers: list[asyncio.StreamWriter] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self._writers.append(writer)
        with contextlib.suppress(*_ENDS):
            await self._serve(reader, _Client(writer))
        writer.close()

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for writer in self._writers:
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, client: _Client) -> None:
        start = await _start(reader)
        while struct.unpack("!i", start[:4])[0] == _TLS_ASKED:
            client.writer.write(b"N")
            start = await _start(reader)
        client.session = await self._session(client, start)
        client.writer.write(self._greeting)
        while True:
            message = await _message(reader)
            if message[:1] == b"X":
                return
            if client.session is None:
                client.session = await self._session(client, start)
            client.session.writer.write(message)

    async def _session(self, client: _Client, start: bytes) -> _Session:
        session = self._idle.pop() if self._idle else await self._open(start)
        session.client = client
        return session

    async def _open(self, start: bytes) -> _Session:
        reader, writer = await asyncio.open_unix_connection(self._socket)
        self._writers.append(writer)
        writer.write(struct.pack("!i", len(start) + 4) + start)
        greeting = b""
        while not greeting.endswith(_READY):
            message = await _message(reader)
            # Which process of the server's serves a client changes, so none is named.
            greeting += message if message[:1] != b"K" else message[:5] + struct.pack("!ii", 1, 1)
        self._greeting = self._greeting or greeting
        session = _Session(reader, writer)
        self._tasks.add(asyncio.get_running_loop().create_task(self._pass_on(session)))
        return session

    async def _pass_on(self, session: _Session) -> None:
        with contextlib.suppress(*_ENDS):
            while True:
                message = await _message(session.reader)
                client = session.client
                if client is None:
                    continue
                if message == _READY and self._by_transaction:
                    session.client = client.session = None
                    self._idle.append(session)
                client.writer.write(message)


async def _start(reader: asyncio.StreamReader) -> bytes:
    (length,) = struct.unpack("!i", await reader.readexactly(4))
    return await reader.readexactly(length - 4)


async def _message(reader: asyncio.StreamReader) -> bytes:
    head = await reader.readexactly(5)
    return head + await reader.readexactly(struct.unpack("!i", head[1:])[0] - 4)
