"""The socket over which other processes wake this one, when whoever opens it changes their mind, or the log is closed
meanwhile."""

from __future__ import annotations

import asyncio
import socket

from bus.clock import SystemClock
from bus.transports.sqlite.wakeups import Hub, Signal

TOPIC = 7


async def woken(hub: Hub) -> bool:
    """Whether another process can wake who waits at *hub*."""
    signal, other = Signal(), Hub(lambda: None)
    hub.add(signal, (TOPIC,))
    other.announce([TOPIC], [hub.port or 0])
    await other.close()
    return await signal.wait(SystemClock(), 2)


async def test_the_next_call_opens_a_socket_whose_opening_was_cancelled() -> None:
    hub = Hub(lambda: None)
    for turns in range(1, 4):
        opening = asyncio.create_task(hub.open())
        for _ in range(turns):
            await asyncio.sleep(0)
        opening.cancel()
        await asyncio.wait([opening])
    await hub.open()
    assert await woken(hub)
    await hub.close()


async def test_a_socket_that_is_opened_while_the_log_is_closed_is_closed() -> None:
    hub = Hub(lambda: None)
    opening = asyncio.create_task(hub.open())
    await asyncio.sleep(0)
    await hub.close()
    await opening
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as another:
        another.bind(("127.0.0.1", hub.port or 0))


async def test_no_socket_is_opened_when_the_log_is_closed() -> None:
    hub = Hub(lambda: None)
    await hub.close()
    await hub.open()
    assert hub.port is None
