"""LogReach: read only the part of a log around some moments, in pieces that never overlap.

Owns the intervals around a moment, the budget of records and bytes, and the range that was searched. If the whole log
is smaller than the budget, all of it is read. `log_search` decides what to search for.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Iterable, Mapping, Sequence
from typing import Final, TypeAlias

import msgspec

from bus.transports.base import Record, Transport

__all__ = ["FAR_MS", "MAX_RECORDS_READ", "LogReach", "Looked", "Piece", "PartitionKey"]

PartitionKey: TypeAlias = tuple[str, int]
Piece: TypeAlias = tuple[PartitionKey, int, int]
"""A partition, and the offsets from which and up to which it is read."""

MAX_RECORDS_READ: Final = 60_000
"""Maximum records of one look-up, unless it reads the whole log."""
FAR_MS: Final = 1 << 61
_MAX_BYTES: Final = 64 * 1_048_576
_PAGE_RECORDS: Final = 1_000
_PAGE_BYTES: Final = 8 * 1_048_576
_NARROWEST_MS: Final = 20
_HOUR_MS: Final = 3_600_000
_RINGS_MS: Final = (
    (50, 500),
    (500, 5_000),
    (60_000, 120_000),
    (_HOUR_MS, _HOUR_MS),
    (24 * _HOUR_MS, 24 * _HOUR_MS),
    (720 * _HOUR_MS, 720 * _HOUR_MS),
    (FAR_MS, FAR_MS),
)
"""The intervals before and after a moment that are searched, one after another. A message is usually appended soon
after it is sealed, except with differing clocks, outboxes and delays."""


class Looked(msgspec.Struct, frozen=True, kw_only=True):
    """How far a search has looked. Times are those of appends; 0 and `FAR_MS` are the ends of the log."""

    records: int
    since_ms: int
    until_ms: int
    is_index_asked: bool = False
    """Whether an index was searched without result, and the records after the index were read."""

    @property
    def is_whole(self) -> bool:
        """Whether all was looked at."""
        return self.since_ms <= 0 and self.until_ms >= FAR_MS and not self.is_index_asked


class LogReach:
    """The records read of the partitions *locations*; except for `whole`, at most *limit* records."""

    def __init__(
        self, transport: Transport, locations: Iterable[PartitionKey], *, limit: int = MAX_RECORDS_READ
    ) -> None:
        self._transport = transport
        self._locations = sorted(locations)
        self._ends: dict[PartitionKey, tuple[int, int]] = {}
        self._left = limit
        self._left_bytes = _MAX_BYTES
        self._pieces: dict[PartitionKey, list[tuple[int, int]]] = {}
        self._since_ms = self._until_ms = -1
        self.records = 0
        """Records that were read, each as often as it was."""
        self.is_cut = False
        """Whether the budget is used up."""

    @property
    def looked(self) -> Looked:
        """How far it has looked."""
        return Looked(records=self.records, since_ms=self._since_ms, until_ms=self._until_ms)

    async def open(self) -> None:
        """Ask where the partitions begin and end. Raises BusError."""
        admin = self._transport.admin
        starts, ends = await admin.offsets_at(self._locations, 0), await admin.offsets_at(self._locations, FAR_MS)
        self._ends = {location: (starts[location], ends[location]) for location in self._locations}

    @property
    def is_small(self) -> bool:
        """Whether all records of the partitions fit the budget."""
        return sum(end - start for start, end in self._ends.values()) <= self._left

    async def whole(self) -> AsyncIterator[Record]:
        """Yield every record that was not read yet."""
        pieces = self._fresh({location: span for location, span in self._ends.items() if span[0] < span[1]})
        self._since_ms, self._until_ms = 0, FAR_MS
        async for record in self._read(pieces, bounded=False):
            yield record

    async def rings(
        self, moment_ms: int, *, forwards: bool = False, locations: Collection[PartitionKey] | None = None
    ) -> AsyncIterator[AsyncIterator[Record]]:
        """Yield ring after ring around a moment, each as the records in it that were not read yet.

        *forwards*: only of what was appended since. It ends where all of *locations*, or the budget, is used up.
        """
        if self.is_small and locations is None:
            yield self.whole()
            return
        for before_ms, after_ms in _RINGS_MS:
            yield self.around(moment_ms, 0 if forwards else before_ms, after_ms, locations)
            if self.is_cut:
                return

    async def around(
        self, moment_ms: int, before_ms: int, after_ms: int, locations: Collection[PartitionKey] | None = None
    ) -> AsyncIterator[Record]:
        """Yield the records that were appended around a moment, and not read yet.

        If they exceed the budget, a shorter interval is read, and the search counts as cut.
        """
        among = self._locations if locations is None else sorted(set(locations) & self._ends.keys())
        while True:
            since_ms = 0 if before_ms >= FAR_MS else max(0, moment_ms - before_ms)
            until_ms = FAR_MS if after_ms >= FAR_MS else moment_ms + after_ms
            pieces = self._fresh(await self._spans(among, since_ms, until_ms))
            if sum(end - start for _, start, end in pieces) <= self._left:
                break
            self.is_cut = True
            # An open end is narrowed to a month first.
            widest_ms = _RINGS_MS[-2][1]
            before_ms, after_ms = min(before_ms // 2, widest_ms), min(after_ms // 2, widest_ms)
            if before_ms + after_ms < _NARROWEST_MS:
                pieces = _shared(pieces, self._left)
                break
        if locations is None:
            self._since_ms = since_ms if self._since_ms < 0 else min(self._since_ms, since_ms)
            self._until_ms = max(self._until_ms, until_ms)
        async for record in self._read(pieces, bounded=True):
            yield record

    async def after(self, offsets: Mapping[PartitionKey, int]) -> AsyncIterator[Record]:
        """Yield the records from *offsets* on, of a partition that is not in it all; within the budget."""
        spans = {
            location: (max(start, offsets.get(location, start)), end) for location, (start, end) in self._ends.items()
        }
        pieces = self._fresh({location: span for location, span in spans.items() if span[0] < span[1]})
        if sum(end - start for _, start, end in pieces) > self._left:
            self.is_cut = True
            pieces = _shared(pieces, self._left)
        async for record in self._read(pieces, bounded=True):
            yield record

    async def again(self) -> AsyncIterator[Record]:
        """Yield every record that was read before, once more."""
        pieces = [(location, start, end) for location, spans in sorted(self._pieces.items()) for start, end in spans]
        async for record in self._read(pieces, bounded=False, is_known=True):
            yield record

    async def _spans(
        self, locations: Sequence[PartitionKey], since_ms: int, until_ms: int
    ) -> dict[PartitionKey, tuple[int, int]]:
        admin = self._transport.admin
        starts = {} if since_ms <= 0 else await admin.offsets_at(locations, since_ms)
        ends = {} if until_ms >= FAR_MS else await admin.offsets_at(locations, until_ms)
        spans = {}
        for location in locations:
            first, last = self._ends[location]
            start, end = max(first, starts.get(location, first)), min(last, ends.get(location, last))
            if start < end:
                spans[location] = (start, end)
        return spans

    def _fresh(self, spans: Mapping[PartitionKey, tuple[int, int]]) -> list[Piece]:
        """Return what of *spans* was not read yet."""
        pieces = []
        for location, (start, end) in sorted(spans.items()):
            at = start
            for known_start, known_end in self._pieces.get(location, ()):
                if known_end <= at or known_start >= end:
                    continue
                if at < known_start:
                    pieces.append((location, at, known_start))
                at = known_end
            if at < end:
                pieces.append((location, at, end))
        return pieces

    async def _read(self, pieces: Sequence[Piece], *, bounded: bool, is_known: bool = False) -> AsyncIterator[Record]:
        for location, start, end in pieces:
            offset = start
            while offset < end and not (bounded and self._left_bytes <= 0):
                wanted = min(_PAGE_RECORDS, end - offset)
                records = await self._transport.read(*location, offset, max_records=wanted, max_bytes=_PAGE_BYTES)
                for record in records:
                    if record.offset >= end:
                        break
                    self.records += 1
                    self._left_bytes -= len(record.value or b"")
                    yield record
                # Offsets may have gaps, at the end, too.
                offset = records[-1].offset + 1 if records else end
            if offset < end:
                self.is_cut = True
            if not is_known:
                self._note(location, start, min(offset, end))

    def _note(self, location: PartitionKey, start: int, end: int) -> None:
        self._left -= end - start
        spans: list[tuple[int, int]] = []
        for known in sorted([*self._pieces.get(location, ()), (start, end)]):
            if spans and known[0] <= spans[-1][1]:
                spans[-1] = (spans[-1][0], max(spans[-1][1], known[1]))
            else:
                spans.append(known)
        self._pieces[location] = spans


def _shared(pieces: Sequence[Piece], limit: int) -> list[Piece]:
    """Return the first records of each piece, *limit* of them in all."""
    share = max(1, limit // max(1, len(pieces)))
    return [(location, start, min(end, start + share)) for location, start, end in pieces][: max(0, limit)]
