"""Jobs: what the one writer is asked for, and what a job sees of its transaction.

Owns these values. Does not own their order, their thread or their commit (`writer`), nor what they do (`inbox`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec

from consumers.inbox.base import Ask, End
from consumers.inbox.rules import Row
from consumers.inbox.sqlite.table import Table

__all__ = ["Batch", "Job", "Session"]


class Batch:
    """What jobs of one transaction see and change; written together when all have run."""

    __slots__ = ("changed", "rows", "table")

    def __init__(self, table: Table, keys: Iterable[str]) -> None:
        self.table = table
        self.rows: dict[str, Row] = table.rows(keys)
        self.changed: dict[str, Row] = {}

    def put(self, key: str, row: Row) -> None:
        """*row* stands under *key* from now on, for the jobs that follow too."""
        self.rows[key] = self.changed[key] = row


class Session:
    """A handler's transaction: from the job that begins it, until it is over, the writer does nothing else."""

    __slots__ = ()


class Job(msgspec.Struct, eq=False):
    """One action: in a transaction with others, or, with a *session*, a step of that one. *key* is the row it looks at.

    Without an *action* it is claims or results, which have their answers in themselves: what the writer's `quick` answers for many at once.
    Without a *future*, *told* is called with them. *durable*: it is answered when what it did outlives a crash of the machine; without an
    action, claims and results that is all it asks for.
    """

    future: asyncio.Future[Any] | None = None
    action: Callable[[Batch], Any] | None = None
    key: str = ""
    session: Session | None = None
    begins: bool = False
    last: bool = False
    durable: bool = False
    asks: Sequence[Ask] = ()
    ends: Sequence[End] = ()
    told: Callable[[Any], object] | None = None
    value: Any = None
    error: BaseException | None = None

    def items(self) -> Sequence[Ask | End]:
        """Its claims or results."""
        return self.asks or self.ends

    def fail(self, error: Exception) -> None:
        """By *error*; of many claims or results each by one of its own, for an error that is raised twice would carry two tracebacks."""
        self.value, self.error = None, error
        items = self.items()
        for item in items:
            item.answer = error if len(items) == 1 else type(error)(*error.args)

    def apart(self) -> list[Job]:
        """Each of many claims or results alone, as if nothing had been tried."""
        self.value = self.error = None
        for item in self.items():
            item.answer = None
        return [self] if len(self.items()) <= 1 else [*(Job(asks=(ask,)) for ask in self.asks), *(Job(ends=(end,)) for end in self.ends)]
