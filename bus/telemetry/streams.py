"""Standard streams that may be closed, full or gone."""

from __future__ import annotations

import contextlib
import io
import os
import sys
from typing import Any, TextIO, cast

__all__ = ["open_standard_streams", "silence_stdout"]


class _Forgiving:
    """Standard error that drops text it cannot write.

    A failed write must not change what a command does and how it ends.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        with contextlib.suppress(OSError):
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with contextlib.suppress(OSError):
            self._stream.flush()


def open_standard_streams() -> None:
    """Replace closed standard streams by empty ones, so that no file opened later takes their descriptors."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            # Lives until the process ends.
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: PTH123, SIM115
    if isinstance(sys.stdout, io.TextIOWrapper):
        # Escape characters the locale cannot encode, as standard error does: ids and keys may hold any.
        sys.stdout.reconfigure(errors="backslashreplace")
    if not isinstance(sys.stderr, _Forgiving):
        sys.stderr = cast("TextIO", _Forgiving(sys.stderr))


def silence_stdout() -> None:
    """Discard what Python still flushes at exit: the reader is gone (`| head`), or the disk is full."""
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (OSError, ValueError):
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: PTH123, SIM115 - lives until the process ends
