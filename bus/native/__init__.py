"""The compiled code for the hot path, if present.

Owns finding it: `core` is the compiled module or None. With None everything runs in Python, slower, with the same bytes
and verdicts. The Rust source is beside this file. `make native` builds it in place; a wheel built with a Rust toolchain
contains it. SEALBUS_NATIVE=off ignores it, SEALBUS_NATIVE=require raises ImportError without it.
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
