"""LetterColumns: what is known of the dead letters of one partition, in some 40 bytes each."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import compress, count
from operator import and_
from typing import Final, get_args

import msgspec

from consumers.deadletters.letter_state import LetterStatus

__all__ = ["LetterColumns", "Row", "RowFilter", "STATUSES", "statuses_of"]

STATUSES: Final[Sequence[LetterStatus]] = get_args(LetterStatus)
BLOCK: Final = 4096
"""Rows whose extremes are known together."""
_OPEN: Final = STATUSES.index("open") + 1
_NONE: Final = 1 << 62
_STALE: Final = -1


class Row(msgspec.Struct, frozen=True, gc=False):
    """One dead letter."""

    failed_ms: int
    cause: int
    """The number of its cause."""
    sender: int
    """A hash of its sender's id."""
    default: LetterStatus
    """Its status as long as none is recorded."""
    status: LetterStatus
    death: int
    content: int


class RowFilter(msgspec.Struct, frozen=True):
    """Which rows are wanted."""

    statuses: bytes
    """By status byte of a row, 1 if it is wanted (`statuses_of`)."""
    causes: frozenset[int] | None
    """None: any."""
    sender: int | None
    """A hash of its id; None: any."""


def statuses_of(state: str) -> bytes:
    """Return for `RowFilter` what takes rows in *state*; empty: in any."""
    wanted = {at for at, status in enumerate(STATUSES, 1) if state in ("", status)}
    return bytes(value % 16 in wanted for value in range(256))


class LetterColumns:
    """The rows of one partition by offset; offsets without a dead letter have none.

    *counted* is called with cause, status, time of death, and 1 or -1 whenever a row of that status comes or goes.
    """

    def __init__(self, counted: Callable[[int, LetterStatus, int, int], object]) -> None:
        self.next = 0
        """The offset after the last one that was read."""
        self._counted = counted
        self._base = 0
        """The offset of the first row, a multiple of BLOCK."""
        self._start = 0
        """Rows before this offset have been deleted."""
        self._failed_ms = array("q")
        self._cause = array("I")
        self._sender = array("I")
        # Status and default, each as its place among the statuses plus one: 16 times the default, plus the status.
        self._status = array("B")
        self._death = array("q")
        self._content = array("q")
        self._oldest_ms = array("q")
        """By block, when its first letter died."""
        self._newest_ms = array("q")
        """By block, when its last letter died."""
        self._oldest_open_ms = array("q")
        """By block, when its first open letter died; it is looked for again where that may have changed."""

    def add(self, offset: int, row: Row) -> None:
        """Add *row* behind all others."""
        if not self._status:
            self._base = offset // BLOCK * BLOCK
            self._start = offset
        at = offset - self._base
        if (missing := at - len(self._status)) > 0:
            for column in self._columns():
                column.frombytes(bytes(missing * column.itemsize))
        for column, value in zip(
            self._columns(),
            (
                row.failed_ms,
                row.cause,
                row.sender,
                16 * (STATUSES.index(row.default) + 1) + STATUSES.index(row.status) + 1,
                row.death,
                row.content,
            ),
            strict=True,
        ):
            column.append(value)
        block = at // BLOCK
        while len(self._newest_ms) <= block:
            self._oldest_ms.append(_NONE)
            self._newest_ms.append(0)
            self._oldest_open_ms.append(_NONE)
        self._newest_ms[block] = max(self._newest_ms[block], row.failed_ms)
        self._oldest_ms[block] = min(self._oldest_ms[block], row.failed_ms)
        if row.status == "open" and self._oldest_open_ms[block] != _STALE:
            self._oldest_open_ms[block] = min(self._oldest_open_ms[block], row.failed_ms)
        self._counted(row.cause, row.status, row.failed_ms, 1)

    def get(self, offset: int) -> Row | None:
        """Return the row at *offset*; None where there is none."""
        at = offset - self._base
        if offset < self._start or not 0 <= at < len(self._status) or not self._status[at]:
            return None
        default, status = divmod(self._status[at], 16)
        return Row(
            self._failed_ms[at],
            self._cause[at],
            self._sender[at],
            STATUSES[default - 1],
            STATUSES[status - 1],
            self._death[at],
            self._content[at],
        )

    def set_status(self, offset: int, status: LetterStatus) -> None:
        """Change the status of the row at *offset*, which exists."""
        at = offset - self._base
        default, before = divmod(self._status[at], 16)
        after = STATUSES.index(status) + 1
        if before == after:
            return
        self._status[at] = 16 * default + after
        if _OPEN in (before, after):
            self._oldest_open_ms[at // BLOCK] = _STALE
        cause, failed_ms = self._cause[at], self._failed_ms[at]
        self._counted(cause, STATUSES[before - 1], failed_ms, -1)
        self._counted(cause, status, failed_ms, 1)

    def drop_before(self, offset: int) -> None:
        """Forget the rows before *offset*, which retention has deleted."""
        first, last = self._start - self._base, min(offset - self._base, len(self._status))
        for at in range(first, last):
            if self._status[at]:
                status = STATUSES[self._status[at] % 16 - 1]
                self._counted(self._cause[at], status, self._failed_ms[at], -1)
                self._status[at] = 0
        self._start = max(self._start, offset)
        if last > first:
            self._oldest_open_ms[(last - 1) // BLOCK] = _STALE
        if whole := max(0, last) // BLOCK:
            for column in self._columns():
                del column[: whole * BLOCK]
            for column in (self._oldest_ms, self._newest_ms, self._oldest_open_ms):
                del column[:whole]
            self._base += whole * BLOCK

    def steps_to(self, offset: int, rows: int) -> Iterator[tuple[int, int]]:
        """Yield what is to be dropped before *offset* in steps of *rows*: the first offset, and the one after it."""
        end = min(offset, self._base + len(self._status))
        yield from ((start, min(start + rows, end)) for start in range(self._start, end, rows))

    def oldest_open_ms(self) -> int | None:
        """Return when the first open letter died; None if none is open."""
        for block, oldest_ms in enumerate(self._oldest_open_ms):
            if oldest_ms == _STALE:
                rows = slice(block * BLOCK, (block + 1) * BLOCK)
                self._oldest_open_ms[block] = min(
                    (
                        failed_ms
                        for failed_ms, status in zip(self._failed_ms[rows], self._status[rows], strict=True)
                        if status % 16 == _OPEN
                    ),
                    default=_NONE,
                )
        found = min(self._oldest_open_ms, default=_NONE)
        return None if found == _NONE else found

    def blocks(self) -> Iterator[tuple[int, int, int]]:
        """Yield for each block its first offset, and when its first and its last letter died."""
        for block, (oldest_ms, newest_ms) in enumerate(zip(self._oldest_ms, self._newest_ms, strict=True)):
            yield self._base + block * BLOCK, oldest_ms, newest_ms

    def times(self, first: int, wanted: RowFilter) -> Iterator[int]:
        """Return when the *wanted* rows of the block from offset *first* on died."""
        rows = self._rows(first)
        return compress(self._failed_ms[rows], self._selected(rows, wanted))

    def causes(self, first: int, wanted: RowFilter) -> Iterator[int]:
        """Return the causes of the *wanted* rows of the block from offset *first* on."""
        rows = self._rows(first)
        return compress(self._cause[rows], self._selected(rows, wanted))

    def between(self, first: int, wanted: RowFilter, since_ms: int, until_ms: int) -> list[tuple[int, int]]:
        """Return time of death and offset of the *wanted* rows of the block that died in this span, ends included."""
        rows = self._rows(first)
        found = compress(zip(self._failed_ms[rows], count(first), strict=False), self._selected(rows, wanted))
        return [(failed_ms, offset) for failed_ms, offset in found if since_ms <= failed_ms <= until_ms]

    def _rows(self, first: int) -> slice:
        # Retention may have taken the block since it was named.
        start = first - self._base
        return slice(start, start + BLOCK) if start >= 0 else slice(0, 0)

    def _selected(self, rows: slice, wanted: RowFilter) -> Iterable[int]:
        """Return for each of *rows* whether it is wanted; a million of them take a fraction of a second."""
        found: Iterable[int] = self._status[rows].tobytes().translate(wanted.statuses)
        if wanted.causes is not None:
            found = map(and_, found, map(wanted.causes.__contains__, self._cause[rows]))
        if wanted.sender is not None:
            found = map(and_, found, map(wanted.sender.__eq__, self._sender[rows]))
        return found

    def _columns(self) -> tuple[array[int], ...]:
        return self._failed_ms, self._cause, self._sender, self._status, self._death, self._content
