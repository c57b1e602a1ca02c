"""Selection: the filters that `dlq list`, `redrive` and `dismiss` share. Pure.

Owns matching, and describing a selection for the journal. The command line reads the options.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from bus.protocol.timestamps import format_ms
from bus.topics.names import read_topic
from consumers.deadletters.causes import cause_of
from consumers.deadletters.letter_state import LetterStatus
from consumers.deadletters.letters import DeadLetter

__all__ = ["Selection"]


class Selection(msgspec.Struct, frozen=True, kw_only=True):
    """Filters that must all hold; without any filter every letter is selected.

    The type is that of the dead letter topic; times are those of death, both ends inclusive.
    """

    message_type: str | None = None
    group: str | None = None
    reasons: frozenset[str] = frozenset()
    sender: str | None = None
    pointer: str | None = None
    """The field that was refused."""
    cause: str | None = None
    """The short id of a cause (`consumers.deadletters.causes`)."""
    since_ms: int | None = None
    until_ms: int | None = None
    states: frozenset[str] = frozenset()
    places: frozenset[str] = frozenset()
    ends: Mapping[tuple[str, int], int] | None = None
    """By (topic, partition), the offset after the last dead letter that the operator confirmed."""

    def takes(self, letter: DeadLetter, state: LetterStatus) -> bool:
        """Return whether *letter*, being in *state*, is selected."""
        return (
            self.message_type in (None, _type_of_topic(letter.record.topic))
            and self.group in (None, letter.group)
            and (not self.reasons or letter.reason in self.reasons)
            and self.sender in (None, letter.sender)
            and self.pointer in (None, letter.pointer)
            and (self.cause is None or cause_of(letter).name == self.cause)
            and (self.since_ms is None or letter.failed_ms >= self.since_ms)
            and (self.until_ms is None or letter.failed_ms <= self.until_ms)
            and (not self.states or state in self.states)
            and (not self.places or letter.place in self.places)
            and (
                self.ends is None
                or letter.record.offset < self.ends.get((letter.record.topic, letter.record.partition), 0)
            )
        )

    def describe(self) -> dict[str, object]:
        """Return the given filters, for the journal."""
        provided: dict[str, object] = {
            "type": self.message_type,
            "group": self.group,
            "reasons": sorted(self.reasons),
            "sender": self.sender,
            "pointer": self.pointer,
            "cause": self.cause,
            "since": None if self.since_ms is None else format_ms(self.since_ms),
            "until": None if self.until_ms is None else format_ms(self.until_ms),
            "states": sorted(self.states),
            "places": sorted(self.places),
        }
        return {name: value for name, value in provided.items() if value}


def _type_of_topic(topic: str) -> str:
    name = read_topic(topic)
    return name.message_type if name is not None else ""
