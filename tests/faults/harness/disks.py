"""A small file system of its own, for a log that shall run out of space.

Owns mounting, filling and leaving it; what lay in it stays where a run fails.
"""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path

__all__ = ["filled", "lacking", "mounted"]

_PIECES = (1 << 20, 1 << 12, 1)


@contextlib.contextmanager
def mounted(folder: Path, megabytes: int) -> Iterator[None]:
    """A file system of that size in *folder*; afterwards its files lie in *folder* itself. Raises
    CalledProcessError."""
    folder.mkdir()
    subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", str(folder)], check=True, capture_output=True
    )
    kept = folder.with_name(f"{folder.name}-kept")
    try:
        yield
        shutil.copytree(folder, kept)
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True, capture_output=True)
    folder.rmdir()
    kept.rename(folder)


@contextlib.contextmanager
def filled(folder: Path) -> Iterator[None]:
    """Whatever is free in the file system of *folder* is taken."""
    ballast = folder / "ballast"
    with ballast.open("ab", buffering=0) as file:
        for size in _PIECES:
            with contextlib.suppress(OSError):
                while True:
                    file.write(b"\0" * size)
    try:
        yield
    finally:
        ballast.unlink()


@cache
def lacking() -> str:
    """Why no file system can be mounted here; empty when one can."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            with mounted(Path(folder) / "try", 1):
                return ""
        except (OSError, subprocess.CalledProcessError):
            return "no file system can be mounted here: that is for root on Linux"
