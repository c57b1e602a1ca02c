"""LetterState: what became of a dead letter (open, redriven, parked, dismissed), with every step. Pure but for reading.

Owns the records of the compacted topic `<ns>._deadletters` (bus/protocol/PROTOCOL.md, section 6): their key, their
form, and which step may follow which. Writing them is in `consumers.deadletters.journal`, deciding about a letter in
`consumers.deadletters.redrive_rules`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final, Literal

import msgspec

from bus.protocol import canonical
from bus.topics.names import own_topic
from bus.transports.base import NewRecord, Record, Transport
from bus.transports.read_all import scan_topic
from consumers.deadletters.letters import LetterFacts

__all__ = [
    "MAX_REDRIVES",
    "LetterAction",
    "IllegalStepError",
    "LetterState",
    "LetterStatus",
    "Step",
    "follow_states",
    "is_free",
    "load_states",
    "read_state",
    "resolve",
    "state_of",
    "known_state_of",
]

LetterStatus = Literal["open", "redriven", "parked", "dismissed"]
LetterAction = Literal["sending", "redriven", "unsent", "twin", "parked", "dismissed"]

MAX_REDRIVES: Final = 3
"""Maximum redrives of a message; its next dead letter is parked."""

_MAX_STEPS: Final = 32
# By step, the states it may follow and the one it leads to. `sending` is noted before the append: until its result is
# known the letter stays open.
_RULES: Final[Mapping[LetterAction, tuple[frozenset[LetterStatus], LetterStatus | None]]] = MappingProxyType(
    {
        "sending": (frozenset({"open", "parked"}), None),
        "redriven": (frozenset({"open", "parked"}), "redriven"),
        "unsent": (frozenset({"open", "parked"}), None),
        "twin": (frozenset({"open", "parked"}), "redriven"),
        "parked": (frozenset({"open", "parked"}), "parked"),
        "dismissed": (frozenset({"open", "parked", "redriven"}), "dismissed"),
    }
)


class IllegalStepError(ValueError):
    """A step that cannot follow the state of the letter."""


class Step(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One action on a dead letter: its time, its operator, the run of the command, and the reason."""

    at: str
    action: LetterAction
    by: str
    run: str
    why: str = ""
    extend_until: str = ""


class LetterState(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The state of one letter.

    *origin*, *group*, *count* (redrives before this death) and *content* identify the death and its message.

    Older versions wrote no *content*: an empty one matches any letter.
    """

    state: LetterStatus
    origin: str
    group: str
    count: int
    content: str = ""
    steps: tuple[Step, ...]

    @property
    def sending(self) -> str:
        """The run that was about to send it back and has not noted the result; else empty."""
        return self.steps[-1].run if self.steps and self.steps[-1].action == "sending" else ""

    def record(self, namespace: str, location: str) -> NewRecord:
        """Return the record of this state, for the letter at *location*."""
        return NewRecord(
            own_topic(namespace, "_deadletters"), location.encode(), canonical.encode(msgspec.to_builtins(self))
        )


_decode = msgspec.json.Decoder(LetterState).decode


def known_state_of(letter: LetterFacts, known: LetterState | None) -> LetterState | None:
    """Return *known*, recorded for the location of *letter*, if it is about this letter.

    In a recreated topic it may be about an earlier letter at the same location.
    """
    if known is None or (known.origin, known.group, known.count) != (letter.origin, letter.group, letter.redrive_count):
        return None
    return known if known.content in ("", letter.content) else None


def state_of(letter: LetterFacts, known: LetterState | None) -> LetterStatus:
    """Return the state of *letter*; *known* is the state recorded for its location.

    A letter is parked if its message died again after MAX_REDRIVES redrives. So is one whose message an operator
    parked before it ran.
    """
    known_state = known_state_of(letter, known)
    if known_state is not None and known_state.state != "open":
        return known_state.state
    return "parked" if letter.redrive_count >= MAX_REDRIVES or letter.was_set_aside else "open"


def is_free(letter: LetterFacts, known: LetterState | None, run: str) -> bool:
    """Return whether *run* may send *letter* back: it is not sent or dismissed, and no other run is sending it.

    Another run may work although only one should: to another machine, a run that writes nothing for a minute looks cut
    off.
    """
    known_state = known_state_of(letter, known)
    return known_state is None or (known_state.state in ("open", "parked") and known_state.sending in ("", run))


def follow_states(letter: LetterFacts, known: LetterState | None, step: Step) -> LetterState:
    """Return the state of *letter* after *step*. Raises IllegalStepError."""
    known_state = known_state_of(letter, known)
    before: LetterStatus = known_state.state if known_state is not None else "open"
    allowed, after = _RULES[step.action]
    if before not in allowed:
        raise IllegalStepError(f"a dead letter that is {before} can't be {step.action}: {letter.place}")
    steps = known_state.steps if known_state is not None else ()
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
    """Return the state of a letter after an interrupted redrive, given whether its record *arrived*."""
    return _added(known, "redriven" if arrived else known.state, step)


def _added(known: LetterState, state: LetterStatus, step: Step) -> LetterState:
    return msgspec.structs.replace(known, state=state, steps=(*known.steps, step)[-_MAX_STEPS:])


def read_state(record: Record) -> tuple[str, LetterState | None] | None:
    """Return the place and state in *record*; None for any other record.

    The state is None where it is withdrawn.
    """
    try:
        location = (record.key or b"").decode()
        return location, _decode(record.value) if record.value else None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


async def load_states(
    transport: Transport,
    namespace: str,
    wanted: Callable[[str, LetterState], bool] = lambda _, __: True,
) -> dict[str, LetterState]:
    """Return the recorded states that are *wanted*, by location; empty if the topic does not exist yet.

    Without *wanted* all of them: a namespace may have a million (`RecordedStates` holds those in little room).
    """
    topic = own_topic(namespace, "_deadletters")
    states: dict[str, LetterState] = {}
    if topic not in await transport.admin.topics():
        return states
    async for record in scan_topic(transport, topic):
        match read_state(record):
            case (location, LetterState() as state) if wanted(location, state):
                states[location] = state
            case (location, _):
                states.pop(location, None)
    return states
