"""The socket that every server of sealbus listens on."""

from __future__ import annotations

import asyncio
import socket

from consumers.web.listening import open_socket


async def test_an_accepted_connection_answers_without_nagles_delay() -> None:
    accepted: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    def serve(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        found: socket.socket = writer.get_extra_info("socket")
        accepted.set_result(found.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
        writer.close()

    sock = open_socket("127.0.0.1", 0, "the test")
    server = await asyncio.start_server(serve, sock=sock)
    async with server:
        _, writer = await asyncio.open_connection(*sock.getsockname())
        assert await asyncio.wait_for(accepted, 30)
        writer.close()
        await writer.wait_closed()
