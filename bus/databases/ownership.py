"""Whose a file is: the log and the inbox are made for this user alone.

Neither is opened where somebody else may change it.

Owns what is made and what is refused, for a file and what SQLite keeps beside it. A user who can write an inbox decides
what a worker sends, and one who can read a log has every message. Not for the databases of others, in which an outbox
is.
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
_ALLOW = "or say bus.shared_files = true where that is meant"


def keep_private(path: str, what: str, *, shared: bool) -> None:
    """Make the file at *path* where there is none, for this user alone.

    Where files are *shared* it is for the user's group too. SQLite gives what it keeps beside it the same rights.

    Raises ConfigurationError for one, *what* it is in a word, that is another user's, is a symbolic link, or may be
    written by others; where files are shared only for one that everybody may write. What cannot be made or seen is left
    to SQLite to tell.
    """
    if path == MEMORY or sys.platform == "win32":
        return
    with contextlib.suppress(OSError):
        made = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            if shared:
                # Whatever the mask of this user says: the next one has to write it too.
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
                f"the {what} {path} is a symbolic link, and whoever made it chooses the file: name that, {_ALLOW}"
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
