"""Lines that a person types or a pipe brings, without blocking the event loop."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from contextlib import suppress
from typing import Final

import click

__all__ = ["StdinLines"]

_CHUNK: Final = 65_536
_MAX_LINE: Final = 1 << 20


class StdinLines:
    """Standard input, one line at a time; none is read before it is asked for."""

    def __init__(self) -> None:
        if sys.stdin is None or sys.stdin.closed:
            raise click.UsageError("standard input is closed: there is nothing to read from")
        self._ahead = b""
        try:
            self._descriptor: int | None = sys.stdin.fileno()
        except (OSError, ValueError):
            # A program that calls the command line gives its own.
            self._descriptor = None

    async def next(self) -> str | None:
        """Return the next line without its end; None at the end of the input. Raises UsageError, OSError."""
        loop = asyncio.get_running_loop()
        line: asyncio.Future[str | None] = loop.create_future()

        def settle(found: str | None, error: Exception | None) -> None:
            if line.done():
                return
            if error is None:
                line.set_result(found)
            else:
                line.set_exception(error)

        def read() -> None:
            found, fault = None, None
            try:
                found = self._line()
            except Exception as error:  # noqa: BLE001 - it is raised in the loop
                fault = error
            with suppress(RuntimeError):  # the loop has ended meanwhile
                loop.call_soon_threadsafe(settle, found, fault)

        # A signal ends the command while the thread waits; it ends with the process.
        threading.Thread(target=read, name="stdin", daemon=True).start()
        return await line

    def _line(self) -> str | None:
        while b"\n" not in self._ahead:
            if len(self._ahead) > _MAX_LINE:
                raise click.UsageError(f"a line has more than {_MAX_LINE} bytes")
            chunk = self._chunk()
            if not chunk:
                rest, self._ahead = self._ahead, b""
                return _text(rest) if rest else None
            self._ahead += chunk
        line, _, self._ahead = self._ahead.partition(b"\n")
        return _text(line)

    def _chunk(self) -> bytes:
        if self._descriptor is None:
            return sys.stdin.readline().encode("utf-8", "replace")
        # Not the buffered reader: its lock, held by a thread that waits, would stop the end of the process.
        return os.read(self._descriptor, _CHUNK)


def _text(line: bytes) -> str:
    return line.decode("utf-8", "replace").rstrip("\r")
