"""What happened in one run, as values: what was published, what handlers did, what the log holds, every commit, and who
died when.

Owns these values. Collecting them is `logs`' and `arena`'s, judging them `checker`'s.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from harness.journal import Published
from harness.ledger import Run

__all__ = ["Commit", "Entry", "History", "Life", "Note"]


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """One record of the log. *kind* is what its topic is for: `message`, `dlq`, `retry`, `redrive`, `reply`."""

    topic: str
    kind: str
    partition: int
    offset: int
    at_ms: float
    message_id: str
    content: str
    """The hash of its value."""
    said: str = ""
    """The hash of its data."""
    causation_id: str = ""
    order: int = -1
    """Its number among all appends to this log; -1 where the log has no such order."""
    headers: Mapping[str, str] = {}
    delay_s: float = 0.0
    """The fixed delay of a retry tier."""

    @property
    def place(self) -> tuple[str, int, int]:
        """Where it lies."""
        return self.topic, self.partition, self.offset

    @property
    def origin(self) -> tuple[str, int, int]:
        """The place that a retry record, a redrive or a dead letter says it comes from."""
        name = "__dlq.errors." if self.kind == "dlq" else "sb-origin-"
        return (
            self.headers.get(f"{name}topic", ""),
            int(self.headers.get(f"{name}partition", -1)),
            int(self.headers.get(f"{name}offset", -1)),
        )


class Commit(msgspec.Struct, frozen=True, kw_only=True):
    """The group said: everything of this partition below *offset* is settled. In the order in which the log accepted
    them."""

    topic: str
    partition: int
    offset: int
    at_ms: float
    order: int = -1
    """The last append before it; -1 where the log has no such order."""


class Note(msgspec.Struct, frozen=True, kw_only=True):
    """A record of the bus's own topics about dead letters: what became of one (its place is *key*), or what a command
    did."""

    topic: str
    key: str
    told: Mapping[str, Any]


class Life(msgspec.Struct, frozen=True, kw_only=True):
    """One process of a worker. *violent*: it ended, or stood still for long, in a way that it could not prepare for, at
    *ended_ms*.

    *code* is its exit code where it ended, *asked_ms* when it was asked to stop.
    """

    worker: str
    pid: int
    ended_ms: float
    violent: bool
    code: int | None = None
    asked_ms: float | None = None


class History(msgspec.Struct, frozen=True, kw_only=True):
    """All of one run."""

    published: Mapping[str, Published]
    runs: Sequence[Run]
    entries: Sequence[Entry]
    commits: Sequence[Commit]
    lives: Sequence[Life] = ()
    inbox: bool = False
    """Whether repetitions of a message with an idempotency key are to be suppressed."""
    payments: Mapping[str, int] = {}
    """Idempotency key -> effects that were written in the inbox's own transaction."""
    strict: frozenset[str] = frozenset()
    """The message types whose order per key holds through retries."""
    ordered: frozenset[str] = frozenset()
    """Those whose order per key holds where nothing failed."""
    lag: int | None = 0
    """Records not committed when the time for healing was over; None where nobody could tell."""
    redriven: bool = False
    """An operator has sent dead letters back: such a message may be both dead and handled."""
    notes: Sequence[Note] = ()
    """What was written down about that, in the order of each topic."""
    tier_s: float = 2.0
    """What a handler that asks for a tier asks for."""
