"""JSON, tables and labelled lines for a terminal, which obeys no control sequence of foreign text in them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

import msgspec

from bus.telemetry.terminal import printable

__all__ = ["details", "encode_json", "raw_json", "table_lines", "terminal_json"]

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
    return msgspec.Raw(terminal_json(data))


def terminal_json(data: bytes) -> bytes:
    """Return the JSON *data* with what a terminal might obey escaped."""
    if data.isascii() and b"\x7f" not in data:
        return data
    return _UNSAFE_IN_JSON.sub(_json_escape, data.decode()).encode()


def _json_escape(found: re.Match[str]) -> str:
    code = ord(found[0])
    if code <= 0xFFFF:  # noqa: PLR2004 - the last code point of one UTF-16 unit
        return f"\\u{code:04x}"
    high, low = divmod(code - 0x10000, 0x400)
    return f"\\u{0xD800 + high:04x}\\u{0xDC00 + low:04x}"


def details(about: Mapping[str, object], *, width: int = 14) -> Iterator[str]:
    """Return one line per entry of *about* that has a value: name and value, printable."""
    for name, value in about.items():
        if value not in (None, "", [], {}, ()):
            shown = ", ".join(map(str, value)) if isinstance(value, list | tuple) else value
            yield f"{name + ':':<{width}}{printable(shown if isinstance(shown, str) else str(shown))}"


def table_lines(headings: Sequence[str], rows: Iterable[Sequence[object]]) -> Iterator[str]:
    """Yield the lines of a table: columns under *headings*, numbers right-aligned.

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
        yield "  ".join(padded).rstrip()
