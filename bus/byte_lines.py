"""The lines of a byte stream, with bounded memory for any line length and any speed.

Owns cutting a stream into lines and skipping overlong ones.
"""

from __future__ import annotations

import asyncio
import os
import threading
from codecs import BOM_UTF8, BOM_UTF16_BE, BOM_UTF16_LE
from collections.abc import AsyncIterator, Callable, Iterator
from typing import BinaryIO, Final, NamedTuple

import msgspec

__all__ = ["Line", "SlowLines", "layout_hint", "read_lines"]

_CHUNK_BYTES: Final = 131_072
_CHUNKS_AHEAD: Final = 4


_UTF16: Final = (BOM_UTF16_LE, BOM_UTF16_BE)


def layout_hint(content: bytes) -> str:
    """Return how a file must be laid out that has a line such as *content*; empty for a line that is one JSON value."""
    if content.startswith(_UTF16):
        return "the file is not UTF-8: convert it with `iconv -f UTF-16 -t UTF-8 FILE`"
    text = content.strip()
    try:
        msgspec.json.decode(text, type=msgspec.Raw)
    except (msgspec.DecodeError, RecursionError) as error:
        if "truncated" not in str(error):
            return ""
        return "a line is one whole object, and here one goes over several: put them in order with `jq -c . FILE`"
    return (
        "a line is one object, and here it is a list: take it apart with `jq -c '.[]' FILE`" if text[:1] == b"[" else ""
    )


class Line(NamedTuple):
    """One line without its line break, numbered from 1; *content* None means that it was too long."""

    number: int
    content: bytes | None


class _Cutter:
    """Cuts chunks into lines."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._number = 0
        self._rest = b""
        self._skipping = False
        self.consumed = 0

    def feed(self, chunk: bytes) -> Iterator[Line]:
        """Yield the lines that *chunk* completes; blank lines are only counted."""
        self.consumed += len(chunk)
        *whole, rest = (self._rest + chunk).split(b"\n")
        for content in whole:
            self._number += 1
            if self._number == 1:
                # A mark of the file, which editors write; no line begins with it.
                content = content.removeprefix(BOM_UTF8)  # noqa: PLW2901 - the line as it is meant
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
        """Yield the last line, if it has no line break."""
        if self._rest or self._skipping:
            yield from self.feed(b"\n")


def read_lines(stream: BinaryIO, max_bytes: int) -> Iterator[Line]:
    """Yield the lines of *stream* that are not blank."""
    cutter = _Cutter(max_bytes)
    while chunk := stream.read(_CHUNK_BYTES):
        yield from cutter.feed(chunk)
    yield from cutter.end()


class SlowLines:
    """The lines of a stream that may be a slow pipe.

    Its own thread reads the stream; each line is available at once.
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
        """The number of bytes read so far."""
        return self._cutter.consumed

    def stop(self) -> None:
        """Stop; unread lines are left alone."""
        self._stopped = True
        self._chunks.put_nowait(b"")

    async def __aiter__(self) -> AsyncIterator[Line]:
        # A daemon thread: nothing can wake a thread that waits for a pipe, and it must not keep the process alive.
        threading.Thread(target=self._pump, name="sealbus-lines", daemon=True).start()
        while (chunk := await self._chunks.get()) and not self._stopped:
            if isinstance(chunk, OSError):
                raise chunk
            self._room.release()
            for line in self._cutter.feed(chunk):
                yield line
        # After a stop, an incomplete line does not count.
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
                return  # the loop is closed: no reader is left


def _reader(stream: BinaryIO) -> Callable[[], bytes]:
    try:
        descriptor = stream.fileno()
    except (OSError, AttributeError):
        return lambda: stream.read(_CHUNK_BYTES)
    # Read the descriptor, not the stream: a waiting thread would hold the stream's lock and disturb the process's exit.
    return lambda: os.read(descriptor, _CHUNK_BYTES)
