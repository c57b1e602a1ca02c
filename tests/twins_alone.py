"""The hot path in Python alone, in a process that has the compiled one."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any
from unittest import mock

from bus import native
from bus.native import twins

__all__ = ["twins_alone"]


def twins_alone() -> AbstractContextManager[Any]:
    """What is asked of `bus.native` meanwhile, the twins in Python answer."""
    return mock.patch.multiple(native, core=None, **{name: getattr(twins, name) for name in twins.__all__})
