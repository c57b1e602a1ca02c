"""The compiled hot path, where it is there.

Owns finding it: `core` is the compiled module, or None; then everything is done in Python, slower and with the same
bytes and verdicts. Its source is Rust beside this file; `make native` builds it in place, and a wheel built where there
is a Rust toolchain has it inside. SEALBUS_NATIVE=off leaves it aside, SEALBUS_NATIVE=require refuses to work without
it.
"""

from __future__ import annotations

import os
from types import ModuleType

__all__ = ["core"]


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
