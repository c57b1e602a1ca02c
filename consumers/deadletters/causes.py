"""Causes: the common features of dead letters, so that three hundred of them are three things to fix. Pure.

A cause is a place first (reason, type, group, field, line of code), then the error's text without ids. The sender is no
part of it: where there are no keys anybody may invent fifty thousand of them.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from functools import lru_cache
from itertools import combinations
from typing import Final

import msgspec

from bus.protocol import canonical
from bus.protocol.reasons import REASONS
from bus.redaction import cut
from consumers.deadletters.error_text import ID_MARK, without_ids
from consumers.deadletters.letters import LetterFacts

__all__ = ["MAX_CAUSES", "OTHER", "Cause", "CauseBook", "cause_of"]

MAX_CAUSES: Final = 100
"""Causes that are told apart in one dead letter topic for one reason; what comes after is one more, the other one."""
OTHER: Final = "other-"
"""The name of an other cause begins so."""
_OTHER_TEXT: Final = "(other causes)"
_MAX_POINTER: Final = 160
_MAX_GROUP: Final = 80
_DIGITS: Final = 8
_SEGMENT: Final = re.compile(r"/[^/]*")
# A field's own name may end in a number; a key of a map, or a position in an array, is an id.
_NAMED_FIELD: Final = re.compile(r"/(?:[^\d/]+\d{0,2})?")
_LEAST_WORDS: Final = 2
_MAX_WORDS: Final = 24
# A word after an id that looked like the name of a secret was masked when the letter was written.
_MASKED: Final = "***"
_MANY: Final = 16
"""So many different words in the same place of one text are ids, though each of them could be a word."""
_FOLDER: Final = re.compile(r"[/\\]")


class Cause(msgspec.Struct, frozen=True, kw_only=True):
    """The cause of a dead letter: the features that all dead letters with the same fix have in common."""

    reason: str
    message_type: str
    group: str
    pointer: str
    where: str = ""
    """The line of code that raised the error, FILE:LINE; empty if unknown."""
    error: str

    @property
    def name(self) -> str:
        """A short id of this cause: the same on every machine."""
        return _digits(canonical.encode(msgspec.to_builtins(self)))


def cause_of(letter: LetterFacts) -> Cause:
    """Return the cause of *letter*; `CauseBook` joins those whose ids look like words of a sentence."""
    return Cause(
        reason=cut(letter.reason, _MAX_GROUP),
        # The type in its envelope is a stranger's text.
        message_type=letter.topic_type,
        group=cut(letter.group, _MAX_GROUP),
        pointer=_field(letter.pointer[:_MAX_POINTER]),
        where=_FOLDER.split(letter.where)[-1],
        error=without_ids(letter.error),
    )


class CauseBook:
    """The causes of dead letters, by number; at most MAX_CAUSES for a topic and reason, and their other one.

    A text is of a kept cause, too, where it has any word at the place of an id. Which causes are kept depends on the
    order of reading alone: who reads all letters of a topic in the same order tells the same causes apart.
    """

    def __init__(self) -> None:
        self._causes: list[Cause] = []
        self._part_of: list[int] = []
        """By number, that of the cause which it is a part of: its own, unless another one was found to include it."""
        self._shelves: dict[tuple[str, str], _Shelf] = {}
        self._others: dict[int, _Shelf] = {}
        self._names: dict[int, str] = {}

    def __len__(self) -> int:
        return len(self._causes)

    def add(self, letter: LetterFacts) -> int:
        """Return the number of the cause of *letter*, and keep that cause if there is room."""
        cause, shelf = cause_of(letter), self._shelf_of(letter)
        number = shelf.find(cause)
        if number is not None:
            return number
        if len(shelf.kept) < MAX_CAUSES:
            number = self._keep(shelf, cause)
            if (general := shelf.general(cause)) is not None:
                self._keep(shelf, general)
            return self.whole(number)
        if shelf.other is None:
            shelf.close()
            shelf.other = self._new(
                Cause(
                    reason=cause.reason if cause.reason in REASONS else "",
                    message_type=cause.message_type,
                    group="",
                    pointer="",
                    error=_OTHER_TEXT,
                )
            )
            self._others[shelf.other] = shelf
        return shelf.other

    def whole(self, number: int) -> int:
        """Return the number of the cause that *number* is part of; its own, if of none."""
        while self._part_of[number] != number:
            number = self._part_of[number]
        return number

    def cause(self, number: int) -> Cause:
        """Return the cause with this number."""
        return self._causes[number]

    def name(self, number: int) -> str:
        """Return the short id of the cause with this number."""
        if (name := self._names.get(number)) is None:
            shelf = self._others.get(number)
            # An other cause is what is not of these: with others kept, it is another one.
            told = self._causes[number].name if shelf is None else shelf.other_name()
            name = self._names[number] = told
        return name

    def name_of(self, letter: LetterFacts) -> str:
        """Return the short id of the cause of *letter*, as it was told apart so far."""
        cause, shelf = cause_of(letter), self._shelf_of(letter)
        number = shelf.find(cause)
        if number is None:
            number = shelf.other
        return cause.name if number is None else self.name(self.whole(number))

    def full_shelves(self, topic: str) -> Iterator[Collection[int]]:
        """Yield the numbers of the kept causes of *topic* for each reason that has an other cause."""
        for (each, _), shelf in self._shelves.items():
            if each == topic and shelf.other is not None:
                yield shelf.kept.values()

    def forget(self, topic: str) -> None:
        """Tell the causes of *topic* apart anew; the numbers of those it had stay."""
        for key in [key for key in self._shelves if key[0] == topic]:
            del self._shelves[key]

    def _keep(self, shelf: _Shelf, cause: Cause) -> int:
        number = shelf.kept[cause] = self._new(cause)
        if (pattern := _pattern_of(cause)) is not None:
            for each in [each for each in shelf.kept if each != cause and pattern.takes(each)]:
                self._part_of[shelf.kept.pop(each)] = number
            shelf.patterns.setdefault(_place_of(cause), []).append((pattern, number))
        return number

    def _new(self, cause: Cause) -> int:
        self._causes.append(cause)
        self._part_of.append(len(self._part_of))
        return len(self._causes) - 1

    def _shelf_of(self, letter: LetterFacts) -> _Shelf:
        key = letter.record.topic, letter.reason if letter.reason in REASONS else ""
        if (found := self._shelves.get(key)) is None:
            found = self._shelves[key] = _Shelf(*key)
        return found


class _Shelf:
    """The kept causes of one topic and reason."""

    def __init__(self, topic: str, reason: str) -> None:
        self.kept: dict[Cause, int] = {}
        self.patterns: dict[tuple[str, str, str], list[tuple[_Pattern, int]]] = {}
        """By place, the causes that have ids in their texts, first come first."""
        self.other: int | None = None
        self._key = (topic, reason)
        self._alike: Counter[int] = Counter()
        """By the hash of a text without one or two of its words, how many kept causes have it."""

    def find(self, cause: Cause) -> int | None:
        number = self.kept.get(cause)
        if number is None and (patterns := self.patterns.get(_place_of(cause))):
            number = next((number for pattern, number in patterns if pattern.takes(cause)), None)
        return number

    def close(self) -> None:
        """Keep no more causes."""
        self._alike.clear()

    def general(self, cause: Cause) -> Cause | None:
        """Return the cause that includes *cause* and others like it: many texts differ in a word or two, which are ids.

        None as long as there are not so many.
        """
        place, words = _place_of(cause), cause.error.split(" ")
        positions = [at for at, word in enumerate(words[:_MAX_WORDS]) if ID_MARK not in word]
        for left_out in [*combinations(positions, 1), *combinations(positions, 2)]:
            rest = [ID_MARK if at in left_out else word for at, word in enumerate(words)]
            key = hash((place, *rest))
            self._alike[key] += 1
            if self._alike[key] >= _MANY:
                found = msgspec.structs.replace(cause, error=" ".join(rest))
                if found not in self.kept and self._differ(found, left_out):
                    return found
        return None

    def _differ(self, general: Cause, left_out: Sequence[int]) -> bool:
        """Return whether the kept causes in *general* have many words in each place that it leaves out."""
        pattern = _pattern_of(general)
        if pattern is None:
            return False
        texts = [each.error.split(" ") for each in self.kept if pattern.takes(each)]
        return all(len({words[at] for words in texts}) >= _MANY for at in left_out)

    def other_name(self) -> str:
        return OTHER + _digits(canonical.encode([*self._key, *sorted(cause.name for cause in self.kept)]))


class _Pattern(msgspec.Struct, frozen=True):
    """The text of a cause with ids, word by word: a word, or what stands before and after an id."""

    place: tuple[str, str, str]
    words: Sequence[str | tuple[str, str]]

    def takes(self, cause: Cause) -> bool:
        """Return whether *cause* has the same place and text, but for words where ids are."""
        words = cause.error.split(" ")
        if len(words) != len(self.words) or _place_of(cause) != self.place:
            return False
        return all(
            word in (wanted, _MASKED)
            if isinstance(wanted, str)
            else len(word) > len(wanted[0]) + len(wanted[1]) and word.startswith(wanted[0]) and word.endswith(wanted[1])
            for word, wanted in zip(words, self.words, strict=True)
        )


def _pattern_of(cause: Cause) -> _Pattern | None:
    """Return the pattern of a cause with ids; None where too few words are left to know its sentence by."""
    words = cause.error.split(" ")
    if ID_MARK not in cause.error or sum(ID_MARK not in word for word in words) < _LEAST_WORDS:
        return None
    return _Pattern(
        _place_of(cause),
        tuple((word.partition(ID_MARK)[0], word.rpartition(ID_MARK)[2]) if ID_MARK in word else word for word in words),
    )


def _place_of(cause: Cause) -> tuple[str, str, str]:
    return cause.group, cause.pointer, cause.where


@lru_cache(maxsize=1024)
def _field(pointer: str) -> str:
    return _SEGMENT.sub(lambda found: found[0] if _NAMED_FIELD.fullmatch(found[0]) else f"/{ID_MARK}", pointer)


def _digits(data: bytes) -> str:
    return canonical.digest(data).removeprefix("sha256:")[:_DIGITS]
