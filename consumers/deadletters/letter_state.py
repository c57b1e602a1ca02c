"""What became of a dead letter since it died: open, redriven, parked or purged.

And every step that led there. Pure but for reading them.

Owns the records of the compacted topic `<ns>._deadletters` (bus/protocol/PROTOCOL.md, section 6): their key, their
form, and which step may follow which. Writing them is `consumers.deadletters.journal`'s, deciding about a letter
`consumers.deadletters.redrive_rules`'s.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, Literal

import msgspec

from bus.protocol import canonical
from bus.topics.names import own_topic
from bus.transports.base import NewRecord, Record, Transport
from bus.transports.read_all import scan
from consumers.deadletters.letters import DeadLetter

__all__ = [
    "MAX_REDRIVES",
    "Action",
    "IllegalStepError",
    "LetterState",
    "State",
    "States",
    "Step",
    "follow",
    "is_free",
    "load_states",
    "read_state",
    "resolve",
    "state_of",
    "told_of",
]

State = Literal["open", "redriven", "parked", "purged"]
Action = Literal["sending", "redriven", "unsent", "twin", "parked", "purged"]

MAX_REDRIVES: Final = 3
"""How often a message is sent back before its next letter is parked."""

_MAX_STEPS: Final = 32
# By step, the states it may follow and the one it leads to. `sending` is the note before the append: until it is known
# what became of it the letter stays open.
_RULES: Final[Mapping[Action, tuple[frozenset[State], State | None]]] = MappingProxyType(
    {
        "sending": (frozenset({"open", "parked"}), None),
        "redriven": (frozenset({"open", "parked"}), "redriven"),
        "unsent": (frozenset({"open", "parked"}), None),
        "twin": (frozenset({"open", "parked"}), "redriven"),
        "parked": (frozenset({"open", "parked"}), "parked"),
        "purged": (frozenset({"open", "parked", "redriven"}), "purged"),
    }
)


class IllegalStepError(ValueError):
    """A step that can't follow the state the letter is in."""


class Step(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One thing done to a letter: when, by whom, in which run of a command, and why."""

    at: str
    action: Action
    by: str
    run: str
    why: str = ""
    extend_until: str = ""


class LetterState(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The state of one letter.

    *origin*, *group*, *count* (redrives before this death) and *content* say which death of which message it is.

    Older versions wrote no *content*: empty, it is that of any letter.
    """

    state: State
    origin: str
    group: str
    count: int
    content: str = ""
    steps: tuple[Step, ...]

    @property
    def sending(self) -> str:
        """The run that was about to send it back and has not said what became of that; else empty."""
        return self.steps[-1].run if self.steps and self.steps[-1].action == "sending" else ""

    def record(self, namespace: str, place: str) -> NewRecord:
        """The record that says so, of the letter at *place*."""
        return NewRecord(
            own_topic(namespace, "_deadletters"), place.encode(), canonical.encode(msgspec.to_builtins(self))
        )


_decode = msgspec.json.Decoder(LetterState).decode


def told_of(letter: DeadLetter, known: LetterState | None) -> LetterState | None:
    """*known*, which is recorded of the place of *letter*, if it tells of this letter.

    It does not where the topic was deleted and made anew: then it tells of the one that lay there before.
    """
    if known is None or (known.origin, known.group, known.count) != (letter.origin, letter.group, letter.redrive_count):
        return None
    return known if known.content in ("", letter.content) else None


def state_of(letter: DeadLetter, known: LetterState | None) -> State:
    """The state of *letter*, of whose place *known* is recorded.

    One that died again after its last redrive is parked by itself, and so is one that an operator had set aside before
    it ran.
    """
    told = told_of(letter, known)
    if told is not None and told.state != "open":
        return told.state
    return "parked" if letter.redrive_count >= MAX_REDRIVES or letter.was_set_aside else "open"


def is_free(letter: DeadLetter, known: LetterState | None, run: str) -> bool:
    """Whether *run* may send *letter* back: nobody has sent it or purged it, and no other run is sending it.

    Another one may be at work though only one should: seen from another machine a run that writes nothing for a minute
    looks cut off.
    """
    told = told_of(letter, known)
    return told is None or (told.state in ("open", "parked") and told.sending in ("", run))


def follow(letter: DeadLetter, known: LetterState | None, step: Step) -> LetterState:
    """The state of *letter* after *step*; raises IllegalStepError."""
    told = told_of(letter, known)
    before: State = told.state if told is not None else "open"
    allowed, after = _RULES[step.action]
    if before not in allowed:
        raise IllegalStepError(f"a letter that is {before} can't be {step.action}: {letter.place}")
    steps = told.steps if told is not None else ()
    now = LetterState(
        state=before,
        origin=letter.origin,
        group=letter.group,
        count=letter.redrive_count,
        content=letter.content,
        steps=steps,
    )
    return _added(now, after or before, step)


def resolve(known: LetterState, step: Step, *, arrived: bool) -> LetterState:
    """The state of a letter that was cut off while it was sent, now that it is known whether it *arrived*."""
    return _added(known, "redriven" if arrived else known.state, step)


def _added(known: LetterState, state: State, step: Step) -> LetterState:
    return msgspec.structs.replace(known, state=state, steps=(*known.steps, step)[-_MAX_STEPS:])


def read_state(record: Record) -> tuple[str, LetterState | None] | None:
    """Place and state that *record* tells; None for what is no such record.

    The state is None where it is taken back.
    """
    try:
        place = (record.key or b"").decode()
        return place, _decode(record.value) if record.value else None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


class States:
    """Recorded states by place, and where reading them goes on."""

    def __init__(self, transport: Transport, namespace: str) -> None:
        self.known: dict[str, LetterState] = {}
        self.wrote_ms: dict[str, int] = {}
        """By run, when it last recorded something, by the log's clock."""
        self._transport = transport
        self._topic = own_topic(namespace, "_deadletters")
        self._offsets: dict[int, int] = {}

    async def read_on(self) -> None:
        """Take in what was recorded since the last call; nothing where there is no topic for it yet."""
        if self._topic not in await self._transport.admin.topics():
            return
        async for record in scan(self._transport, self._topic, self._offsets):
            self._offsets[record.partition] = record.offset + 1
            match read_state(record):
                case (place, None):
                    self.known.pop(place, None)
                case (place, LetterState() as state):
                    self.known[place] = state
                    if state.steps:
                        self.wrote_ms[state.steps[-1].run] = record.timestamp_ms


async def load_states(transport: Transport, namespace: str) -> dict[str, LetterState]:
    """Every recorded state; none where there is no topic for them yet."""
    states = States(transport, namespace)
    await states.read_on()
    return states.known
