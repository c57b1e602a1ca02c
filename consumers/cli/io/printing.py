"""Write to standard output: previews, tables, JSON lines.

Owns keeping control sequences of foreign text away from the terminal.
"""

from __future__ import annotations

import asyncio
import shutil
import sys
from collections.abc import Iterable, Sequence
from typing import Any, Final

import click

from bus.telemetry.terminal_json import encode_json, table_lines, terminal_json

__all__ = ["LineWriter", "print_json", "print_table"]

_FLUSH_BYTES: Final = 65_536


def print_json(value: Any) -> None:
    """Print one line of JSON on standard output, always in UTF-8."""
    click.echo(terminal_json(encode_json(value)))


def print_table(headings: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print columns under *headings* on standard output, as `table_lines` makes them; a terminal is not overrun."""
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else 0
    for line in table_lines(headings, rows, width):
        click.echo(line)


class LineWriter:
    """Writes lines to standard output, together at the event loop's next turn.

    Fast for many lines, immediate for single ones. Use it as a context manager. A reader that has gone away ends it
    with BrokenPipeError, even if the task waits for something else.
    """

    def __init__(self) -> None:
        self._stream = sys.stdout.buffer
        self._loop = asyncio.get_running_loop()
        self._owner = asyncio.current_task()
        self._pending = bytearray()
        self.error: OSError | None = None

    def __enter__(self) -> LineWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self.error is not None:
            raise self.error
        if kind is None:
            self.flush()

    def write(self, line: bytes) -> None:
        """Add *line* and its line break."""
        if self.error is not None:
            raise self.error
        if not self._pending:
            self._loop.call_soon(self._turn)
        self._pending += line
        self._pending += b"\n"
        if len(self._pending) > _FLUSH_BYTES:
            self.flush()

    def write_json(self, value: Any) -> None:
        """Add *value* as a line of JSON."""
        self.write(terminal_json(encode_json(value)))

    def flush(self) -> None:
        """Write the collected lines now."""
        pending, self._pending = self._pending, bytearray()
        left = memoryview(bytes(pending))
        while left:
            # An unbuffered write that a signal interrupts writes only a part.
            left = left[self._stream.write(left) or 0 :]
        if pending:
            self._stream.flush()

    def _turn(self) -> None:
        try:
            self.flush()
        except OSError as error:
            self.error = error
            if self._owner is not None:
                self._owner.cancel()
