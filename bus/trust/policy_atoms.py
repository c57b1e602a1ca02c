"""Representatives: one text for each way in which texts can relate to a set of globs. Pure.

Owns the forms of texts (types, ids, segments) and the search. What holds for the representatives holds for every text
of the form, because the globs are all that a policy asks a text.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import Final, Literal, TypeAlias

from bus.errors import ConfigurationError
from bus.protocol.identifiers import MAX_MESSAGE_TYPE, MAX_NAMESPACE, MAX_TEXT_ID
from bus.trust.globs import SEPARATORS, GlobAutomaton, compile_globs, unlisted_letter

__all__ = ["TextForm", "representatives"]

TextForm: TypeAlias = Literal["type", "segment", "id", "any"]

_LETTERS: Final = "xyzabcdefghijklmnopqrstuvw"
_DIGITS: Final = "0123456789"
_LONGEST: Final = {"type": MAX_MESSAGE_TYPE, "segment": MAX_NAMESPACE, "id": MAX_TEXT_ID, "any": 4 * MAX_TEXT_ID}
_MAX_STATES: Final = 100_000
_DEAD_LETTERS: Final = "dlq"
"""No message type has this last segment."""

_Place: TypeAlias = tuple[str, str]
"""What came last (`start`, `text` or `hyphen`), and the segment so far where that matters."""


def representatives(globs: Sequence[str], form: TextForm, preferred: Iterable[str] = ()) -> list[str]:
    """Return texts of *form*, one for each set of *globs* that a text can match; of *preferred* where one does.

    Raises ConfigurationError where there are more than 100,000 states to look at.
    """
    matcher = compile_globs(globs)
    found: dict[frozenset[int], str] = {}
    for text in preferred:
        found.setdefault(matcher.match(text), text)
    automaton = GlobAutomaton(globs)
    letters = _letters(globs, form)
    waiting = deque([(automaton.start, _start(form), "")])
    seen = {(automaton.start, _start(form))}
    while waiting:
        positions, place, text = waiting.popleft()
        if _is_complete(place, form):
            found.setdefault(automaton.accepted(positions), text)
        if len(text) >= _LONGEST[form]:
            continue
        for letter in letters:
            following = _followed(place, letter, form)
            if following is None:
                continue
            state = (automaton.step(positions, letter), following)
            if state not in seen:
                seen.add(state)
                waiting.append((*state, text + letter))
                if len(seen) > _MAX_STATES:
                    raise ConfigurationError("these globs are too entangled to analyse: use fewer with ** in them")
    return list(found.values())


def _letters(globs: Sequence[str], form: TextForm) -> list[str]:
    """Return the letters that *globs* tell apart, and one for all others of each kind."""
    used = frozenset("".join(globs)) - {"*"}
    if form in ("id", "any"):
        return [unlisted_letter(globs), *sorted(used | SEPARATORS)]
    others = [next((one for one in kind if one not in used), "") for kind in (_LETTERS, _DIGITS)]
    allowed = frozenset(_LETTERS + _DIGITS + "-." if form == "type" else _LETTERS + _DIGITS + "-")
    return [*filter(None, others), *sorted((used & allowed) | (allowed & frozenset("-.")))]


def _start(form: TextForm) -> _Place:
    return ("start", "") if form != "any" else ("text", "")


def _is_complete(place: _Place, form: TextForm) -> bool:
    return place[0] == "text" and not (form == "type" and place[1] == _DEAD_LETTERS)


def _followed(place: _Place, letter: str, form: TextForm) -> _Place | None:
    if form in ("id", "any"):
        return "text", ""
    last, segment = place
    if letter == ".":
        return ("start", "") if last == "text" else None
    if letter == "-":
        return ("hyphen", "-") if last == "text" else None
    if last == "start" and letter in _DIGITS:
        return None
    grown = segment + letter
    return "text", grown if _DEAD_LETTERS.startswith(grown) else "-"
