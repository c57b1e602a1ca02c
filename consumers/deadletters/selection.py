"""Selection: the filters that `dlq list`, `redrive` and `dismiss` share. Pure but for reading the causes there are.

Owns matching, and describing a selection for the journal. The command line reads the options.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from bus.protocol.timestamps import format_ms
from bus.topics.names import read_topic
from bus.transports.base import Transport
from consumers.deadletters.causes import CauseBook, cause_of
from consumers.deadletters.letter_state import LetterStatus
from consumers.deadletters.letters import LetterFacts, list_letter_facts

__all__ = ["Selection", "read_causes", "with_causes"]


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
    causes: CauseBook | None = None
    """The causes as they were told apart when the short id was shown (`with_causes`)."""
    since_ms: int | None = None
    until_ms: int | None = None
    states: frozenset[str] = frozenset()
    places: frozenset[str] = frozenset()
    ends: Mapping[tuple[str, int], int] | None = None
    """By (topic, partition), the offset after the last dead letter that the operator confirmed."""

    def takes(self, letter: LetterFacts, state: LetterStatus) -> bool:
        """Return whether *letter*, being in *state*, is selected."""
        return (
            self.message_type in (None, _type_of_topic(letter.record.topic))
            and self.group in (None, letter.group)
            and (not self.reasons or letter.reason in self.reasons)
            and self.pointer in (None, letter.pointer)
            and (self.sender is None or letter.sender == self.sender)
            and (self.cause is None or self.cause in self._causes_of(letter))
            and (self.since_ms is None or letter.failed_ms >= self.since_ms)
            and (self.until_ms is None or letter.failed_ms <= self.until_ms)
            and (not self.states or state in self.states)
            and (not self.places or letter.place in self.places)
            and (
                self.ends is None
                or letter.record.offset < self.ends.get((letter.record.topic, letter.record.partition), 0)
            )
        )

    def _causes_of(self, letter: LetterFacts) -> tuple[str, ...]:
        """Return the short ids of the cause of *letter*: alone, and joined with others."""
        own = cause_of(letter).name
        return (own,) if self.causes is None else (own, self.causes.name_of(letter))

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


async def with_causes(transport: Transport, namespace: str, selection: Selection) -> Selection:
    """Return *selection* with the causes that are told apart now, if it is by cause and has none. Raises BusError."""
    if selection.cause is None or selection.causes is not None:
        return selection
    causes = await read_causes(transport, namespace, selection.message_type)
    return msgspec.structs.replace(selection, causes=causes)


async def read_causes(transport: Transport, namespace: str, message_type: str | None = None) -> CauseBook:
    """Read all dead letters of *namespace* (of one type) and tell their causes apart. Raises BusError."""
    causes = CauseBook()
    async for letter in list_letter_facts(transport, namespace, message_type):
        causes.add(letter)
    return causes


def _type_of_topic(topic: str) -> str:
    name = read_topic(topic)
    return name.message_type if name is not None else ""
