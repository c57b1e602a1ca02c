"""JOURNAL: what operators have sent back is written down, letter by letter, and nothing was sent back twice.

Owns what the journal of a redrive must say in the end, whoever was cut off meanwhile. Pure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from harness.history import Entry, History

__all__ = ["complete"]

_ENDS = ("redrive.ended", "redrive.abandoned")

Death = tuple[tuple[str, int, int], int]
"""Where a message was first read, and how often it had been sent back before."""


def complete(history: History) -> Iterator[str]:
    """JOURNAL."""
    if not history.redriven:
        return
    yield from _unended(history)
    states = {note.key: note.told for note in history.notes if note.topic.endswith("._deadletters")}
    sent = Counter(_death(entry, before=-1) for entry in history.entries if entry.kind == "redrive")
    for (origin, _), times in sent.items():
        if times > 1:
            yield f"the letter of {_written(origin)} was sent back {times} times"
    letters = {}
    for entry in history.entries:
        if entry.kind == "dlq" and "sb-dlq-stub" not in entry.headers:
            death = letters[entry.place] = _death(entry)
            told = states.get(_written(entry.place), {})
            if told.get("steps", [{}])[-1].get("action") == "sending":
                yield f"nobody wrote down what became of the letter {_written(entry.place)}"
            if (told.get("state") == "redriven") != (sent[death] > 0):
                letter = f"the letter {_written(entry.place)} is {told.get('state', 'open')} in the journal"
                yield f"{letter} and was sent back {sent[death]} times"
    for origin, _ in sent.keys() - letters.values():
        yield f"what was sent back to {_written(origin)} has no letter"


def _unended(history: History) -> Iterator[str]:
    begun: dict[str, None] = {}
    for note in history.notes:
        if note.topic.endswith("._audit") and note.told.get("event") == "redrive.started":
            begun[note.told["run"]] = None
        elif note.told.get("event") in _ENDS:
            begun.pop(note.told["run"], None)
    for run in begun:
        yield f"the redrive {run} began, and nothing says how it ended"


def _death(entry: Entry, before: int = 0) -> Death:
    return entry.origin, int(entry.headers.get("sb-redrive-count", "0")) + before


def _written(place: tuple[str, int, int]) -> str:
    return "/".join(map(str, place))
