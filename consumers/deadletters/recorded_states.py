"""RecordedStates: the states of all dead letters of a namespace, in some 30 bytes each.

A state is known by its letter: what is kept of it is its status, two hashes that tell whether it is about the letter
that asks, and where its record lies. Whole are only states that a redrive is about to change.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final, get_args

from bus.protocol.timestamps import parse_ms
from bus.topics.names import own_topic
from bus.transports.base import Record, Transport
from bus.transports.read_all import scan_topic
from consumers.deadletters.death_times import DeathTimes
from consumers.deadletters.letter_state import LetterState, LetterStatus, known_state_of, read_state
from consumers.deadletters.letters import LetterFacts
from consumers.deadletters.redrive_rules import death_noted

__all__ = ["RecordedStates", "death_numbers"]

_STATUS: Final[Sequence[LetterStatus]] = get_args(LetterStatus)
_ROW: Final = struct.Struct("<BqqQ")
"""Status (0: none, else its place among the statuses plus one), hash of the death, hash of its content (0: any), and
partition and offset of the record."""
_NONE: Final = bytes(_ROW.size)
_ROWS: Final = 256
_OFFSET_BITS: Final = 48
_MAX_OFFSET: Final = 1 << _OFFSET_BITS
_MAX_DIGITS: Final = 15
_MAX_RUNS: Final = 1_000
_RECORDS_A_TURN: Final = 50
_PAGE_RECORDS: Final = 500
_PAGE_BYTES: Final = 1 << 20


def death_numbers(origin: str, group: str, count: int, content: str) -> tuple[int, int]:
    """Return two numbers by which this process knows a death and the content of its message; 0: any content."""
    return hash((origin, group, count)), hash(content) or 1 if content else 0


class RecordedStates:
    """The recorded states of dead letters. Reads on at each call of `read_on`."""

    def __init__(self, transport: Transport, namespace: str, deaths: DeathTimes | None = None) -> None:
        self.wrote_ms: dict[str, int] = {}
        """By run, when it last recorded a state, by the log's clock; the last thousand runs."""
        self._deaths = deaths
        """Where it is noted when each death was undone by a redrive."""
        self._transport = transport
        self._topic = own_topic(namespace, "_deadletters")
        self._offsets: dict[int, int] = {}
        self._pages: dict[tuple[str, int], dict[int, bytearray]] = {}
        self._whole: dict[str, LetterState] = {}
        """By location, the states whose last step is `sending`, and those this process wrote and has not read yet."""
        self._page: Sequence[Record] = ()

    async def read_on(self, on_change: Callable[[str, int, int], object] = lambda *_: None) -> None:
        """Read the states recorded since the last call, and tell the location of each. Raises BusError."""
        if self._topic not in await self._transport.admin.topics():
            return
        ranges = await self._transport.admin.ranges(self._topic)
        if any(retained.end < self._offsets.get(partition, 0) for partition, retained in ranges.items()):
            # The topic was deleted and made anew.
            self._offsets.clear()
            known, self._pages, self._whole, self._page = self._pages, {}, {}, ()
            for forgotten in _locations(known):
                on_change(*forgotten)
        async for record in scan_topic(self._transport, self._topic, self._offsets):
            self._offsets[record.partition] = record.offset + 1
            if not record.offset % _RECORDS_A_TURN:
                # A million states must not keep a page of the console waiting.
                await asyncio.sleep(0)
            found = read_state(record)
            if found is None or (location := _parse(found[0])) is None:
                continue
            place, state = found
            self._keep(location, state, record.partition << _OFFSET_BITS | record.offset)
            self._whole.pop(place, None)
            if state is not None:
                if state.sending:
                    self._whole[place] = state
                if state.steps:
                    self._note_run(state.steps[-1].run, record.timestamp_ms)
            on_change(*location)

    def of(self, letter: LetterFacts) -> LetterState | None:
        """Return the state recorded for *letter*, None without one; its steps are left out but for `sending`."""
        if (whole := self._whole.get(letter.place)) is not None:
            return known_state_of(letter, whole)
        record = letter.record
        row = self._row(record.topic, record.partition, record.offset)
        if row is None:
            return None
        status, death, content, _ = row
        numbers = death_numbers(letter.origin, letter.group, letter.redrive_count, letter.content if content else "")
        if numbers != (death, content):
            return None
        return LetterState(
            state=_STATUS[status - 1],
            origin=letter.origin,
            group=letter.group,
            count=letter.redrive_count,
            content=letter.content if content else "",
            steps=(),
        )

    def status_of(self, location: tuple[str, int, int], death: int, content: int) -> LetterStatus | None:
        """Return the status recorded for the letter at *location* if it has these `death_numbers`; else None."""
        row = self._row(*location)
        if row is None or row[1] != death or row[2] not in (0, content):
            return None
        return _STATUS[row[0] - 1]

    async def with_steps(self, letter: LetterFacts) -> LetterState | None:
        """Return the state recorded for *letter* with its steps, as `of` does. Raises BusError."""
        known = self.of(letter)
        if known is None or letter.place in self._whole:
            return known
        record = letter.record
        row = self._row(record.topic, record.partition, record.offset)
        whole = None if row is None else await self.read_whole(letter.place, row[3])
        return known if whole is None else known_state_of(letter, whole) or known

    async def at(self, place: str) -> LetterState | None:
        """Return the state recorded for the location *place*, whichever letter it is about. Raises BusError."""
        if (whole := self._whole.get(place)) is not None:
            return whole
        location = _parse(place)
        row = None if location is None else self._row(*location)
        return None if row is None else await self.read_whole(place, row[3])

    async def read_whole(self, place: str, pointer: int) -> LetterState | None:
        """Return the state of the letter at *place* in the record at *pointer*; None if it is not there any more."""
        partition, offset = pointer >> _OFFSET_BITS, pointer % _MAX_OFFSET
        page = self._page
        # States are written in the order of their letters: the next one mostly lies on the page that was read.
        if not page or page[0].partition != partition or not page[0].offset <= offset <= page[-1].offset:
            page = self._page = await self._transport.read(
                self._topic, partition, offset, max_records=_PAGE_RECORDS, max_bytes=_PAGE_BYTES
            )
        record = next((each for each in page if each.offset == offset), None)
        found = None if record is None else read_state(record)
        return found[1] if found is not None and found[0] == place else None

    def put(self, states: Mapping[str, LetterState]) -> None:
        """Take over *states*, by location, that this process has recorded."""
        for place, state in states.items():
            if (location := _parse(place)) is not None:
                self._keep(location, state, 0)
                self._whole[place] = state

    def sending(self) -> dict[str, LetterState]:
        """Return by location the states whose last step is `sending`."""
        return {place: state for place, state in self._whole.items() if state.sending}

    def forget_before(self, topic: str, partition: int, offset: int) -> None:
        """Forget the states of letters before *offset*, which retention has deleted."""
        pages = self._pages.get((topic, partition), {})
        for page in [page for page in pages if (page + 1) * _ROWS <= offset]:
            del pages[page]

    def _row(self, topic: str, partition: int, offset: int) -> tuple[int, int, int, int] | None:
        page = self._pages.get((topic, partition), {}).get(offset // _ROWS)
        if page is None:
            return None
        row: tuple[int, int, int, int] = _ROW.unpack_from(page, offset % _ROWS * _ROW.size)
        return row if row[0] else None

    def _keep(self, location: tuple[str, int, int], state: LetterState | None, pointer: int) -> None:
        topic, partition, offset = location
        at = offset % _ROWS * _ROW.size
        pages = self._pages.setdefault((topic, partition), {})
        if state is None:
            if (page := pages.get(offset // _ROWS)) is not None:
                page[at : at + _ROW.size] = _NONE
            return
        page = pages.setdefault(offset // _ROWS, bytearray(_ROWS * _ROW.size))
        numbers = death_numbers(state.origin, state.group, state.count, state.content)
        _ROW.pack_into(page, at, _STATUS.index(state.state) + 1, *numbers, pointer)
        if self._deaths is not None and state.state == "redriven" and state.steps:
            self._deaths.put(death_noted(state), parse_ms(state.steps[-1].at) or 0)

    def _note_run(self, run: str, at_ms: int) -> None:
        self.wrote_ms.pop(run, None)
        self.wrote_ms[run] = at_ms
        if len(self.wrote_ms) > _MAX_RUNS:
            del self.wrote_ms[next(iter(self.wrote_ms))]


def _locations(pages: Mapping[tuple[str, int], Mapping[int, bytearray]]) -> Iterator[tuple[str, int, int]]:
    for (topic, partition), found in pages.items():
        for number, page in found.items():
            for at in range(_ROWS):
                if page[at * _ROW.size]:
                    yield topic, partition, number * _ROWS + at


def _parse(place: str) -> tuple[str, int, int] | None:
    """Return the parts of TOPIC/PARTITION/OFFSET; None for any other key."""
    topic, *numbers = place.rsplit("/", 2)
    if len(numbers) != 2 or not all(  # noqa: PLR2004 - partition and offset
        part.isascii() and part.isdigit() and len(part) <= _MAX_DIGITS for part in numbers
    ):
        return None
    partition, offset = int(numbers[0]), int(numbers[1])
    return (topic, partition, offset) if offset < _MAX_OFFSET else None
