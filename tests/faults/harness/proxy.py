"""A link that misbehaves: a TCP proxy in front of one broker.

Owns forwarding bytes, and every way in which a network can fail to: silence in one or both directions, slowness,
slices, resets, and answers that are lost after the request has arrived. Nothing here knows what the bytes mean.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine
from typing import Any, Literal

import msgspec

__all__ = ["Link", "Mood"]

_CHUNK = 65_536
Way = Literal["up", "down"]


class Mood(msgspec.Struct, frozen=True, kw_only=True):
    """How a link behaves just now; the default is soundly."""

    silent_up: bool = False
    """Requests do not arrive; connections stay open, as when a cable is out."""
    silent_down: bool = False
    """Answers do not arrive."""
    mute: bool = False
    """Requests arrive, answers are thrown away, and after a moment the connection is gone: acknowledgements are
    lost."""
    delay_s: float = 0.0
    slice_bytes: int = _CHUNK
    bytes_per_s: float = 0.0
    reset_every_s: float = 0.0


class _Pair:
    """One connection through the link."""

    def __init__(self, client: asyncio.StreamWriter, broker: asyncio.StreamWriter) -> None:
        self.client, self.broker = client, broker
        self.lost = False
        """Some answer was thrown away: what comes after it must not be taken for it."""

    def abort(self) -> None:
        for writer in (self.client, self.broker):
            writer.transport.abort()


class Link:
    """A port that leads to another one."""

    def __init__(self, target: int, port: int = 0) -> None:
        self.target = target
        self.port = port
        self.mood = Mood()
        self._pairs: set[_Pair] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._changed = asyncio.Event()
        self._server: asyncio.Server | None = None

    async def open(self) -> None:
        """Listen."""
        self._server = await asyncio.start_server(self._accepted, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]
        self._spawn(self._resetting())

    async def close(self) -> None:
        """Stop listening and forget all connections."""
        if self._server is not None:
            self._server.close()
        for task in self._tasks:
            task.cancel()
        self.reset()

    def behave(self, mood: Mood) -> None:
        """From now on."""
        if self.mood.mute and not mood.mute:
            for pair in [pair for pair in self._pairs if pair.lost]:
                pair.abort()
        self.mood = mood
        self._changed.set()
        self._changed = asyncio.Event()

    def reset(self) -> None:
        """All connections end at once, without a goodbye."""
        for pair in list(self._pairs):
            pair.abort()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            from_broker, to_broker = await asyncio.open_connection("127.0.0.1", self.target)
        except OSError:
            writer.transport.abort()
            return
        pair = _Pair(writer, to_broker)
        self._pairs.add(pair)
        try:
            await asyncio.gather(
                self._pump(pair, reader, to_broker, "up"), self._pump(pair, from_broker, writer, "down")
            )
        finally:
            self._pairs.discard(pair)
            pair.abort()

    async def _pump(self, pair: _Pair, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, way: Way) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            while data := await reader.read(_CHUNK):
                await self._passable(way)
                if way == "down" and (self.mood.mute or pair.lost):
                    pair.lost = True
                    continue
                for start in range(0, len(data), self.mood.slice_bytes):
                    piece = data[start : start + self.mood.slice_bytes]
                    if wait_s := self.mood.delay_s + (
                        len(piece) / self.mood.bytes_per_s if self.mood.bytes_per_s else 0.0
                    ):
                        await asyncio.sleep(wait_s)
                    await self._passable(way)
                    writer.write(piece)
                    await writer.drain()
        pair.abort()

    async def _passable(self, way: Way) -> None:
        while self.mood.silent_up if way == "up" else self.mood.silent_down:
            await self._changed.wait()

    async def _resetting(self) -> None:
        while True:
            await asyncio.sleep(self.mood.reset_every_s or 0.2)
            if self.mood.reset_every_s:
                self.reset()
