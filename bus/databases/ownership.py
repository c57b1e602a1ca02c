"""File ownership: log and inbox files are created for this user alone.

Owns how these files, and the files SQLite keeps beside them, are created, and which existing ones are refused. A user
who can write an inbox decides what a worker sends, and one who can read a log has every message. Does not apply to the
applications' databases that hold an outbox.
"""

from __future__ import annotations

import contextlib
import os
import stat
import sys
from pathlib import Path

from bus.databases.sqlite_file import MEMORY
from bus.errors import ConfigurationError

__all__ = ["keep_private"]

_BESIDE = ("", "-wal", "-shm", "-journal")
_ALLOW = "or set bus.shared_files = true if sharing is intended"


def keep_private(path: str, what: str, *, shared: bool) -> None:
    """Create the file at *path* if it is missing, for this user alone, or with *shared* for its group too.

    SQLite gives the files beside it the same rights. *what* names the file in errors. Raises ConfigurationError for a
    file that belongs to another user, is a symbolic link, or is writable by others; with *shared*, only for a
    world-writable file. Other faults are left for SQLite to report.
    """
    if path == MEMORY or sys.platform == "win32":
        return
    with contextlib.suppress(OSError):
        made = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            if shared:
                # Independent of this user's umask: the next user must be able to write the file.
                os.fchmod(made, 0o660)
        finally:
            os.close(made)
    for ending in _BESIDE:
        with contextlib.suppress(OSError):
            _check(path + ending, what, shared=shared)


def _check(path: str, what: str, *, shared: bool) -> None:
    found = Path(path).lstat()
    if stat.S_ISLNK(found.st_mode):
        if not shared:
            raise ConfigurationError(
                f"the {what} {path} is a symbolic link, whose owner chooses the file: name that, {_ALLOW}"
            )
        found = Path(path).stat()
    mode = stat.S_IMODE(found.st_mode)
    if mode & stat.S_IWOTH:
        raise ConfigurationError(f"everybody may write to the {what} {path} (mode {mode:04o}): chmod 600 it")
    if shared:
        return
    if mode & stat.S_IWGRP:
        raise ConfigurationError(f"its group may write to the {what} {path} (mode {mode:04o}): chmod 600 it, {_ALLOW}")
    if found.st_uid not in (os.geteuid(), 0):
        raise ConfigurationError(
            f"the {what} {path} belongs to user {found.st_uid}, this is user {os.geteuid()}: chown it, {_ALLOW}"
        )
