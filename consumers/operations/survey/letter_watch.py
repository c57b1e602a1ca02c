"""LetterWatch: the open dead letters of a namespace, kept up to date by reading each record once."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Final

import msgspec

from bus.errors import TopicMissingError
from bus.topics.names import read_topic
from bus.transports.base import Transport
from bus.transports.read_all import scan_topic
from consumers.deadletters.causes import Cause, cause_of
from consumers.deadletters.letter_state import LetterState, LetterStatus, States, state_of
from consumers.deadletters.letters import DeadLetter, read_dead_letter

__all__ = ["LetterWatch", "ListedLetter", "OpenLetters"]

_MAX_CAUSES: Final = 100


class OpenLetters(msgspec.Struct, frozen=True, kw_only=True):
    """The dead letters that are neither redriven nor dismissed."""

    count: int
    oldest_ms: int | None
    causes: tuple[tuple[Cause, int, int], ...]
    """Cause, number of dead letters, and time of the first; the most frequent first."""
    by_type: tuple[tuple[str, str, int], ...]
    """Message type of the topic, reason, how many."""


class _KnownLetter(msgspec.Struct, frozen=True):
    """The stored part of a dead letter: enough to know whether it is open, and its cause."""

    letter: DeadLetter
    cause: Cause
    cause_name: str
    failed_ms: int


class ListedLetter(msgspec.Struct, frozen=True, kw_only=True):
    """One dead letter in a list; its texts are untrusted."""

    place: str
    failed_ms: int
    state: LetterStatus
    cause: Cause
    cause_name: str


class LetterWatch:
    """Reads on at each call of `look`."""

    def __init__(self, transport: Transport, namespace: str) -> None:
        self._transport = transport
        self._namespace = namespace
        self._states = States(transport, namespace)
        self._offsets: dict[str, dict[int, int]] = {}
        self._letters: dict[str, _KnownLetter] = {}
        self._turn = asyncio.Lock()
        self._names: dict[Cause, tuple[Cause, str]] = {}
        """The single value of each cause, shared by all its dead letters, and its name."""

    @property
    def states(self) -> Mapping[str, LetterState]:
        """The states of dead letters by location, as of the last reading."""
        return self._states.known

    async def read_on(self) -> None:
        """Read what has come since the last time. Raises BusError."""
        async with self._turn:
            await self._states.read_on()
            for topic in sorted(await self._transport.admin.topics()):
                name = read_topic(topic)
                if name is not None and name.kind == "dlq" and name.namespace == self._namespace:
                    await self._read_on(topic)

    async def look(self) -> OpenLetters:
        """Return the open dead letters now. Raises BusError."""
        await self.read_on()
        # A letter that retention has taken cannot be sent back.
        return self._counted(
            [retained for location, retained in self._letters.items() if self._is_open(location, retained)]
        )

    async def _read_on(self, topic: str) -> None:
        offsets = self._offsets.setdefault(topic, {})
        try:
            ranges = await self._transport.admin.ranges(topic)
            if any(retained.end < offsets.get(partition, 0) for partition, retained in ranges.items()):
                # The topic was deleted and made anew.
                offsets.clear()
                self._letters = {
                    location: retained
                    for location, retained in self._letters.items()
                    if retained.letter.record.topic != topic
                }
            async for record in scan_topic(self._transport, topic, offsets):
                offsets[record.partition] = record.offset + 1
                letter = read_dead_letter(record)
                # The bytes of the message are not needed any more, and fifty thousand of them are much.
                slim = msgspec.structs.replace(letter, message=None, error="")
                self._letters[letter.place] = _KnownLetter(slim, *self._shared(cause_of(letter)), letter.failed_ms)
        except TopicMissingError:
            offsets.clear()

    def letters(self, wanted: Callable[[ListedLetter], bool]) -> list[ListedLetter]:
        """Return the *wanted* dead letters, newest first, as of the last reading."""
        found = []
        for location, retained in self._letters.items():
            state = state_of(retained.letter, self._states.known.get(location))
            listed = ListedLetter(
                place=location,
                failed_ms=retained.failed_ms,
                state=state,
                cause=retained.cause,
                cause_name=retained.cause_name,
            )
            if wanted(listed):
                found.append(listed)
        found.sort(key=lambda each: (-each.failed_ms, each.place))
        return found

    def _shared(self, cause: Cause) -> tuple[Cause, str]:
        known = self._names.get(cause)
        if known is None:
            known = self._names[cause] = (cause, cause.name)
        return known

    def _is_open(self, location: str, retained: _KnownLetter) -> bool:
        return state_of(retained.letter, self._states.known.get(location)) == "open"

    @staticmethod
    def _counted(found: list[_KnownLetter]) -> OpenLetters:
        causes, first = Counter(retained.cause for retained in found), dict[Cause, int]()
        for retained in found:
            first[retained.cause] = min(first.get(retained.cause, retained.failed_ms), retained.failed_ms)
        # The type of the topic a letter lies in: the one in its envelope is a stranger's text.
        types = Counter((_type_of(retained.letter), retained.cause.reason) for retained in found)
        return OpenLetters(
            count=len(found),
            oldest_ms=min((retained.failed_ms for retained in found), default=None),
            causes=tuple((cause, count, first[cause]) for cause, count in causes.most_common(_MAX_CAUSES)),
            by_type=tuple((name, reason, count) for (name, reason), count in sorted(types.items())),
        )


def _type_of(letter: DeadLetter) -> str:
    name = read_topic(letter.record.topic)
    return "" if name is None else name.message_type
