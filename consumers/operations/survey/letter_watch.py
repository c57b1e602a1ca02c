"""LetterWatch: the dead letters of a namespace, kept up to date by reading each record once.

Owns their counts by cause, type and reason, and the pages of their list. What it keeps of a letter takes some 40 bytes
(`letter_columns`), of a cause its text once, and their number is bounded (`consumers.deadletters.causes`).
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Final

import msgspec

from bus.errors import TopicMissingError
from bus.redaction import cut
from bus.topics.names import read_topic
from bus.transports.base import Record, Transport
from bus.transports.read_all import scan_topic
from consumers.deadletters.causes import MAX_CAUSES, Cause, CauseBook
from consumers.deadletters.letter_state import LetterStatus, state_of
from consumers.deadletters.letters import read_letter_facts
from consumers.deadletters.recorded_states import RecordedStates, death_numbers
from consumers.operations.survey.letter_columns import LetterColumns, Row, RowFilter, statuses_of

__all__ = ["CauseCount", "LetterPage", "LetterWatch", "ListedLetter", "OpenLetters", "WantedLetters"]

_MAX_CAUSES: Final = 100
_MAX_SENDERS: Final = 4_096
_MAX_SENDER: Final = 256
_SENDER_BITS: Final = 0xFFFF_FFFF
SEVERAL: Final = "(several)"
_RECORDS_A_TURN: Final = 50
_BLOCKS_A_TURN: Final = 32
_ROWS_A_TURN: Final = 20_000


class OpenLetters(msgspec.Struct, frozen=True, kw_only=True):
    """The dead letters that are neither redriven nor dismissed."""

    count: int
    oldest_ms: int | None
    causes: tuple[tuple[Cause, int, int], ...]
    """Cause, number of dead letters, and time of the first since there was none; the most frequent first."""
    senders: tuple[str, ...] = ()
    """For each of *causes*, the one sender of its dead letters, or `(several)`."""
    names: tuple[str, ...] = ()
    """For each of *causes*, its short id."""
    by_type: tuple[tuple[str, str, int], ...]
    """Message type of the topic, reason, how many."""
    is_whole: bool = True
    """Whether every dead letter has been read; else there may be more than these."""
    read: int = 0
    """Dead letters that are known, in all states."""


class WantedLetters(msgspec.Struct, frozen=True, kw_only=True):
    """Filters of a list, which must all hold; an empty one takes every dead letter."""

    cause: str = ""
    """The short id of a cause."""
    message_type: str = ""
    reason: str = ""
    sender: str = ""
    state: str = "open"


class ListedLetter(msgspec.Struct, frozen=True, kw_only=True):
    """One dead letter in a list; its texts are untrusted."""

    place: str
    failed_ms: int
    state: LetterStatus
    cause: Cause
    cause_name: str
    sender: str


class CauseCount(msgspec.Struct, frozen=True, kw_only=True):
    """One cause, and how many of the wanted letters it has."""

    cause: Cause
    name: str
    sender: str
    """The one sender of its letters, or `(several)`."""
    count: int
    newest_ms: int = 0
    """When the last letter of the cause died, in whatever state it is now."""


class LetterPage(msgspec.Struct, frozen=True, kw_only=True):
    """One page of a list, the newest letters first."""

    total: int
    page: int
    pages: int
    letters: tuple[ListedLetter, ...]
    causes: tuple[CauseCount, ...]
    """The most frequent first."""
    reasons: tuple[str, ...]
    is_whole: bool
    """Whether everything there is has been read."""
    read: int
    """Letters that are known now."""


class _KnownCause:
    """What is counted of one cause."""

    __slots__ = ("by_status", "first_ms", "is_several", "newest_ms", "sender")

    def __init__(self) -> None:
        self.by_status: Counter[LetterStatus] = Counter()
        self.first_ms = 0
        """When the first died of those that have been open since none was."""
        self.newest_ms = 0
        """When the last one died, in whatever state it is now."""
        self.sender: str | None = None
        self.is_several = False


class _Part(msgspec.Struct, frozen=True, eq=False):
    """One partition, and its number in the order of places."""

    number: int
    topic: str
    partition: int
    columns: LetterColumns


class LetterWatch:
    """Reads on at each call of `look`."""

    def __init__(self, transport: Transport, namespace: str) -> None:
        self.states = RecordedStates(transport, namespace)
        """The recorded states as of the last reading."""
        self.causes = CauseBook()
        self.is_whole = False
        """Whether everything was read once."""
        self._transport = transport
        self._namespace = namespace
        self._columns: dict[str, dict[int, LetterColumns]] = {}
        """By topic and partition."""
        self._known: list[_KnownCause] = []
        """By number of a cause, what is counted of it."""
        self._senders: dict[int, str] = {}
        """By its hash, the id of a sender; of the first few thousand."""
        self._turn = asyncio.Lock()
        self._reading: asyncio.Task[None] | None = None

    @property
    def count(self) -> int:
        """The number of dead letters that are known, in all states."""
        return sum(known.by_status.total() for known in self._known)

    async def read_on(self) -> None:
        """Read what has come since the last time. Raises BusError."""
        async with self._turn:
            await self.states.read_on(self._state_changed)
            existing = await self._transport.admin.topics()
            wanted = {
                topic
                for topic in existing
                if (name := read_topic(topic)) is not None and name.kind == "dlq" and name.namespace == self._namespace
            }
            for topic in self._columns.keys() - wanted:
                await self._forget(topic)
            for topic in sorted(wanted):
                await self._read_on(topic)
            self.is_whole = True

    async def read_on_within(self, timeout_s: float) -> None:
        """Read on, and return when that is done or *timeout_s* have passed; the reading goes on. Raises BusError."""
        reading = self._reading
        if reading is None or reading.done():
            reading = self._reading = asyncio.create_task(self.read_on())
            # It may fail when nobody waits for it any more; the next look tells.
            reading.add_done_callback(lambda task: task.cancelled() or task.exception())
        # Another caller may begin the next reading while this one waits.
        done, _ = await asyncio.wait([reading], timeout=timeout_s)
        if done:
            reading.result()

    async def close(self) -> None:
        """End a reading that goes on."""
        if self._reading is not None and not self._reading.done():
            self._reading.cancel()
            await asyncio.wait([self._reading])

    async def look(self, within_s: float | None = None) -> OpenLetters:
        """Return the open dead letters now; after *within_s* seconds those that are known, while the reading goes on.

        Raises BusError.
        """
        await (self.read_on() if within_s is None else self.read_on_within(within_s))
        counts, first_ms, types = Counter[int](), dict[int, int](), Counter[tuple[str, str]]()
        for number, known in enumerate(self._known):
            if count := known.by_status["open"]:
                whole, cause = self.causes.whole(number), self.causes.cause(number)
                counts[whole] += count
                first_ms[whole] = min(first_ms.get(whole, known.first_ms), known.first_ms)
                types[cause.message_type, cause.reason] += count
        listed, senders = counts.most_common(_MAX_CAUSES), self._senders_of_causes()
        return OpenLetters(
            count=counts.total(),
            oldest_ms=await self._oldest_open_ms(),
            causes=tuple((self.causes.cause(number), count, first_ms[number]) for number, count in listed),
            senders=tuple(senders[number] for number, _ in listed),
            names=tuple(self.causes.name(number) for number, _ in listed),
            by_type=tuple((name, reason, count) for (name, reason), count in sorted(types.items())),
            is_whole=self.is_whole,
            read=self.count,
        )

    async def page(self, wanted: WantedLetters, page: int, size: int) -> LetterPage:
        """Return page *page* (from 1) of the *wanted* dead letters as of the last reading, *size* to a page."""
        numbers = frozenset(number for number in range(len(self._known)) if self._is_of(number, wanted))
        rows = RowFilter(
            statuses_of(wanted.state),
            numbers if wanted.cause or wanted.message_type or wanted.reason else None,
            _hash(wanted.sender) if wanted.sender else None,
        )
        counts = await self._counts(numbers, rows, wanted)
        total = counts.total()
        pages = max(1, -(-total // size))
        page = min(max(1, page), pages)
        letters = await self._listed(rows, (page - 1) * size, min(page * size, total), total)
        whole, senders, newest_ms = Counter[int](), self._senders_of_causes(), dict[int, int]()
        for number, count in counts.items():
            whole[self.causes.whole(number)] += count
        for number, known in enumerate(self._known):
            at = self.causes.whole(number)
            newest_ms[at] = max(newest_ms.get(at, 0), known.newest_ms)
        return LetterPage(
            total=total,
            page=page,
            pages=pages,
            letters=tuple(letters),
            causes=tuple(
                CauseCount(
                    cause=self.causes.cause(number),
                    name=self.causes.name(number),
                    sender=senders.get(number, ""),
                    count=count,
                    newest_ms=newest_ms.get(number, 0),
                )
                for number, count in whole.most_common(size)
                if count
            ),
            reasons=tuple(sorted({self.causes.cause(number).reason for number, count in counts.items() if count})),
            is_whole=self.is_whole,
            read=self.count,
        )

    def letter_at(self, place: str) -> ListedLetter | None:
        """Return the dead letter at TOPIC/PARTITION/OFFSET as of the last reading; None where none is known."""
        topic, *numbers = place.rsplit("/", 2)
        if len(numbers) != 2 or not all(part.isascii() and part.isdigit() and len(part) < 16 for part in numbers):  # noqa: PLR2004
            return None
        columns = self._columns.get(topic, {}).get(int(numbers[0]))
        row = None if columns is None else columns.get(int(numbers[1]))
        return None if row is None else self._listed_row(place, row)

    def _is_of(self, number: int, wanted: WantedLetters) -> bool:
        cause, by_status = self.causes.cause(number), self._known[number].by_status
        return (
            any(count and wanted.state in ("", status) for status, count in by_status.items())
            and wanted.message_type in ("", cause.message_type)
            and wanted.reason in ("", cause.reason)
            and (not wanted.cause or wanted.cause in (self.causes.name(self.causes.whole(number)), cause.name))
        )

    async def _counts(self, numbers: frozenset[int], rows: RowFilter, wanted: WantedLetters) -> Counter[int]:
        counts = Counter[int]()
        if not wanted.sender:
            for number in numbers:
                by_status = self._known[number].by_status
                counts[number] = by_status.total() if not wanted.state else by_status[wanted.state]  # type: ignore[index]
            return counts
        for at, (_, _, part, first) in enumerate(self._blocks()):
            counts.update(part.columns.causes(first, rows))
            await _yielding(at)
        return counts

    def _blocks(self) -> list[tuple[int, int, _Part, int]]:
        """Return for each block when its first and its last letter died, its partition, and its first offset."""
        parts = [
            _Part(number, topic, partition, columns)
            for number, (topic, partition, columns) in enumerate(
                (topic, partition, columns)
                for topic, partitions in sorted(self._columns.items())
                for partition, columns in sorted(partitions.items())
            )
        ]
        return [
            (oldest_ms, newest_ms, part, first)
            for part in parts
            for first, oldest_ms, newest_ms in part.columns.blocks()
        ]

    async def _listed(self, rows: RowFilter, first: int, last: int, total: int) -> list[ListedLetter]:
        """Return the letters from the *first* to before the *last* of *total*, the newest first.

        Times of death are looked through from the nearer end, block by block, until no other block can have one that is
        needed. Then the letters between two times are looked up.
        """
        if first >= last:
            return []
        from_newest = first < total - last
        blocks = self._blocks()
        blocks.sort(key=lambda each: -each[1] if from_newest else each[0])
        needed, times = last if from_newest else total - first, list[int]()
        for at, (oldest_ms, newest_ms, part, offset) in enumerate(blocks):
            if len(times) >= needed:
                times.sort(reverse=from_newest)
                del times[needed:]
                if times[-1] > newest_ms if from_newest else times[-1] < oldest_ms:
                    break
            times += part.columns.times(offset, rows)
            await _yielding(at)
        times.sort(reverse=from_newest)
        del times[needed:]
        # Retention may have taken some of them meanwhile.
        window = times[first:last] if from_newest else times[max(0, total - last) :]
        if not window:
            return []
        since_ms, until_ms = min(window), max(window)
        found = [
            (-failed_ms, part.number, offset, part)
            for oldest_ms, newest_ms, part, first_offset in blocks
            if oldest_ms <= until_ms and newest_ms >= since_ms
            for failed_ms, offset in part.columns.between(first_offset, rows, since_ms, until_ms)
        ]
        found.sort(key=lambda each: each[:3])
        if from_newest:
            begin = first - times.index(until_ms)
            chosen = found[begin : begin + last - first]
        else:
            end = len(found) - (total - last - times.index(since_ms))
            chosen = found[max(0, end - (last - first)) : end]
        return [
            self._listed_row(f"{part.topic}/{part.partition}/{offset}", row)
            for _, _, offset, part in chosen
            if (row := part.columns.get(offset)) is not None
        ]

    def _listed_row(self, place: str, row: Row) -> ListedLetter:
        number = self.causes.whole(row.cause)
        return ListedLetter(
            place=place,
            failed_ms=row.failed_ms,
            state=row.status,
            cause=self.causes.cause(number),
            cause_name=self.causes.name(number),
            sender=self._senders.get(row.sender, SEVERAL),
        )

    async def _oldest_open_ms(self) -> int | None:
        found = []
        for partitions in self._columns.values():
            for columns in partitions.values():
                if (oldest_ms := columns.oldest_open_ms()) is not None:
                    found.append(oldest_ms)
                await asyncio.sleep(0)
        return min(found, default=None)

    async def _read_on(self, topic: str) -> None:
        try:
            ranges = await self._transport.admin.ranges(topic)
            partitions = self._columns.setdefault(topic, {})
            is_new = any(
                partition in partitions and retained.end < partitions[partition].next
                for partition, retained in ranges.items()
            )
            if is_new or self._is_worn(topic):
                # The topic was deleted and made anew, or its causes are of letters that are not there any more.
                await self._forget(topic)
                partitions = self._columns.setdefault(topic, {})
            for partition, retained in ranges.items():
                columns = partitions.setdefault(partition, LetterColumns(self._counted))
                await self._drop_before(columns, retained.start)
                self.states.forget_before(topic, partition, retained.start)
            starts = {partition: columns.next for partition, columns in partitions.items()}
            turn = _RECORDS_A_TURN
            async for record in scan_topic(self._transport, topic, starts):
                if (of_record := partitions.get(record.partition)) is not None:
                    of_record.add(record.offset, self._row_of(record))
                    of_record.next = record.offset + 1
                turn -= 1
                if not turn:
                    turn = _RECORDS_A_TURN
                    await asyncio.sleep(0)
        except TopicMissingError:
            await self._forget(topic)

    def _row_of(self, record: Record) -> Row:
        letter = read_letter_facts(record)
        number = self.causes.add(letter)
        while len(self._known) <= number:
            self._known.append(_KnownCause())
        death, content = death_numbers(letter.origin, letter.group, letter.redrive_count, letter.content)
        default = state_of(letter, None)
        recorded = self.states.status_of((record.topic, record.partition, record.offset), death, content)
        sender = letter.sender
        self._note_sender(self._known[number], sender)
        return Row(
            letter.failed_ms,
            number,
            _hash(sender),
            default,
            default if recorded in (None, "open") else recorded,
            death,
            content,
        )

    def _note_sender(self, known: _KnownCause, sender: str) -> None:
        if known.sender is None or not known.by_status.total():
            known.sender, known.is_several = cut(sender, _MAX_SENDER), False
        elif known.sender != cut(sender, _MAX_SENDER):
            known.is_several = True
        if len(self._senders) < _MAX_SENDERS:
            self._senders.setdefault(_hash(sender), cut(sender, _MAX_SENDER))

    def _senders_of_causes(self) -> dict[int, str]:
        """Return for each whole cause that has letters their one sender, or `(several)`."""
        found: dict[int, str] = {}
        for number, known in enumerate(self._known):
            if known.by_status.total():
                sender = SEVERAL if known.is_several else known.sender or ""
                whole = self.causes.whole(number)
                found[whole] = sender if found.get(whole, sender) == sender else SEVERAL
        return found

    def _counted(self, number: int, status: LetterStatus, failed_ms: int, change: int) -> None:
        known = self._known[number]
        if status == "open" and change > 0:
            known.first_ms = min(known.first_ms, failed_ms) if known.by_status["open"] else failed_ms
        if change > 0:
            known.newest_ms = max(known.newest_ms, failed_ms)
        known.by_status[status] += change

    def _state_changed(self, topic: str, partition: int, offset: int) -> None:
        columns = self._columns.get(topic, {}).get(partition)
        row = None if columns is None else columns.get(offset)
        if columns is None or row is None:
            return
        recorded = self.states.status_of((topic, partition, offset), row.death, row.content)
        columns.set_status(offset, row.default if recorded is None or recorded == "open" else recorded)

    def _is_worn(self, topic: str) -> bool:
        """Return whether many causes of a full shelf have no letters any more: their room is for others."""
        return any(
            sum(not self._known[number].by_status.total() for number in kept) > MAX_CAUSES // 2
            for kept in self.causes.full_shelves(topic)
        )

    async def _forget(self, topic: str) -> None:
        for columns in self._columns.pop(topic, {}).values():
            await self._drop_before(columns, columns.next)
        self.causes.forget(topic)

    async def _drop_before(self, columns: LetterColumns, offset: int) -> None:
        for start, end in columns.steps_to(offset, _ROWS_A_TURN):
            columns.drop_before(end)
            if end - start == _ROWS_A_TURN:
                await asyncio.sleep(0)


def _hash(sender: str) -> int:
    return hash(sender) & _SENDER_BITS


async def _yielding(at: int) -> None:
    if at % _BLOCKS_A_TURN == _BLOCKS_A_TURN - 1:
        await asyncio.sleep(0)
