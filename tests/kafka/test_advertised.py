"""A cluster that is found and then sends its clients to an address that does not answer from here, as brokers in
containers often do."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from bus.errors import UnreachableError
from bus.transports import open_transport


@asynccontextmanager
async def sending_on(bootstrap: str, port: int) -> AsyncIterator[str]:
    """An address behind which the cluster is, whose answers name *port* instead of the broker's own."""
    own = int(bootstrap.partition(":")[2])

    async def carry(
        reader: asyncio.StreamReader, writer: asyncio.StreamWriter, change: Callable[[bytes], bytes]
    ) -> None:
        while data := await reader.read(65_536):
            writer.write(change(data))
        writer.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        inner, outer = await asyncio.open_connection("127.0.0.1", own)
        named = struct.pack(">i", own), struct.pack(">i", port)
        await asyncio.gather(carry(reader, outer, bytes), carry(inner, writer, lambda data: data.replace(*named)))

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()


@pytest.mark.slow
async def test_an_unreachable_advertised_address_is_named_as_the_cause(kafka: str) -> None:
    async with sending_on(kafka, 1) as address:
        transport = open_transport(f"kafka://{address}")
        try:
            with pytest.raises(
                UnreachableError,
                match=rf"{address} answers, and sends .*advertised.listeners.*nothing listens at 127.0.0.1:1 ",
            ):
                await transport.admin.topics()
        finally:
            await transport.close()
