"""What a compressed batch holds, up to a bound.

A megabyte of zstd or gzip can hold gigabytes, and whoever may write to a topic may write that: reading it whole would
end every worker of the partition, one after the other. Owns that bound, and the two codecs that can go beyond it by
much; does not own what becomes of a batch that does (`parsing`).
"""

from __future__ import annotations

import threading
import zlib
from typing import Final

import zstandard

__all__ = ["MOST_BYTES", "TooLargeError", "usual", "whole"]

MOST_BYTES: Final = 16 * 1_048_576
"""Many times what any sound batch holds: producers bound theirs before they compress them."""
_USUAL_BYTES: Final = 1_048_576
_PIECE_BYTES: Final = 1_048_576
_NONE, _GZIP, _ZSTD = 0, 1, 4
_GZIP_WINDOW: Final = 31


class TooLargeError(Exception):
    """There is more than MOST_BYTES; `beginning` is that much of it."""

    def __init__(self, beginning: bytes) -> None:
        super().__init__(f"a batch holds more than {MOST_BYTES} bytes")
        self.beginning = beginning


class _Own(threading.local):
    """Made once for each thread: a decompressor is used by one at a time, and lets other threads run meanwhile."""

    def __init__(self) -> None:
        self.zstd = zstandard.ZstdDecompressor()


_own: Final = _Own()


def usual(section: memoryview, codec: int) -> bytes | None:
    """What the first zstd frame of *section* holds, in one step.

    None where that is more than usual, broken, or another codec.

    Most batches are one frame; whether this one is shows only when its records are read.
    """
    if codec != _ZSTD:
        return None
    try:
        # A frame that says how long its content is gets as much memory as it says.
        if zstandard.frame_content_size(section) <= _USUAL_BYTES:
            return _own.zstd.decompress(section, max_output_size=_USUAL_BYTES)
    except zstandard.ZstdError:
        pass
    return None


def whole(section: memoryview, codec: int) -> bytes | memoryview | None:
    """All that *section* holds; None where the codec cannot blow up, or is unknown.

    The codec is its number in a batch's attributes.

    Raises TooLargeError, and ValueError for what is broken.
    """
    try:
        if codec == _ZSTD:
            return _zstd(section)
        if codec == _GZIP:
            return _gzip(section)
    except (zstandard.ZstdError, zlib.error) as error:
        raise ValueError(str(error)) from error
    return section if codec == _NONE else None


def _zstd(section: memoryview) -> bytes:
    pieces: list[bytes] = []
    left = MOST_BYTES
    with zstandard.ZstdDecompressor().stream_reader(section, read_across_frames=True) as reader:
        while piece := reader.read(min(_PIECE_BYTES, left + 1)):
            if len(piece) > left:
                raise TooLargeError(b"".join([*pieces, piece[:left]]))
            pieces.append(piece)
            left -= len(piece)
    return b"".join(pieces)


def _gzip(section: memoryview) -> bytes:
    content = bytearray()
    rest: bytes | memoryview = section
    while rest:
        decompressor = zlib.decompressobj(_GZIP_WINDOW)
        content += decompressor.decompress(rest, MOST_BYTES + 1 - len(content))
        if len(content) > MOST_BYTES:
            raise TooLargeError(bytes(content[:MOST_BYTES]))
        if not decompressor.eof:
            raise ValueError("the content ends before its time")
        rest = decompressor.unused_data
    return bytes(content)
