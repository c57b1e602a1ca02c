"""The worst-case cost of a regular expression per character of text, computed from the expression alone.

Owns the bound. Python's `re` tries one way through an expression after the other, so an expression is cheap where few
ways are tried at any character of any text. The ways are those through the places of the expression (its characters and
classes), walked over all texts at once. Characters, classes, groups, alternatives and repeats are understood; an
expression with anything else is refused. Pure. `bus.payloads.costly_types` decides which expressions are checked.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final, TypeAlias

__all__ = ["MAX_TEXT", "find_pattern_fault"]

MAX_TEXT: Final = 4_096
"""Maximum length of a text that a pattern may look at."""

_ONCE: Final = 50
"""Ways that may be tried on a text beside those for each of its characters."""
_EACH: Final = 12
"""Ways that may be tried at each character of a text."""
_MAX_LOCATIONS: Final = 1_000
_MAX_SETS: Final = 2_000
_MAX_COUNTED: Final = 32
"""Up to so many repeats more than the least are told apart; more are taken for any number, which is never less work."""
_TOKEN: Final = re.compile(
    r"\\(?:x..|u.{4}|U.{8}|.)|\[\^?\]?(?:\\.|[^\]\\])*\]|\((?:\?(?::|P<\w+>))?|(?:[*+?]|\{\d+,?\d*\}|\{,\d*\})[?+]?|.",
    re.DOTALL,
)
_REPEAT: Final = re.compile(r"(?:([*+?])|\{(\d*)(,?)(\d*)\})[?+]?")
_SIGNS: Final = {"*": (0, None), "+": (1, None), "?": (0, 1)}
_NOT_UNDERSTOOD: Final = re.compile(r"[$^?]|\\[AbBNZ0-9]")
_OTHERS: Final = frozenset("\u0661\xe9\u2003\u2212")
"""A digit, a letter, a space and something else beyond ASCII, each for all of its kind."""
_SAMPLES: Final = frozenset(map(chr, range(128))) | _OTHERS
_Part: TypeAlias = tuple[list[int], list[int], bool]
"""A part of an expression: its first places, its last places, and whether it may match the empty string."""


def find_pattern_fault(pattern: str) -> str | None:
    """Return why *pattern* is not allowed, with a replacement; None if matching takes linear time."""
    re.compile(pattern)
    tokens = _TOKEN.findall(pattern)
    if len(tokens) < 2 or tokens[0] not in ("^", r"\A") or tokens[-1] not in ("$", r"\Z"):  # noqa: PLR2004 - both ends
        return "a pattern is anchored at both ends, and has no flags: write ^...$, and [Aa] for a letter of either case"
    try:
        _Places(tokens[1:-1]).check()
    except _CostlyError as error:
        return str(error)
    return None


class _CostlyError(Exception):
    """Why a pattern is not allowed."""


class _Places:
    def __init__(self, tokens: list[str]) -> None:
        self._tokens = [*tokens, ")"]
        self._at = 0
        self._members: list[frozenset[str]] = [frozenset(), frozenset()]
        """The characters that each place accepts; the first two places are the beginning and the end."""
        self._next: list[list[int]] = [[], []]
        self._then(self._then(([], [0], False), self._sequence()), ([1], [], False))
        if self._at < len(tokens):
            raise _CostlyError("a pattern is anchored at both ends: write ^(?:...|...)$")

    def check(self) -> None:
        """Raise _CostlyError if too many ways are tried at some character of some text."""
        kinds = {
            frozenset(location for location, taken in enumerate(self._members) if each in taken) for each in _SAMPLES
        }
        most: dict[tuple[int, ...], int] = {(0,): 0}
        waiting = list(most)
        while waiting:
            here = waiting.pop()
            tried = sorted(after for location in here for after in self._next[location])
            steps = most[here] + len(tried) - _EACH
            if steps > _ONCE - _EACH:
                raise _CostlyError(
                    "some text fits a pattern's beginning in too many ways, all of which are tried: "
                    "let what is repeated, or left out, begin with another character than what follows it"
                )
            for there in {tuple(location for location in tried if location in kind) for kind in kinds}:
                if there and steps > most.get(there, steps - 1):
                    most[there] = steps
                    waiting.append(there)
            if len(most) > _MAX_SETS:
                raise _CostlyError("a pattern is too complex to be checked: write a shorter one")

    def _then(self, left: _Part, right: _Part) -> _Part:
        for location in left[1]:
            self._next[location] += right[0]
        return left[0] + right[0] * left[2], right[1] + left[1] * right[2], left[2] and right[2]

    def _alternatives(self) -> _Part:
        first, last, is_empty = self._sequence()
        while self._tokens[self._at] == "|":
            self._at += 1
            more = self._sequence()
            if is_empty and more[2]:
                raise _CostlyError("in a pattern one alternative may be empty: write (...)? around the others")
            first, last, is_empty = first + more[0], last + more[1], is_empty or more[2]
        return first, last, is_empty

    def _sequence(self) -> _Part:
        found: _Part = [], [], True
        while self._tokens[self._at] not in ("|", ")"):
            found = self._then(found, self._repeated())
        return found

    def _repeated(self) -> _Part:
        begin, found = self._at, self._once()
        repeat = _REPEAT.fullmatch(self._tokens[self._at])
        if repeat is None:
            return found
        end, (sign, low, comma, high) = self._at + 1, repeat.groups()
        least, most = _SIGNS[sign] if sign else (int(low or 0), int(high) if high else None if comma else int(low))
        if found[2]:
            raise _CostlyError("in a pattern nothing is repeated that may be empty: write (...)? around the repeat")

        def again() -> _Part:
            self._at = begin
            return self._once()

        found = [], [], True
        for _ in range(least):
            found = self._then(found, again())
        rest: _Part = [], [], True
        if most is None or most - least > _MAX_COUNTED:
            body = again()
            self._then(body, body)
            rest = body[0], body[1], True
        else:
            for _ in range(most - least):
                first, last, _ = self._then(again(), rest)
                rest = first, last, True
        self._at = end
        return self._then(found, rest)

    def _once(self) -> _Part:
        token = self._tokens[self._at]
        self._at += 1
        if token[0] == "(":
            found = self._alternatives()
            self._at += 1
            return found
        if _NOT_UNDERSTOOD.match(token):
            raise _CostlyError(
                "a pattern is made of characters, classes, groups, alternatives and repeats of these, "
                "without references, flags or looking around"
            )
        if len(self._next) >= _MAX_LOCATIONS:
            raise _CostlyError("a pattern has too many repetitions to be checked: limit the text with max_length")
        self._members.append(_taken_by(token))
        self._next.append([])
        return [len(self._next) - 1], [len(self._next) - 1], False


@lru_cache(maxsize=256)
def _taken_by(token: str) -> frozenset[str]:
    """The samples that a character or class takes; of those beyond ASCII that it names, no two are told apart."""
    matches = re.compile(token, re.DOTALL).fullmatch
    named = frozenset() if token.isascii() and not re.search(r"\\[xuU]", token) else _OTHERS
    return named.union(filter(matches, _SAMPLES))
