"""Dead letters that have something in common, as rows; and the history of one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import msgspec

from consumers.deadletters.causes import cause_of
from consumers.deadletters.letter_state import LetterState, Step, known_state_of
from consumers.deadletters.letters import DeadLetter

__all__ = ["GROUPINGS", "LetterGroup", "history_of", "letter_group"]


GROUPINGS: Final[Mapping[str, Callable[[DeadLetter], str]]] = {
    "cause": lambda letter: cause_of(letter).name,
    "type": lambda letter: letter.message_type,
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
    pointer: str
    error: str
    first: str
    """When the first one failed."""
    example: str
    """Its location."""


def letter_group(by: str, value: str, count: int, letter: DeadLetter) -> LetterGroup:
    cause = cause_of(letter)
    return LetterGroup(
        by=by,
        value=value,
        dead_letters=count,
        reason=cause.reason,
        type=cause.message_type,
        group=cause.group,
        sender=cause.sender,
        pointer=cause.pointer,
        error=cause.error,
        first=letter.failed_at,
        example=letter.place,
    )


def history_of(letter: DeadLetter, states: Mapping[str, LetterState]) -> list[tuple[str, Step]]:
    """Return the history of this dead letter and of earlier ones of the same message and group, oldest first."""
    own = known_state_of(letter, states.get(letter.place))
    steps = [(letter.place, step) for step in own.steps] if own is not None else []
    steps += [
        (location, step)
        for location, state in states.items()
        if location != letter.place and letter.origin and (state.origin, state.group) == (letter.origin, letter.group)
        if state.content in ("", letter.content)
        for step in state.steps
    ]
    return sorted(steps, key=lambda entry: entry[1].at)
