"""What a run is given and what comes of it, as values.

Owns the load of a run, its result, and what a run needs of a log. A run itself is `arena`'s.
"""

from __future__ import annotations

from typing import Protocol

import msgspec
from harness.checker import Violation
from harness.history import Commit, Entry, Note
from harness.timeline import Timeline

__all__ = ["Load", "Log", "Result"]


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """What is published in a run, and by how many it is handled; see `publisher.Config`."""

    count: int = 400
    rate: float = 200.0
    workers: int = 2
    keys: int = 40
    types: dict[str, int] = msgspec.field(default_factory=lambda: {"fault.task": 1})
    mix: dict[str, int] = msgspec.field(default_factory=lambda: {"ok": 1})
    duplicates: float = 0.0
    most_repeats: int = 1
    forged: float = 0.0
    asking: float = 0.0
    ttl_s: float = 3600.0
    timeout_s: float = 20.0
    head_start_s: float = 0.0
    """How long messages come in before anybody handles them."""
    disk_mb: int = 0
    """How large the file system is that the log has for itself; 0: it has none."""
    absent: tuple[str, ...] = ()
    """Topics whose names end so are not there at the beginning."""
    environment: dict[str, str] = {}


class Result(msgspec.Struct, kw_only=True):
    """What came of one run."""

    timeline: Timeline
    counts: dict[str, int]
    violations: tuple[Violation, ...]
    injected: int
    fallen: int
    recovery_s: float
    stall_s: float
    took_s: float
    codes: tuple[int, ...]
    folder: str = ""

    @property
    def passed(self) -> bool:
        """Whether no rule was violated."""
        return not self.violations


class Log(Protocol):
    """A log as a run needs it."""

    name: str
    url: str

    def watch(self) -> None: ...

    def lag(self) -> int | None: ...

    def entries(self) -> list[Entry]: ...

    def commits(self) -> list[Commit]: ...

    def notes(self) -> list[Note]: ...

    def size(self, kind: str) -> int: ...
