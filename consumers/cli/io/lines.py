"""Lines of a stream of bytes, with bounded memory however long a line is and however slowly it comes.

Owns cutting into lines and giving up on overlong ones. Does not own what a line holds.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from typing import BinaryIO, Final, NamedTuple

__all__ = ["Line", "SlowLines", "read_lines"]

_CHUNK_BYTES: Final = 131_072
_CHUNKS_AHEAD: Final = 4


class Line(NamedTuple):
    """One line without its line break, numbered from 1; *content* None means longer than allowed."""

    number: int
    content: bytes | None


class _Cutter:
    """Chunks in, lines out."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._number = 0
        self._rest = b""
        self._skipping = False
        self.consumed = 0

    def feed(self, chunk: bytes) -> Iterator[Line]:
        """The lines that *chunk* completes; blank ones are only counted."""
        self.consumed += len(chunk)
        *whole, rest = (self._rest + chunk).split(b"\n")
        for content in whole:
            self._number += 1
            if self._skipping:
                self._skipping = False
                yield Line(self._number, None)
            elif len(content) > self._max_bytes:
                yield Line(self._number, None)
            elif content and not content.isspace():
                yield Line(self._number, content)
        self._skipping = self._skipping or len(rest) > self._max_bytes
        self._rest = b"" if self._skipping else rest

    def end(self) -> Iterator[Line]:
        """The last line, where it has no line break."""
        if self._rest or self._skipping:
            yield from self.feed(b"\n")


def read_lines(stream: BinaryIO, max_bytes: int) -> Iterator[Line]:
    """The lines of *stream* that are not blank."""
    cutter = _Cutter(max_bytes)
    while chunk := stream.read(_CHUNK_BYTES):
        yield from cutter.feed(chunk)
    yield from cutter.end()


class SlowLines:
    """The lines of a stream that may be a slow pipe.

    Read on a thread of its own, each line available as soon as it is there.
    """

    def __init__(self, stream: BinaryIO, max_bytes: int) -> None:
        self._read = _reader(stream)
        self._cutter = _Cutter(max_bytes)
        self._loop = asyncio.get_running_loop()
        self._chunks: asyncio.Queue[bytes | OSError] = asyncio.Queue()
        self._room = threading.Semaphore(_CHUNKS_AHEAD)
        self._stopped = False

    @property
    def consumed(self) -> int:
        """How many bytes were read so far."""
        return self._cutter.consumed

    def stop(self) -> None:
        """End here: lines that were not read yet are left alone."""
        self._stopped = True
        self._chunks.put_nowait(b"")

    async def __aiter__(self) -> AsyncIterator[Line]:
        # A daemon: nothing can wake a thread that waits for a pipe, and it must not keep the process from ending.
        threading.Thread(target=self._pump, name="sealbus-lines", daemon=True).start()
        while (chunk := await self._chunks.get()) and not self._stopped:
            if isinstance(chunk, OSError):
                raise chunk
            self._room.release()
            for line in self._cutter.feed(chunk):
                yield line
        # The beginning of a line that was still being written when we were stopped is none.
        for line in self._cutter.end() if not self._stopped else ():
            yield line

    def _pump(self) -> None:
        chunk: bytes | OSError = b"-"
        while chunk and not isinstance(chunk, OSError):
            self._room.acquire()
            try:
                chunk = self._read()
            except OSError as error:
                chunk = error
            try:
                self._loop.call_soon_threadsafe(self._chunks.put_nowait, chunk)
            except RuntimeError:
                return  # the loop is closed: nobody reads any more


def _reader(stream: BinaryIO) -> Callable[[], bytes]:
    try:
        descriptor = stream.fileno()
    except (OSError, AttributeError):
        return lambda: stream.read(_CHUNK_BYTES)
    # Not through the stream: its lock, held by a waiting thread, would disturb the end of the process.
    return lambda: os.read(descriptor, _CHUNK_BYTES)
