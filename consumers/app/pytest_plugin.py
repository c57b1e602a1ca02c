"""The pytest plugin of an installed sealbus: plain `pytest` runs `async def test_...`, each in a loop of its own.

Tests that another plugin runs (pytest-asyncio, anyio, trio) are left to it. `pytest -p no:sealbus` switches this off.
"""

from __future__ import annotations

import asyncio
import inspect

import pytest

__all__ = ["pytest_pyfunc_call"]

_OTHERS = ("anyio", "asyncio", "trio")


def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a coroutine function to its end; None leaves any other test to other plugins."""
    function = pyfuncitem.obj
    if not inspect.iscoroutinefunction(function) or any(map(pyfuncitem.get_closest_marker, _OTHERS)):
        return None
    names = inspect.signature(function).parameters
    asyncio.run(function(**{name: pyfuncitem.funcargs[name] for name in names if name in pyfuncitem.funcargs}))
    return True
