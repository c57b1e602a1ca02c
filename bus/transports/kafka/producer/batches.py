"""Queue the records of one partition and cut them into batches.

Owns the order of a partition's records and the size limit of a batch. Pure data: `partition_sender` sends a batch and
interprets the answer.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from itertools import chain
from typing import cast

from bus import native
from bus.transports.base import Appended, AppendOutcome, NewRecord, OnOutcomes

__all__ = ["AppendBatch", "AppendCall", "Queue", "RecordRun"]


_TELL_S = 0.1


class AppendCall:
    """One append: outcomes in the order of its records, filled in as partitions answer.

    `done` is set with the last outcome. If late partitions delay it, *on_outcomes* is called with the outcomes so far.
    """

    __slots__ = ("_on_outcomes", "_telling", "done", "given_up", "handed", "left", "outcomes")

    def __init__(self, count: int, done: asyncio.Future[None], on_outcomes: OnOutcomes | None = None) -> None:
        self.outcomes: list[AppendOutcome | None] = [None] * count
        self.left = count
        self.done = done
        self.handed: set[RecordRun] = set()
        """Runs whose records may be in the log: a producer took them and has not answered."""
        self.given_up = False
        self._on_outcomes = on_outcomes
        self._telling: asyncio.TimerHandle | None = None

    def settle(self, index: int, outcome: AppendOutcome) -> None:
        """Set the outcome of record *index*, unless it already has one."""
        if self.outcomes[index] is None:
            self.outcomes[index] = outcome
            self._leave(self.left - 1)

    def acknowledge(self, indices: Sequence[int], topic: str, partition: int, offset: int, timestamp_ms: int) -> None:
        """Settle the records *indices*, which were written together from *offset* on."""
        filled = native.acknowledge(self.outcomes, indices, Appended, topic, partition, offset, timestamp_ms)
        self._leave(self.left - filled)

    def _leave(self, left: int) -> None:
        self.left = left
        if not left:
            # Each run refers to its call: a reference cycle would keep the records until the garbage collector runs.
            self.handed.clear()
            if not self.done.done():
                self.done.set_result(None)
            self._on_outcomes = None
            if self._telling is not None:
                self._telling.cancel()
        elif self._on_outcomes is not None and self._telling is None:
            # Wait before calling *on_outcomes*: usually the other partitions answer within this time.
            self._telling = self.done.get_loop().call_later(_TELL_S, self._tell, self._on_outcomes)

    def _tell(self, on_outcomes: OnOutcomes) -> None:
        self._telling = None
        on_outcomes(self.outcomes)

    def results(self) -> list[AppendOutcome]:
        """Return every outcome; valid once `done` is set."""
        return cast("list[AppendOutcome]", self.outcomes)

    def give_up(self, certain: Callable[[], AppendOutcome], unknown: Callable[[], AppendOutcome]) -> None:
        """Settle the open records at the deadline: *certain* if never handed to a producer, otherwise *unknown*."""
        self.given_up = True
        handed = {index for span in self.handed for index in span.indices}
        for index, outcome in enumerate(self.outcomes):
            if outcome is None:
                self.settle(index, unknown() if index in handed else certain())


class RecordRun:
    """Records of one call for one partition, in order.

    `indices` are their positions in the call, `sizes` the bytes each takes in a batch.
    """

    __slots__ = ("call", "indices", "records", "sizes", "solo", "tries", "uncertain")

    def __init__(
        self, call: AppendCall, records: Sequence[NewRecord], indices: Sequence[int], sizes: Sequence[int]
    ) -> None:
        self.call = call
        self.records = records
        self.indices = indices
        self.sizes = sizes
        self.uncertain = False
        """Whether an earlier attempt may have been written."""
        self.solo = False
        """Whether one of the records was refused: they are then sent one by one to find it."""
        self.tries = 0

    def __len__(self) -> int:
        return len(self.records)

    def cut(self, at: int) -> tuple[RecordRun, RecordRun]:
        """Split into the first *at* records and the rest."""
        return self._part(0, at), self._part(at, len(self.records))

    def hand_over(self) -> None:
        """Mark the records as passed to a producer: from now on they may be in the log."""
        self.call.handed.add(self)

    def take_back(self, *, certain: bool) -> None:
        """Count a failed attempt; without *certain*, the records may be in the log from then on."""
        self.tries += 1
        self.uncertain = self.uncertain or not certain
        if not self.uncertain:
            self.call.handed.discard(self)

    def _part(self, start: int, stop: int) -> RecordRun:
        part = RecordRun(self.call, self.records[start:stop], self.indices[start:stop], self.sizes[start:stop])
        part.uncertain, part.solo, part.tries = self.uncertain, self.solo, self.tries
        return part


class AppendBatch:
    """Record runs that are sent together."""

    __slots__ = ("spans",)

    def __init__(self, spans: Sequence[RecordRun]) -> None:
        self.spans = spans

    def __len__(self) -> int:
        return sum(map(len, self.spans))

    def records(self) -> list[NewRecord]:
        """Return all records in order."""
        return list(chain.from_iterable(span.records for span in self.spans))

    def acknowledge(self, topic: str, partition: int, offset: int, timestamp_ms: int) -> None:
        """Settle every record as written, the first one at *offset*."""
        for span in self.spans:
            span.call.acknowledge(span.indices, topic, partition, offset, timestamp_ms)
            offset += len(span)


class Queue:
    """The record runs waiting for one partition."""

    __slots__ = ("_spans",)

    def __init__(self) -> None:
        self._spans: deque[RecordRun] = deque()

    def __bool__(self) -> bool:
        return bool(self._spans)

    def add(self, span: RecordRun) -> None:
        """Add *span* at the end."""
        self._spans.append(span)

    def put_back(self, spans: Sequence[RecordRun]) -> None:
        """Put *spans* back at the front, in their order."""
        self._spans.extendleft(reversed(spans))

    def take(self, max_bytes: int) -> AppendBatch | None:
        """Return the next batch: at least one record, more as long as they fit *max_bytes*.

        Drops runs whose call has been given up.
        """
        taken: list[RecordRun] = []
        room = max_bytes
        while self._spans:
            span = self._spans.popleft()
            if span.call.given_up:
                continue
            if span.solo and taken:
                self._spans.appendleft(span)
                break
            count, room = _fitting(span, room, first=not taken)
            if count < len(span):
                head, tail = span.cut(count)
                self._spans.appendleft(tail)
                if count:
                    taken.append(head)
                break
            taken.append(span)
            if span.solo:
                break
        return AppendBatch(taken) if taken else None


def _fitting(span: RecordRun, room: int, *, first: bool) -> tuple[int, int]:
    """Return how many records of *span* fit into *room* bytes, and the remaining room."""
    if span.solo:
        return 1, 0
    for count, size in enumerate(span.sizes):
        if size > room and not (first and count == 0):
            return count, 0
        room -= size
    return len(span), room
