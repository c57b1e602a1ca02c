"""Escape foreign text for a terminal, which might obey control sequences in it.

Owns escaping for logs and the command line.
"""

from __future__ import annotations

from typing import Final

__all__ = ["preview", "printable"]


def printable(text: str, *, keep: str = "") -> str:
    r"""Return *text* with control sequences for terminals escaped (`\x1b`, `\u202e`), except characters in *keep*."""
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() or char in keep else char.encode("unicode_escape").decode("ascii") for char in text
    )


_PREVIEW_BYTES: Final = 2_048


_HEX_WIDTH: Final = 16


def preview(data: bytes) -> str:
    """Return the beginning of *data*: as escaped text if it is UTF-8, otherwise in hex."""
    head = data[:_PREVIEW_BYTES]
    try:
        text = printable(head.decode("utf-8", "strict" if len(data) == len(head) else "ignore"), keep="\n")
    except UnicodeDecodeError:
        text = "\n".join(_hex_line(head, at) for at in range(0, len(head), _HEX_WIDTH))
    return text if len(data) == len(head) else f"{text}\n... {len(data) - len(head)} more bytes"


def _hex_line(data: bytes, at: int) -> str:
    part = data[at : at + _HEX_WIDTH]
    text = "".join(chr(code) if 32 <= code < 127 else "." for code in part)  # noqa: PLR2004 - visible ASCII
    return f"{at:06x}  {part.hex(' '):<{_HEX_WIDTH * 3}} {text}"
