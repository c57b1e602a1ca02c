"""How much work a regular expression can make of a text: told from the expression, before there is a text.

Owns the bound. Python's `re` tries one way through an expression after the other, and goes every way that fits the
beginning of a text, once. So the work for a text is the number of ways that fit its beginnings, and an expression is
cheap where no text has many: at no character of it, or at few. Ways are counted by walking the automaton of the
expression (Glushkov's: one state for each character or class) over every text at once. Pure. Does not own which
expressions are asked about (`bus.payloads.costly_types`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from re import _constants as sre  # type: ignore[attr-defined]  # the only description of a pattern that there is
from re import _parser as sre_parser  # type: ignore[attr-defined]
from typing import Any, Final, TypeAlias

__all__ = ["find_pattern_fault"]

_ONCE: Final = 50
"""Steps that a text may take beside those for each of its characters."""
_EACH: Final = 12
"""Steps that each character of a text may take."""
_MOST_STATES: Final = 4_500
_MOST_SETS: Final = 5_000
_COUNTED: Final = 32
"""Up to so many repeats more than the least are told apart; more are taken for any number, which is never less work."""

_ENDS: Final = ((sre.AT, sre.AT_END), (sre.AT, sre.AT_END_STRING))
_BEGINNINGS: Final = ((sre.AT, sre.AT_BEGINNING), (sre.AT, sre.AT_BEGINNING_STRING))
_REPEATS: Final = (sre.MAX_REPEAT, sre.MIN_REPEAT, sre.POSSESSIVE_REPEAT)

# Characters are bits: those of ASCII, and one each for all other digits, letters, spaces and the rest of them.
_ASCII: Final = (1 << 128) - 1
_OTHERS: Final = 0b1111 << 128
_ALL: Final = _ASCII | _OTHERS
_KINDS: Final = 132
_LETTERS: Final = (((1 << 26) - 1) << ord("a"), ((1 << 26) - 1) << ord("A"))
_SAMPLES: Final = {**{code: chr(code) for code in range(128)}, 128: "\u0661", 129: "\xe9", 130: "\u2003", 131: "\u2212"}
_CATEGORIES: Final = {
    getattr(sre, f"CATEGORY_{name}"): sum(1 << code for code, sample in _SAMPLES.items() if re.match(text, sample))
    for name, text in {
        "DIGIT": r"\d",
        "NOT_DIGIT": r"\D",
        "SPACE": r"\s",
        "NOT_SPACE": r"\S",
        "WORD": r"\w",
        "NOT_WORD": r"\W",
    }.items()
}

_Ways: TypeAlias = dict[int, int]
"""In how many ways each state is reached."""
_Part: TypeAlias = tuple[_Ways, _Ways, int]
"""Of a part of an expression: its first states, its last ones, and in how many ways it is empty."""
_EMPTY: Final[_Part] = ({}, {}, 1)


def find_pattern_fault(pattern: str) -> str | None:
    """Why *pattern* is not allowed, with what to write instead; None if matching takes time in proportion to a text."""
    parsed = sre_parser.parse(pattern)
    items = list(parsed)
    if len(items) < 2 or items[0] not in _BEGINNINGS or items[-1] not in _ENDS:  # noqa: PLR2004 - a beginning and an end
        return "a pattern is anchored at both ends: write ^...$"
    if parsed.state.flags & re.MULTILINE:
        return "a pattern is matched once, and not line by line: leave (?m) out"
    try:
        _Automaton(items[1:-1], parsed.state.flags).check()
    except _CostlyError as error:
        return str(error)
    return None


class _CostlyError(Exception):
    """Why a pattern is not allowed."""


class _Automaton:
    def __init__(self, items: list[Any], flags: int) -> None:
        self._ignores_case = bool(flags & re.IGNORECASE)
        self._is_ascii = bool(flags & re.ASCII)
        self._sets: list[int] = []
        self._next: list[_Ways] = []
        start, end = self._state(0), self._state(0)
        first, last, empty = self._sequence(items)
        self._link({start: 1}, first)
        self._link(last, {end: 1})
        self._link({start: empty}, {end: 1})

    def check(self) -> None:
        """Raise _CostlyError if some text takes more than its steps."""
        letters = self._letters()
        begin = frozenset({(0, 1)})
        most = {begin: self._steps(begin)}
        waiting = [begin]
        while waiting:
            here = waiting.pop()
            for there in {self._step(here, letter) for letter in letters}:
                steps = most[here] + self._steps(there) - _EACH
                if there and steps > most.get(there, steps - 1):
                    most[there] = steps
                    waiting.append(there)
                    if steps > _ONCE:
                        raise _CostlyError(
                            "some text fits a pattern's beginning in too many ways, all of which are tried: "
                            "let what is repeated, or left out, begin with another character than what follows it"
                        )
            if len(most) > _MOST_SETS:
                raise _CostlyError("a pattern has too many ways to be told apart: write a shorter one")

    def _steps(self, ways: Iterable[tuple[int, int]]) -> int:
        return sum(count * sum(self._next[state].values()) for state, count in ways)

    def _step(self, ways: frozenset[tuple[int, int]], letter: int) -> frozenset[tuple[int, int]]:
        found: _Ways = {}
        for state, count in ways:
            for after, more in self._next[state].items():
                if self._sets[after] & letter:
                    found[after] = found.get(after, 0) + count * more
        return frozenset(found.items())

    def _letters(self) -> list[int]:
        """One character of each kind that the expression tells apart."""
        sets = set(self._sets)
        kinds: dict[tuple[bool, ...], int] = {}
        for code in range(_KINDS):
            kinds.setdefault(tuple(bool(members >> code & 1) for members in sets), 1 << code)
        return list(kinds.values())

    def _state(self, members: int) -> int:
        if len(self._sets) >= _MOST_STATES:
            raise _CostlyError("a pattern repeats too much for being looked at: let max_length say how long a text is")
        self._sets.append(members)
        self._next.append({})
        return len(self._sets) - 1

    def _link(self, last: _Ways, first: _Ways) -> None:
        for state, count in last.items():
            for after, more in first.items() if count else ():
                self._next[state][after] = self._next[state].get(after, 0) + count * more

    def _sequence(self, items: Iterable[Any]) -> _Part:
        found = _EMPTY
        for item in items:
            found = self._then(found, self._part(*item))
        return found

    def _then(self, left: _Part, right: _Part) -> _Part:
        self._link(left[1], right[0])
        return _sum(left[0], right[0], left[2]), _sum(right[1], left[1], right[2]), left[2] * right[2]

    def _part(self, kind: Any, argument: Any) -> _Part:
        if (members := self._members(kind, argument)) is not None:
            state = self._state(members)
            return {state: 1}, {state: 1}, 0
        if kind in _REPEATS:
            least, most, inner = argument
            return self._repeat(int(least), None if most is sre.MAXREPEAT else int(most), inner)
        if kind is sre.SUBPATTERN:
            _, more_flags, less_flags, inner = argument
            if more_flags or less_flags:
                raise _CostlyError("a pattern has its flags at its beginning")
            return self._sequence(inner)
        if kind is sre.BRANCH:
            found: _Part = ({}, {}, 0)
            for branch in argument[1]:
                first, last, empty = self._sequence(branch)
                found = _sum(found[0], first), _sum(found[1], last), found[2] + empty
            return found
        raise _CostlyError(
            "a pattern is made of characters, classes, groups, alternatives and repeats of these, "
            "without references or looking around"
        )

    def _repeat(self, least: int, most: int | None, inner: Any) -> _Part:
        found = _EMPTY
        for _ in range(least):
            found = self._then(found, self._repeated(inner, most))
        if most is None or most - least > _COUNTED:
            body = self._repeated(inner, most)
            self._link(body[1], body[0])
            return self._then(found, (body[0], body[1], 1))
        rest = _EMPTY
        for _ in range(most - least):
            first, last, empty = self._then(self._repeated(inner, most), rest)
            rest = first, last, empty + 1
        return self._then(found, rest)

    def _repeated(self, inner: Any, most: int | None) -> _Part:
        body = self._sequence(inner)
        if body[2] and most != 1:
            raise _CostlyError("in a pattern nothing is repeated that may be empty: write (...)? around the repeat")
        return body

    def _members(self, kind: Any, argument: Any) -> int | None:
        """The characters that one item stands for, or more; None if it is more than a character or class."""
        if kind is sre.ANY:
            return _ALL
        if kind is sre.NOT_LITERAL:
            return _ALL ^ self._between(argument, argument) & _ASCII
        if kind is not sre.IN:
            return self._member(kind, argument)
        inner = [item for item in argument if item[0] is not sre.NEGATE]
        found = 0
        if len(inner) == len(argument):
            for item in inner:
                found |= self._member(*item) or 0
            return found
        for item in inner:
            # Of those beyond ASCII only whole kinds are known to be left out.
            known = _ALL if item[0] is sre.CATEGORY and not self._is_ascii else _ASCII
            found |= (self._member(*item) or 0) & known
        return _ALL ^ found

    def _member(self, kind: Any, argument: Any) -> int | None:
        if kind is sre.CATEGORY:
            return _CATEGORIES[argument] | (_OTHERS if self._is_ascii else 0)
        if kind is sre.RANGE:
            return self._between(*argument)
        if kind is sre.LITERAL:
            return self._between(argument, argument)
        return None

    def _between(self, low: int, high: int) -> int:
        found = sum(1 << code for code in range(low, min(high, 127) + 1)) | (_OTHERS if high > 127 else 0)  # noqa: PLR2004 - ASCII
        if self._ignores_case:
            small, large = found & _LETTERS[0], found & _LETTERS[1]
            # Some letters beyond ASCII are taken for ones in it, and the other way round.
            found |= small >> 32 | large << 32 | (_OTHERS if small or large else 0)
            found |= _LETTERS[0] | _LETTERS[1] if found & _OTHERS and high > 127 else 0  # noqa: PLR2004 - ASCII
        return found


def _sum(ways: _Ways, others: _Ways, times: int = 1) -> _Ways:
    if not times:
        return ways
    found = dict(ways)
    for state, count in others.items():
        found[state] = found.get(state, 0) + count * times
    return found
