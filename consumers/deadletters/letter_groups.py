"""Dead letters that have something in common, as rows; and the history of one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import msgspec

from consumers.deadletters.causes import Cause, CauseBook, cause_of
from consumers.deadletters.letter_state import LetterState, Step, known_state_of
from consumers.deadletters.letters import DeadLetter, LetterFacts

__all__ = ["GROUPINGS", "LetterGroup", "LetterGroups", "history_of", "is_history"]

GROUPINGS: Final = ("cause", "type", "reason", "sender", "group")
_VALUES: Final[Mapping[str, Callable[[LetterFacts], str]]] = {
    "type": lambda letter: letter.topic_type,
    "reason": lambda letter: letter.reason,
    "sender": lambda letter: letter.sender,
    "group": lambda letter: letter.group,
}


class LetterGroup(msgspec.Struct, frozen=True, kw_only=True):
    """Dead letters that have *by* in common; the other members are those of its first one."""

    by: str
    value: str
    """The cause, type, reason, sender or group."""
    dead_letters: int
    reason: str
    type: str
    group: str
    sender: str
    """The one sender of all of them; empty if there are several."""
    pointer: str
    where: str
    """The line of code that raised the error, FILE:LINE; empty if unknown."""
    error: str
    first: str
    """When the first one failed."""
    example: str
    """Its location."""


class _Tally:
    """What is counted of one group: neither a letter nor its payload is kept."""

    __slots__ = ("cause", "count", "example", "first", "sender")

    def __init__(self, letter: LetterFacts, cause: Cause) -> None:
        self.count = 0
        self.cause = cause
        self.sender = letter.sender
        self.first = letter.failed_at
        self.example = letter.place


class LetterGroups:
    """Counts dead letters by what they have in common.

    Causes are told apart by all letters of a topic, counted or not: pass each of them to `add`, in the order in which
    they are read.
    """

    def __init__(self, by: str) -> None:
        self._by = by
        self._causes = CauseBook()
        self._tallies: dict[str | int, _Tally] = {}

    def add(self, letter: LetterFacts, *, counts: bool) -> None:
        """Note *letter*; *counts*: it is to be counted."""
        value: str | int = self._causes.add(letter) if self._by == "cause" else _VALUES[self._by](letter)
        if not counts:
            return
        tally = self._tallies.get(value)
        if tally is None:
            cause = self._causes.cause(value) if isinstance(value, int) else cause_of(letter)
            tally = self._tallies[value] = _Tally(letter, cause)
        tally.count += 1
        if tally.sender and tally.sender != letter.sender:
            tally.sender = ""

    def rows(self) -> list[LetterGroup]:
        """Return the groups, the most frequent first."""
        found = self._tallies
        if self._by == "cause":
            found = {}
            for number, tally in self._tallies.items():
                assert isinstance(number, int)  # noqa: S101 - causes are numbers
                whole = self._causes.whole(number)
                joined = found.setdefault(self._causes.name(whole), tally)
                joined.cause = self._causes.cause(whole)
                if joined is not tally:
                    joined.count += tally.count
                    joined.sender = joined.sender if joined.sender == tally.sender else ""
        return [
            LetterGroup(
                by=self._by,
                value=str(value),
                dead_letters=tally.count,
                reason=tally.cause.reason,
                type=tally.cause.message_type,
                group=tally.cause.group,
                sender=tally.sender,
                pointer=tally.cause.pointer,
                where=tally.cause.where,
                error=tally.cause.error,
                first=tally.first,
                example=tally.example,
            )
            for value, tally in sorted(found.items(), key=lambda item: -item[1].count)
        ]


def is_history(letter: DeadLetter, location: str, state: LetterState) -> bool:
    """Return whether *state*, of the letter at *location*, belongs to the history of *letter*."""
    if location == letter.place:
        return True
    its_own = letter.origin and (state.origin, state.group) == (letter.origin, letter.group)
    return bool(its_own) and state.content in ("", letter.content)


def history_of(letter: DeadLetter, states: Mapping[str, LetterState]) -> list[tuple[str, Step]]:
    """Return the history of this dead letter and of earlier ones of the same message and group, oldest first."""
    own = known_state_of(letter, states.get(letter.place))
    steps = [(letter.place, step) for step in own.steps] if own is not None else []
    steps += [
        (location, step)
        for location, state in states.items()
        if location != letter.place and is_history(letter, location, state)
        for step in state.steps
    ]
    return sorted(steps, key=lambda entry: entry[1].at)
