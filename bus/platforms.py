"""The systems that sealbus runs on: those with the calls of POSIX.

Owns the check, which is made once, when any part of sealbus is imported.
"""

from __future__ import annotations

import os

__all__ = ["check_platform"]

_CALLS = ("fchmod", "fork", "geteuid", "getuid", "link", "register_at_fork")


def check_platform() -> None:
    """Raise ImportError, with the cure, on a system without the calls of POSIX, such as Windows."""
    missing = next((f"os.{name}" for name in _CALLS if not hasattr(os, name)), "")
    if not missing:
        try:
            import fcntl  # noqa: F401 - whether it is there
            import mmap  # noqa: F401
        except ImportError as error:
            missing = error.name or "fcntl"
    if missing or os.name != "posix":
        what = missing or f"os.name = {os.name!r}"
        raise ImportError(
            f"sealbus runs on Linux and macOS, and not on this system ({what}): on Windows, run it inside WSL, "
            "https://learn.microsoft.com/windows/wsl/install"
        )
