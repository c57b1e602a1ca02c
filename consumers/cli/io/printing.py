"""Write to standard output: previews, tables, JSON lines.

Owns keeping control sequences of foreign text away from the terminal.
"""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, TypeVar

import click
import msgspec

from bus.telemetry.terminal import printable

__all__ = ["LineWriter", "bars", "encode_json", "print_json", "print_table", "raw_json"]

_FLUSH_BYTES: Final = 65_536
# Characters that JSON text may hold unescaped and a terminal or reader might obey: DEL, C1, bidirectional and other
# invisible format characters.
_UNSAFE_IN_JSON: Final = re.compile(
    "[\x7f-\x9f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\U000e0000-\U000e007f]"
)
_PLAIN: Final = re.compile(rb"[ -~]*\Z")
_LINE_BREAKS: Final = re.compile(rb"[\r\n\t]")

encode_json = msgspec.json.Encoder(enc_hook=str).encode
_decode = msgspec.json.Decoder().decode


def raw_json(data: bytes) -> msgspec.Raw | None:
    """Return *data* for embedding in a JSON line, or None if it is not JSON."""
    try:
        value = _decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    if _PLAIN.match(data):
        return msgspec.Raw(data)
    if _LINE_BREAKS.search(data):
        data = encode_json(value)
    return msgspec.Raw(_safe(data))


def print_json(value: Any) -> None:
    """Print one line of JSON on standard output, always in UTF-8."""
    click.echo(_safe(encode_json(value)))


def print_table(headings: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print columns under *headings* on standard output; numbers are right-aligned.

    Cells may hold foreign text. Nothing is cut or wrapped.
    """
    cells = [[printable(str(cell)) for cell in row] for row in rows]
    widths = [
        max(len(heading), *(len(row[at]) for row in cells)) if cells else len(heading)
        for at, heading in enumerate(headings)
    ]
    numeric = [
        bool(cells) and all(row[at].isdigit() or row[at] in ("-", "") for row in cells) for at in range(len(headings))
    ]
    for row in ([*headings], *cells):
        padded = (
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(row, widths, numeric, strict=True)
        )
        click.echo("  ".join(padded).rstrip())


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
        self.write(_safe(encode_json(value)))

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


def _safe(data: bytes) -> bytes:
    if data.isascii() and b"\x7f" not in data:
        return data
    return _UNSAFE_IN_JSON.sub(_json_escape, data.decode()).encode()


def _json_escape(found: re.Match[str]) -> str:
    code = ord(found[0])
    if code <= 0xFFFF:  # noqa: PLR2004 - the last code point of one UTF-16 unit
        return f"\\u{code:04x}"
    high, low = divmod(code - 0x10000, 0x400)
    return f"\\u{0xD800 + high:04x}\\u{0xDC00 + low:04x}"


_WIDTH: Final = 30


KeyT = TypeVar("KeyT", bound=tuple[str, ...])


def bars(headings: Sequence[str], counts: Mapping[KeyT, int]) -> list[str]:
    """Return the headings and one line per count, the largest first, each with a bar of matching length."""
    if not counts:
        return []
    rows = [
        (*(printable(part) or "-" for part in key), str(count))
        for key, count in sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    ]
    titles = (*headings, "DEAD LETTERS")
    widths = [max(len(title), *(len(row[at]) for row in rows)) for at, title in enumerate(titles)]
    largest = max(counts.values())
    lines = ["  ".join(title.ljust(width) for title, width in zip(titles, widths, strict=True)).rstrip()]
    for row in rows:
        cells = [cell.ljust(width) for cell, width in zip(row[:-1], widths, strict=False)]
        bar = _block() * max(1, round(int(row[-1]) / largest * _WIDTH))
        lines.append("  ".join([*cells, row[-1].rjust(widths[-1]), bar]))
    return lines


def _block() -> str:
    """Return the character for bars, if the output can show it."""
    try:
        "█".encode(sys.stdout.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return "#"
    return "█"
