"""The globs of `metadata.authority`: their form, and whether some are included in others (PROTOCOL.md section 1). Pure.

Owns the form of `can_read`, `can_write` and `can_execute` in an envelope, a link and a policy's table, and inclusion of
their languages. `*` matches any text without `/`; two or more stars in a row match any text. Both match the empty text,
and every other character matches itself.

Inclusion is exact and needs no limit of its own, because the form of the globs bounds its cost. To test a star of the
included glob it is enough to replace it by one letter that no other glob has: a glob that matches that letter matches
every text without `/` in its place. A `**` is replaced by this letter with different numbers of `/`. More `/` than the
including glob has runs of stars change nothing, because that letter needs a star between any two of them. With at most
three `**` and eight runs, one glob gives at most 729 words. Words that reach the same state are tried once.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Final

__all__ = ["MAX_CROSSING", "MAX_GLOBS", "MAX_GLOB_CHARS", "MAX_RUNS", "first_outside", "authority_glob_fault"]

MAX_GLOBS: Final = 256
"""Globs in one list."""
MAX_GLOB_CHARS: Final = 1_024
MAX_RUNS: Final = 8
"""Runs of stars in one glob."""
MAX_CROSSING: Final = 3
"""Runs of two or more stars in one glob: each may hold any number of `/`."""

_RUNS: Final = re.compile(r"\*+")
_SLASH: Final = "/"
_SEGMENT: Final = "*"
_CROSSING: Final = "**"
_FRESH: Final = ""
"""A letter that occurs in no glob."""


def authority_glob_fault(glob: str) -> str | None:
    """Return why *glob* is not allowed in an authority, or None."""
    if len(glob) > MAX_GLOB_CHARS:
        return f"has {len(glob)} characters, at most {MAX_GLOB_CHARS} are allowed"
    runs = _RUNS.findall(glob)
    if len(runs) > MAX_RUNS:
        return f"has stars in {len(runs)} places, at most {MAX_RUNS} are allowed"
    if (crossing := sum(len(run) > 1 for run in runs)) > MAX_CROSSING:
        return f"has ** in {crossing} places, at most {MAX_CROSSING} are allowed"
    return None


def first_outside(inner: Iterable[str], outer: Sequence[str]) -> str | None:
    """Return the first of *inner* that matches a text which none of *outer* matches; None if all are included.

    All globs have the form that `authority_glob_fault` allows. A glob that occurs literally in *outer* is skipped.
    """
    known = frozenset(outer)
    union: _Union | None = None
    for glob in inner:
        if glob in known:
            continue
        if union is None:
            union = _Union(known)
        if not union.includes(glob):
            return glob
    return None


def _tokens(glob: str) -> list[str]:
    """Return the letters of *glob*, with `*` or `**` for each run of stars."""
    tokens: list[str] = []
    end = 0
    for run in _RUNS.finditer(glob):
        tokens += glob[end : run.start()]
        tokens.append(_SEGMENT if len(run[0]) == 1 else _CROSSING)
        end = run.end()
    return [*tokens, *glob[end:]]


class _Union:
    """Globs as one non-deterministic automaton whose places are the bits of an integer."""

    __slots__ = ("_crossing", "_endless", "_ends", "_literals", "_stars", "_start")

    def __init__(self, globs: Iterable[str]) -> None:
        self._literals: dict[str, int] = {}
        self._stars = self._crossing = self._ends = self._endless = start = 0
        location = 1
        for glob in globs:
            start |= location
            tokens = _tokens(glob)
            for token in tokens:
                if token in (_SEGMENT, _CROSSING):
                    self._stars |= location
                    self._crossing |= location if token == _CROSSING else 0
                else:
                    self._literals[token] = self._literals.get(token, 0) | location
                location <<= 1
            if tokens and tokens[-1] == _CROSSING:
                self._endless |= location >> 1
            self._ends |= location
            location <<= 1
        self._start = self._closed(start)

    def includes(self, glob: str) -> bool:
        """Tell whether every text that *glob* matches is matched by one of the union."""
        tokens = _tokens(glob)
        # Where a word has come to in *glob*, and where it may be in the union.
        waiting = [(0, self._start)]
        visited: dict[int, list[int]] = {}
        while waiting:
            at, locations = waiting.pop()
            while at < len(tokens) and tokens[at] != _CROSSING and locations and not locations & self._endless:
                letter = tokens[at]
                locations = self._step(locations, _FRESH if letter == _SEGMENT else letter)
                at += 1
            if locations & self._endless:
                continue
            if not locations:
                return False
            if at == len(tokens):
                if not locations & self._ends:
                    return False
                continue
            locations = self._step(locations, _FRESH)
            while locations and not locations & self._endless and _is_new(visited.setdefault(at, []), locations):
                waiting.append((at + 1, locations))
                locations = self._step(self._step(locations, _SLASH), _FRESH)
            if not locations:
                return False
        return True

    def _step(self, locations: int, letter: str) -> int:
        moved = (locations & self._literals.get(letter, 0)) << 1
        return self._closed(moved | (locations & (self._crossing if letter == _SLASH else self._stars)))

    def _closed(self, locations: int) -> int:
        # Two runs of stars never stand beside each other: one step passes them.
        return locations | ((locations & self._stars) << 1)


def _is_new(visited: list[int], locations: int) -> bool:
    """Note *locations*; tell whether they are harder than all *visited*: what one of these includes, more places do."""
    if any(not one & ~locations for one in visited):
        return False
    visited[:] = [one for one in visited if locations & ~one]
    visited.append(locations)
    return True
