"""Decompress a batch up to a size limit.

A megabyte of zstd or gzip can hold gigabytes, and anyone with write access to a topic can send that. Decompressing all
of it would kill every worker of the partition, one after the other. Owns that limit, and the two codecs that can exceed
it by far; `record_parsing` decides what happens to such a batch.
"""

from __future__ import annotations

import threading
import zlib
from typing import Final

import zstandard

__all__ = ["MAX_DECOMPRESSED_BYTES", "TooLargeError", "usual", "whole"]

MAX_DECOMPRESSED_BYTES: Final = 16 * 1_048_576
"""The most bytes of one batch; many times the content of any sound batch, as producers limit theirs uncompressed."""
_USUAL_BYTES: Final = 1_048_576
_PIECE_BYTES: Final = 1_048_576
_NONE, _GZIP, _ZSTD = 0, 1, 4
_GZIP_WINDOW: Final = 31


class TooLargeError(Exception):
    """The content exceeds MAX_DECOMPRESSED_BYTES; `beginning` is its first MAX_DECOMPRESSED_BYTES."""

    def __init__(self, beginning: bytes) -> None:
        super().__init__(f"a batch contains more than {MAX_DECOMPRESSED_BYTES} bytes")
        self.beginning = beginning


class _Own(threading.local):
    """One decompressor per thread: a decompressor serves one caller at a time and releases the GIL while it works."""

    def __init__(self) -> None:
        self.zstd = zstandard.ZstdDecompressor()


_own: Final = _Own()


def usual(section: memoryview, codec: int) -> bytes | None:
    """Decompress the first zstd frame of *section* in one step.

    Returns None if it is larger than usual, broken, or of another codec. Most batches are one frame; only reading the
    records shows whether this one is.
    """
    if codec != _ZSTD:
        return None
    try:
        # The decompressor allocates as much memory as the frame declares.
        if zstandard.frame_content_size(section) <= _USUAL_BYTES:
            return _own.zstd.decompress(section, max_output_size=_USUAL_BYTES)
    except zstandard.ZstdError:
        pass
    return None


def whole(section: memoryview, codec: int) -> bytes | memoryview | None:
    """Decompress all of *section*; return None for a codec without large expansion, or an unknown one.

    *codec* is its number in a batch's attributes. Raises TooLargeError, and ValueError for broken data.
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
    left = MAX_DECOMPRESSED_BYTES
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
        content += decompressor.decompress(rest, MAX_DECOMPRESSED_BYTES + 1 - len(content))
        if len(content) > MAX_DECOMPRESSED_BYTES:
            raise TooLargeError(bytes(content[:MAX_DECOMPRESSED_BYTES]))
        if not decompressor.eof:
            raise ValueError("the content ends before its time")
        rest = decompressor.unused_data
    return bytes(content)
