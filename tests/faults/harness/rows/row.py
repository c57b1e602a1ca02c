"""A row of the fault matrix: what is loaded, what goes wrong, and where it runs.

Owns the value. The rows themselves are in the modules beside it.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any

import msgspec
from harness import product
from harness.arena import Arena
from harness.terms import Load
from harness.timeline import Fault

__all__ = ["MIX", "TYPES", "Row", "always"]

MIX: Mapping[str, int] = {"ok": 12, "answer": 4, "lane:2": 1, "tier:1": 1, "reject": 1} | (
    {"pay": 2} if product.has_inbox() else {}
)
TYPES: Mapping[str, int] = {"fault.task": 3, "fault.strict": 2, "fault.free": 1}


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """*name* begins with the number in the matrix. *schedule* draws the faults, *script* does what needs the load to be
    through."""

    name: str
    title: str
    logs: tuple[str, ...]
    schedule: Callable[[random.Random], Iterable[Fault]]
    load: Load
    script: Callable[[Arena], Awaitable[Any]] | None = None
    lacking: Callable[[], str] = lambda: ""
    """What the product lacks for this row; empty when it can run."""
    quick: bool = False
    """Whether it is among those that run in minutes."""
    quick_logs: tuple[str, ...] = ("embedded",)
    seeds: int = 20
    """How many seeds the whole matrix takes of it."""
    reaches: bool = False
    """Whether its faults count only when a process has died of them."""

    @property
    def number(self) -> str:
        """The number in the matrix."""
        return self.name.partition("-")[0]


def always(*faults: Fault) -> Callable[[random.Random], Iterable[Fault]]:
    """A schedule that is the same for each seed."""
    return lambda _: faults
