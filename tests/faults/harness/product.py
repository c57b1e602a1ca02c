"""What the product under test can do, asked of itself: rows that need more are listed as not run.

Owns these questions and nothing else.
"""

from __future__ import annotations

import typing
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import bus
import consumers.delivery.declaration

__all__ = ["STRICT_ORDER", "has_failpoints", "has_inbox", "has_strict_order", "setting_names"]

ROOT = Path(str(bus.__file__)).resolve().parent.parent


@cache
def setting_names() -> frozenset[str]:
    """Every setting, as `section.name`."""
    from bus.settings import loading

    loaded = loading.load(flags={}, env={}, file=None)
    return frozenset(name for name, _, _ in loading.describe(loaded))


def has_strict_order() -> bool:
    """Whether a subscription can keep order through retries."""
    return "key_strict" in typing.get_args(consumers.delivery.declaration.Order)


STRICT_ORDER: typing.Any = "key_strict" if has_strict_order() else "key"


@cache
def has_inbox() -> bool:
    """Whether the inbox exists and the worker asks it."""
    if "inbox.url" not in setting_names() or find_spec("consumers.delivery.inbox.sqlite") is None:
        return False
    # A store that nobody opens suppresses nothing.
    paths = (ROOT / "consumers" / "worker").rglob("*.py")
    return any("consumers.delivery.inbox" in path.read_text("utf-8") for path in paths)


@cache
def has_failpoints() -> frozenset[str]:
    """The names of the failpoints that some line of the product reaches."""

    sources = [
        path.read_text("utf-8") for package in ("consumers", "producers") for path in (ROOT / package).rglob("*.py")
    ]
    from bus.failpoints import FAILPOINTS

    return frozenset(name for name in FAILPOINTS if any(f'reach("{name}")' in source for source in sources))
