"""Wake waiting tasks, here and in other processes, without polling.

Owns the signals of this process and one loopback datagram socket. A datagram carries only keys (topic ids; 0 for
groups). A forged one costs a look at the log, a lost one a delay until the next heartbeat. `membership.listen` owns the
list of ports.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from array import array
from collections.abc import Callable, Collection, Iterable, Sequence

from bus.clock import Clock
from bus.transports.sqlite.write_transaction import MEMBERSHIP

__all__ = ["Hub", "Signal"]

_LOOPBACK = "127.0.0.1"
_MAX_KEYS = 64


class Signal:
    """A flag that one coroutine can wait for."""

    def __init__(self) -> None:
        self._set = False
        self._waiting: asyncio.Future[None] | None = None

    def clear(self) -> None:
        """Lower the flag. Call it before looking, not after: an event during the look must not be missed."""
        self._set = False

    def set(self) -> None:
        """Raise the flag."""
        self._set = True
        self._wake()

    async def wait(self, clock: Clock, timeout_s: float) -> bool:
        """Wait for the flag; return False after *timeout_s*."""
        if self._set or timeout_s <= 0:
            # A caller that never waits must not starve the other tasks.
            await asyncio.sleep(0)
            return self._set
        waiting = self._waiting = asyncio.get_running_loop().create_future()
        timer = clock.call_later(timeout_s, self._wake)
        try:
            await waiting
        finally:
            timer.cancel()
            # A cancelled wait may end after the next one has begun.
            if self._waiting is waiting:
                self._waiting = None
        return self._set

    def _wake(self) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)


class Hub:
    """The waiting tasks of this process, by topic."""

    def __init__(self, on_membership: Callable[[], object]) -> None:
        self._on_membership = on_membership
        self._waiting: dict[Signal, frozenset[int] | None] = {}
        self._endpoint: _Endpoint | None = None
        self._sender: socket.socket | None = None
        self._closed = False

    @property
    def port(self) -> int | None:
        """The port where other processes can wake this one; None without a socket."""
        return self._endpoint.port if self._endpoint is not None else None

    @property
    def busy(self) -> bool:
        """Whether any task waits for records."""
        return bool(self._waiting)

    def add(self, signal: Signal, topics: Collection[int] | None) -> None:
        """Wake *signal* for these topics; None for any."""
        self._waiting[signal] = None if topics is None else frozenset(topics)

    def discard(self, signal: Signal) -> None:
        self._waiting.pop(signal, None)

    def wake(self, keys: Iterable[int]) -> None:
        """Wake the tasks that wait for one of *keys*."""
        touched = set(keys)
        if MEMBERSHIP in touched:
            self._on_membership()
        for signal, topics in self._waiting.items():
            if topics is None or not touched.isdisjoint(topics):
                signal.set()

    def wake_all(self) -> None:
        """Wake every waiting task."""
        for signal in self._waiting:
            signal.set()

    async def open(self) -> None:
        """Bind the socket. If that fails, waiting lasts until the next heartbeat."""
        if self._endpoint is None and not self._closed:
            await self._bind()

    def announce(self, keys: Iterable[int], ports: Sequence[int]) -> None:
        """Wake the other processes that listen at *ports*. Called by the writer thread only."""
        others = [port for port in ports if port != self.port]
        if not others:
            return
        chosen = array("q", keys)
        data = chosen.tobytes() if len(chosen) <= _MAX_KEYS else b""
        with contextlib.suppress(OSError):
            if self._sender is None:
                self._sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
                self._sender.setblocking(False)
            for port in others:
                with contextlib.suppress(BlockingIOError):
                    self._sender.sendto(data, (_LOOPBACK, port))

    async def close(self) -> None:
        self._closed = True
        if self._endpoint is not None:
            await self._endpoint.close()
        if self._sender is not None:
            self._sender.close()

    async def _bind(self) -> None:
        endpoint = self._endpoint = _Endpoint(self._received)
        try:
            with contextlib.suppress(OSError):
                await asyncio.get_running_loop().create_datagram_endpoint(lambda: endpoint, local_addr=(_LOOPBACK, 0))
        except asyncio.CancelledError:
            # The loop has closed the socket. The next caller must open another one, or no process could wake this one.
            self._endpoint = None
            raise
        if self._closed:
            await endpoint.close()

    def _received(self, data: bytes) -> None:
        keys = array("q")
        with contextlib.suppress(ValueError):
            keys.frombytes(data)
        if keys:
            self.wake(keys)
        else:
            self._on_membership()
            self.wake_all()


class _Endpoint(asyncio.DatagramProtocol):
    def __init__(self, received: Callable[[bytes], None]) -> None:
        self._received = received
        self._transport: asyncio.DatagramTransport | None = None
        self._closed: asyncio.Future[None] | None = None
        self.port: int | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]
        self._closed = asyncio.get_running_loop().create_future()
        self.port = transport.get_extra_info("sockname")[1]

    def datagram_received(self, data: bytes, addr: object) -> None:  # noqa: ARG002 - the protocol's signature
        self._received(data)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - the protocol's signature
        if self._closed is not None and not self._closed.done():
            self._closed.set_result(None)

    async def close(self) -> None:
        if self._transport is not None and self._closed is not None:
            self._transport.close()
            await self._closed
