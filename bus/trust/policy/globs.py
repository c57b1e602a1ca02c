"""Globs: the only patterns of the policy, and the automata behind them. Pure.

Owns their form and matching many of them at once; the globs of authority are in `bus.protocol.authority_globs`. Agent
ids, types, groups, namespaces and resources follow one rule, that of VOCABULARY.md: `*` matches any text without `/`,
`**` any text. Both match the empty text. A glob has at most 4 stars (`**` counts as two) and 256 characters; every
other character matches itself. Matching needs no backtracking: its time is linear in the text.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Sequence
from typing import Final

from bus.errors import ConfigurationError

__all__ = [
    "GlobMatcher",
    "common_text",
    "compile_globs",
    "glob_fault",
]

_SEPARATORS: Final = frozenset("/")
"""The characters at which `*` ends."""
_MAX_STARS: Final = 4
_MAX_GLOB: Final = 256

GlobPositions = tuple[int, ...]
"""Sorted places in the patterns of one automaton: a state of it."""

_SEGMENT: Final = "*"
_ALL: Final = "**"
_END: Final = "end"
# Cells of the lazily built automaton of one matcher, and the texts that it remembers.
_MAX_CELLS: Final = 400_000
_MAX_REMEMBERED: Final = 4096
_LONGEST_REMEMBERED: Final = 256
_MAX_SEARCHED: Final = 20_000


def glob_fault(glob: str) -> str | None:
    """Return why *glob* is invalid, or None."""
    if len(glob) > _MAX_GLOB:
        return f"has {len(glob)} characters, at most {_MAX_GLOB} are allowed"
    if glob.count("*") > _MAX_STARS:
        return f"has {glob.count('*')} stars, at most {_MAX_STARS} are allowed"
    if "***" in glob:
        return "has three stars in a row: write * (within a segment) or ** (across)"
    return None


class _GlobAutomaton:
    """The union of globs as a non-deterministic automaton, stepped on whole sets of positions."""

    __slots__ = ("_owners", "_tokens", "letters", "start")

    def __init__(self, globs: Sequence[str]) -> None:
        """Compile a glob. Raises ConfigurationError for an invalid one."""
        tokens: list[str] = []
        owners: list[int] = []
        start: list[int] = []
        for index, glob in enumerate(globs):
            if (fault := glob_fault(glob)) is not None:
                raise ConfigurationError(f"glob {glob[:80]!r} {fault}")
            start.append(len(tokens))
            tokens += _tokens(glob)
            owners += [index] * (len(tokens) - len(owners))
        # A token is a letter, `*`, `**` or the end. The letter `*` cannot be said.
        self._tokens = tokens
        self._owners = owners
        self.letters: frozenset[str] = frozenset(token for token in tokens if token not in (_SEGMENT, _ALL, _END))
        self.start: GlobPositions = self._closed(start)

    def step(self, positions: GlobPositions, letter: str) -> GlobPositions:
        """Return the positions reached from *positions* by *letter*."""
        tokens, reached = self._tokens, []
        inside = letter not in _SEPARATORS
        for location in positions:
            token = tokens[location]
            if token == _ALL or (token == _SEGMENT and inside):
                reached.append(location)
            elif token == letter:
                reached.append(location + 1)
        return self._closed(reached)

    def accepted(self, positions: GlobPositions) -> frozenset[int]:
        """Return the indices of the globs that match a text which leads to *positions*."""
        return frozenset(self._owners[location] for location in positions if self._tokens[location] == _END)

    def owners(self, positions: GlobPositions) -> frozenset[int]:
        """Return the indices of the globs that a text may still match."""
        return frozenset(self._owners[location] for location in positions)

    def next_characters(self, positions: GlobPositions) -> frozenset[str]:
        """Return the letters that *positions* distinguish, besides separators."""
        return frozenset(
            token for location in positions if (token := self._tokens[location]) not in (_SEGMENT, _ALL, _END)
        )

    def _closed(self, locations: Iterable[int]) -> GlobPositions:
        tokens, found = self._tokens, set(locations)
        for location in tuple(found):
            at = location
            while tokens[at] in (_SEGMENT, _ALL):
                at += 1
                found.add(at)
        return tuple(sorted(found))


def _tokens(glob: str) -> list[str]:
    tokens: list[str] = []
    for letter in glob:
        if letter == "*" and tokens and tokens[-1] == _SEGMENT:
            tokens[-1] = _ALL
        else:
            tokens.append(letter)
    return [*tokens, _END]


class _State:
    """One state of the deterministic automaton, with the steps that were asked for."""

    __slots__ = ("accepted", "positions", "steps")

    def __init__(self, positions: GlobPositions, accepted: frozenset[int]) -> None:
        self.positions = positions
        self.accepted = accepted
        self.steps: dict[str, _State] = {}


class GlobMatcher:
    """Matches a text against many globs at once.

        compile_globs(["*@svc", "planner@*"]).match("planner@svc")      # frozenset({0, 1})

    Globs without a star are looked up in a dict; the others form one automaton, whose deterministic states are built on
    demand. The number of stored states is limited: beyond it the cache starts empty again.
    """

    __slots__ = ("_automaton", "_cells", "_exact", "_indices", "_known", "_start", "_states")

    def __init__(self, globs: Sequence[str]) -> None:
        exact: dict[str, set[int]] = {}
        starred = []
        for index, glob in enumerate(globs):
            if "*" in glob:
                starred.append(index)
            else:
                exact.setdefault(glob, set()).add(index)
                if (fault := glob_fault(glob)) is not None:
                    raise ConfigurationError(f"glob {glob[:80]!r} {fault}")
        self._exact = {text: frozenset(indices) for text, indices in exact.items()}
        self._indices = starred
        self._automaton = _GlobAutomaton([globs[index] for index in starred])
        self._known: dict[str, frozenset[int]] = {}
        self._forget()

    def match(self, text: str) -> frozenset[int]:
        """Return the indices of the globs that match *text*."""
        found = self._known.get(text)
        if found is not None:
            return found
        found = self._exact.get(text, frozenset()) | self._starred(text)
        if len(text) <= _LONGEST_REMEMBERED:
            if len(self._known) >= _MAX_REMEMBERED:
                self._known = {}
            self._known[text] = found
        return found

    def _starred(self, text: str) -> frozenset[int]:
        state = self._start
        for letter in text:
            following = state.steps.get(letter)
            state = self._step(state, letter) if following is None else following
            if not state.positions:
                break
        return state.accepted

    def _step(self, state: _State, letter: str) -> _State:
        # Letters that no glob names are one: a cache of foreign letters would have no bound.
        key = letter if letter in self._automaton.letters or letter in _SEPARATORS else ""
        following = state.steps.get(key)
        if following is None:
            following = self._state(self._automaton.step(state.positions, key))
            state.steps[key] = following
        return following

    def _state(self, positions: GlobPositions) -> _State:
        state = self._states.get(positions)
        if state is None:
            if self._cells > _MAX_CELLS:
                self._forget()
            accepted = frozenset(self._indices[index] for index in self._automaton.accepted(positions))
            state = self._states[positions] = _State(positions, accepted)
            self._cells += len(positions)
        self._cells += 1
        return state

    def _forget(self) -> None:
        self._cells = 0
        self._states: dict[GlobPositions, _State] = {}
        self._start = self._state(self._automaton.start)


def compile_globs(globs: Sequence[str]) -> GlobMatcher:
    """Return the matcher of *globs*; ConfigurationError names an invalid one."""
    return GlobMatcher(globs)


def common_text(lists: Sequence[Collection[str]]) -> str | None:
    """Return a text that each of *lists* matches by one of its globs; None if there is none.

    Raises ConfigurationError for an invalid glob, or if the search would take more than 20,000 states.
    """
    globs = [glob for globs in lists for glob in globs]
    owner = [index for index, globs in enumerate(lists) for _ in globs]
    everyone = frozenset(range(len(lists)))
    automaton, other = _GlobAutomaton(globs), _unlisted_letter(globs)
    waiting = deque([(automaton.start, "")])
    seen = {automaton.start}
    while waiting:
        positions, text = waiting.popleft()
        if {owner[index] for index in automaton.accepted(positions)} == everyone:
            return text
        for letter in sorted({*automaton.next_characters(positions), *_SEPARATORS, other}):
            reached = automaton.step(positions, letter)
            if reached in seen or {owner[index] for index in automaton.owners(reached)} != everyone:
                continue
            seen.add(reached)
            waiting.append((reached, text + letter))
            if len(seen) > _MAX_SEARCHED:
                raise ConfigurationError("these globs are too entangled to compare: use fewer with ** in them")
    return None


def _unlisted_letter(globs: Iterable[str]) -> str:
    """Return a letter that occurs in no glob, a plain one if possible."""
    used = frozenset("".join(globs))
    plain = next((letter for letter in "xyzabcdefghijklmnopqrstuvw0123456789" if letter not in used), None)
    if plain is not None:
        return plain
    return next(chr(code) for code in range(0x100, 0x11_0000) if chr(code) not in used and chr(code).isalpha())
