"""Whole files: small files that one writer at a time replaces, so that no reader sees half of one."""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bus.errors import ConfigurationError

__all__ = ["one_writer", "write_whole"]


@contextmanager
def one_writer(folder: Path, *, mode: int = 0o777) -> Iterator[None]:
    """Hold the lock of *folder*, which gets *mode* where it is made here. Raises ConfigurationError."""
    try:
        folder.mkdir(mode=mode, parents=True, exist_ok=True)
        if sys.platform == "win32":
            yield
            return
        import fcntl

        held = os.open(folder, os.O_RDONLY)
    except OSError as error:
        raise ConfigurationError(f"{folder} cannot be used: {error.strerror}") from error
    try:
        fcntl.flock(held, fcntl.LOCK_EX)
        yield
    finally:
        os.close(held)


def write_whole(path: Path, text: bytes, *, mode: int, keeps_rights: bool = False) -> None:
    """Replace *path* by a file with *text* and *mode*, durably.

    *keeps_rights*: a file that is there keeps its own mode, and its owner where this process may set one. Raises
    ConfigurationError.
    """
    try:
        number, part = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(number, "wb") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            _set_rights(Path(part), path if keeps_rights else None, mode)
            Path(part).replace(path)
        except BaseException:
            with contextlib.suppress(OSError):
                Path(part).unlink()
            raise
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be written: {error.strerror}") from error


def _set_rights(part: Path, model: Path | None, mode: int) -> None:
    if model is not None:
        with contextlib.suppress(FileNotFoundError):
            old = model.stat()
            mode = old.st_mode & 0o777
            if sys.platform != "win32" and os.geteuid() == 0:
                os.chown(part, old.st_uid, old.st_gid)
    part.chmod(mode)
