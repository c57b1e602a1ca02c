"""ArtifactFolder: artifacts as files of a folder, each under its hash."""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from pathlib import Path
from typing import Final

__all__ = ["ArtifactFolder"]

_PIECE: Final = 1_048_576


class ArtifactFolder:
    """The artifacts of *namespace* below *folder*, which is made where it is missing (mode 0700)."""

    def __init__(self, folder: Path, namespace: str) -> None:
        self._folder = folder / namespace

    def write(self, name: str, source: Path) -> None:
        """Store the file *source* under *name*. Raises OSError."""
        path = self._path(name)
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if _digest_of(path) == name:
            return
        # A name of its own: others may put the same content at the same time. Readable for the owner alone.
        descriptor, made = tempfile.mkstemp(prefix=f".{name}.", suffix=".part", dir=path.parent)
        part = Path(made)
        try:
            with os.fdopen(descriptor, "wb") as writing, source.open("rb") as reading:
                shutil.copyfileobj(reading, writing, _PIECE)
                writing.flush()
                os.fsync(writing.fileno())
            part.replace(path)
        except BaseException:
            # On a full disk the beginning of one artifact would keep the room of many others.
            part.unlink(missing_ok=True)
            raise
        _sync_folder(path.parent)

    def read(self, name: str, target: Path, max_bytes: int) -> None:
        """Copy what lies under *name* to *target*. Raises OSError."""
        left = max_bytes + 1
        # A link that somebody has put there leads nowhere.
        descriptor = os.open(self._path(name), os.O_RDONLY | os.O_NOFOLLOW)
        with os.fdopen(descriptor, "rb") as reading, target.open("wb") as writing:
            while left > 0 and (piece := reading.read(min(_PIECE, left))):
                writing.write(piece)
                left -= len(piece)

    def _path(self, name: str) -> Path:
        return self._folder / name[:2] / name


def _digest_of(path: Path) -> str:
    """Return the SHA-256 of the file at *path*; empty where there is none that can be read."""
    try:
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW), "rb") as reading:
            return hashlib.file_digest(reading, "sha256").hexdigest()
    except OSError:
        return ""


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
