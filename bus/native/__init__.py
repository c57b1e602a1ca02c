"""The hot path's functions: the compiled ones, if present, or else their twins in Python.

Owns the choice, once for the process. The Rust source is beside this file, its twins in `bus.native.twins`: callers
import from here and need not know which one they get. `core` is the compiled module or None; a few callers skip a whole
fast path without it. `make native` builds it in place; a wheel built with a Rust toolchain contains it.
SEALBUS_NATIVE=off ignores it, SEALBUS_NATIVE=require raises ImportError without it. `hot_path` says which one a process
has, for its first log line.
"""

from __future__ import annotations

import os
from types import ModuleType
from typing import TYPE_CHECKING


def _found(wish: str) -> ModuleType | None:
    if wish == "off":
        return None
    try:
        from bus.native import _core
    except ImportError:
        if wish == "require":
            raise
        return None
    return _core


core = _found(os.environ.get("SEALBUS_NATIVE", ""))
if TYPE_CHECKING or core is not None:
    from bus.native._core import *  # noqa: F403 - all of it
else:
    from bus.native.twins import *  # noqa: F403 - the same names


def hot_path(core: object = core) -> dict[str, str]:
    """Return the way that messages go here, `compiled` or `python`, and what to do about the slow one."""
    if core is not None:
        return {"hot_path": "compiled"}
    cure = (
        "unset SEALBUS_NATIVE, which is off"
        if os.environ.get("SEALBUS_NATIVE") == "off"
        else "install a prebuilt wheel, or a Rust toolchain and then sealbus again (pip install --force-reinstall "
        "--no-cache-dir); in a checkout, make native"
    )
    return {"hot_path": "python", "hint": f"a message takes about three times the processor time: {cure}"}
