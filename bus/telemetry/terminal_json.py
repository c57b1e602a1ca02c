"""JSON, tables and labelled lines for a terminal, which obeys no control sequence of foreign text in them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

import msgspec

from bus.redaction import cut
from bus.telemetry.terminal import printable

__all__ = ["details", "encode_json", "raw_json", "table_lines", "terminal_json"]

# Characters that JSON text may hold unescaped and a terminal or reader might obey: DEL, C1, bidirectional and other
# invisible format characters.
_UNSAFE_IN_JSON: Final = re.compile(
    "[\x7f-\x9f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\U000e0000-\U000e007f]"
)
_COPIED: Final = frozenset(("LOCATION", "EXAMPLE", "CAUSE", "GROUP", "MESSAGE"))
_LEAST_CUT: Final = 24
_MAX_PADDED: Final = 60
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


def table_lines(headings: Sequence[str], rows: Iterable[Sequence[object]], width: int = 0) -> Iterator[str]:
    """Yield the lines of a table: columns under *headings*, numbers right-aligned.

    Cells may hold foreign text. For a terminal of *width* columns long cells are cut, but for locations; 0: none is. A
    long cell moves what stands behind it in its own row only.
    """
    cells = [[printable(str(cell)) for cell in row] for row in rows]
    widths = [
        max(len(heading), *(len(row[at]) for row in cells)) if cells else len(heading)
        for at, heading in enumerate(headings)
    ]
    numeric = [
        bool(cells) and all(row[at].isdigit() or row[at] in ("-", "") for row in cells) for at in range(len(headings))
    ]
    if width:
        widths = _fitted(widths, width, [heading in _COPIED for heading in headings])
    for row in ([*headings], *cells):
        padded = (
            shown.rjust(column) if right else shown.ljust(min(column, _MAX_PADDED))
            for shown, column, right in zip(_shown(row, widths, width), widths, numeric, strict=True)
        )
        yield "  ".join(padded).rstrip()


def _shown(row: Sequence[str], widths: Sequence[int], width: int) -> Sequence[str]:
    return [cut(cell, column) for cell, column in zip(row, widths, strict=True)] if width else row


def _fitted(widths: Sequence[int], width: int, is_whole: Sequence[bool]) -> list[int]:
    """Return the widths of columns in a terminal of *width*: the widest are made narrower, to no less than a few words.

    *is_whole*: what must not be cut, for people copy it.
    """
    found = list(widths)
    excess = sum(found) + 2 * (len(found) - 1) - width
    while excess > 0:
        can = [at for at, whole in enumerate(is_whole) if not whole and found[at] > _LEAST_CUT]
        if not can:
            break
        widest = max(can, key=lambda at: found[at])
        found[widest] -= 1
        excess -= 1
    return found
