"""Find the settings of a project: `sealbus.toml` in the current folder or above it.

Owns where the search ends, and refusing a file that another user could have put there: settings name code to import.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from bus.errors import ConfigurationError

__all__ = ["SETTINGS_FILE", "find_settings_file"]

SETTINGS_FILE: Final = "sealbus.toml"
_ROOT_MARKS: Final = (".git", "pyproject.toml")


def find_settings_file() -> Path | None:
    """Return the `sealbus.toml` of the current folder, else of the nearest parent, up to the root of the project.

    The root is the first folder with `.git` or `pyproject.toml`. None without such a file. Raises ConfigurationError
    for a file that belongs neither to this user nor to root: without its settings a process would use another log, and
    no policy.
    """
    try:
        here = Path.cwd()
    except OSError:
        return None
    for folder in (here, *here.parents):
        file = folder / SETTINGS_FILE
        if file.is_file():
            _check_owner(file)
            return file
        if any((folder / mark).exists() for mark in _ROOT_MARKS):
            return None
    return None


def _check_owner(file: Path) -> None:
    if not hasattr(os, "getuid"):
        return
    if foreign := _owners(file) - {0, os.getuid()}:
        raise ConfigurationError(
            f"{file} belongs to user {min(foreign)} and is not read: name it with --config or SEALBUS_CONFIG if its "
            "settings are meant"
        )


def _owners(file: Path) -> set[int]:
    """Return who owns *file*: a link, and its target."""
    return {file.stat().st_uid, file.lstat().st_uid}
