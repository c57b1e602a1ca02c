"""Explanation: what became of one message, in a paragraph. Pure.

Owns the words for every reason of the contract: what would have passed, and the command that cures.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final

import msgspec

from bus.protocol.reasons import REASON_TABLE
from bus.protocol.timestamps import format_ms
from bus.topics.names import read_topic
from consumers.deadletters.causes import cause_of
from consumers.deadletters.diagnosis import Diagnosis
from consumers.deadletters.letter_state import MAX_REDRIVES, LetterState, LetterStatus, known_state_of, state_of
from consumers.deadletters.letters import DeadLetter
from consumers.operations.lineage.log_search import ORIGINALS, StoredCopy
from consumers.operations.survey.group_verdicts import GroupVerdict, group_sentences

__all__ = ["CURES", "Explanation", "explain_message"]

_MAX_NAMED: Final = 5
CURES: Final[Mapping[str, tuple[str, str]]] = MappingProxyType(
    {each.name: (each.expected, each.cure) for reasons in REASON_TABLE.values() for each in reasons}
)
"""By reason, the expected condition and the fix."""
_LED_TO: Final[Mapping[str, LetterStatus]] = MappingProxyType(
    {"redriven": "redriven", "twin": "redriven", "parked": "parked", "dismissed": "dismissed"}
)


class Explanation(msgspec.Struct, frozen=True, kw_only=True, rename={"place": "location", "cure": "fix"}):
    """The explanation of a message's outcome."""

    message_id: str
    state: str
    """sent, answered, retried, held, redriven, parked, dismissed or dead."""
    text: str
    passes: str = ""
    """The condition under which it would have passed."""
    cure: str = ""
    """The fix; empty if its dead letter was redriven or dismissed."""
    place: str = ""
    """The location of the dead letter; empty without one."""
    groups: tuple[GroupVerdict, ...] = ()
    """The outcome in each group."""


def explain_message(
    message_id: str,
    copies: Sequence[StoredCopy],
    letters: Sequence[tuple[DeadLetter, LetterState | None, Diagnosis]],
    *,
    groups: tuple[GroupVerdict, ...] | None = None,
    until: str = "",
) -> Explanation:
    """Explain the outcome of *message_id*.

    *copies* are its records and those of its effects; *letters* are its dead letters; *groups* has the outcome in each
    group, or None if that is unknown. Dead letters were read up to *until*.
    """
    own = [copy for copy in copies if copy.message_id == message_id]
    answers = [copy for copy in copies if copy.causation_id == message_id and copy.kind in ORIGINALS]
    first = min(own, key=lambda copy: (copy.kind not in ORIGINALS, copy.record.timestamp_ms))
    sentences = [_sent(first)]
    retried = [copy for copy in own if copy.kind == "retry"]
    if retried:
        sentences.append(f"It was put off {len(retried)} times, last in {retried[-1].place}.")
    if not letters:
        state = "answered" if answers else "retried" if retried else "sent"
        state = "held" if any(each.state == "held" for each in groups or ()) else state
        sentences += [_answered(copy) for copy in answers[:3]]
        sentences += _of_groups(groups, until)
        return Explanation(message_id=message_id, state=state, text=" ".join(sentences), groups=groups or ())
    letter, known, finding = max(letters, key=lambda each: each[0].failed_ms)
    sentences.append(_died(letter, finding))
    state = state_of(letter, known)
    sentences.append("The dead letter is open." if state == "open" else _left(letter, known, state))
    if state == "redriven":
        sentences += [_answered(copy) for copy in answers[:3]]
    sentences += _of_groups([each for each in groups or () if each.state != "dead"] or None, until)
    passes, cure = CURES.get(letter.reason, ("", ""))
    metadata = None if letter.message is None else letter.message.metadata
    return Explanation(
        message_id=message_id,
        state="dead" if state == "open" else state,
        text=" ".join(sentences),
        passes=finding.expected or passes,
        cure=""
        if state in ("redriven", "dismissed")
        else cure.format(
            # What is parked is sent by force alone.
            place=f"{letter.place} --force" if state == "parked" else letter.place,
            message=message_id,
            type=letter.message_type,
            conversation="" if metadata is None else metadata.conversation_id,
        ),
        place=letter.place,
        groups=groups or (),
    )


def _of_groups(groups: Sequence[GroupVerdict] | None, until: str) -> list[str]:
    if groups is None:
        return []
    reading = [each for each in groups if each.state != "not subscribed"]
    others = [each.group for each in groups if each.state == "not subscribed"]
    account = [f"Group {sentence}." for sentence in group_sentences(reading, until=until)]
    if others:
        more = f" and {len(others) - _MAX_NAMED:,} more" if len(others) > _MAX_NAMED else ""
        account.append(f"Not subscribed: {', '.join(others[:_MAX_NAMED])}{more}.")
    return account or ["No group reads this topic."]


def _sent(copy: StoredCopy) -> str:
    message = copy.message
    about = "It"
    if message is not None:
        metadata = message.metadata
        about = f"{metadata.message_type} {metadata.schema_version} from {metadata.sender.id or 'nobody'}"
    where = "was appended to" if copy.kind in ORIGINALS else "is only left in"
    broken = "" if copy.fault is None else f" Its bytes do not hold: {copy.fault.text}."
    return f"{about} {where} {copy.place} at {format_ms(copy.record.timestamp_ms)}.{broken}"


def _answered(copy: StoredCopy) -> str:
    name = read_topic(copy.record.topic)
    kind = copy.message.message_type if copy.message is not None else name.message_type if name else "something"
    return f"It caused {kind} in {copy.place} at {format_ms(copy.record.timestamp_ms)}."


def _died(letter: DeadLetter, finding: Diagnosis) -> str:
    error, _, frame = letter.error.partition("\n")
    account = f"Group {letter.group} dead-lettered it at {letter.failed_at} after {letter.attempts} attempts: "
    account += f"{letter.reason} (check: {letter.gate})" + (f" at {letter.pointer}" if letter.pointer else "")
    account += f", {error}" if error else ""
    if error.isidentifier():
        # Texts of exceptions may hold payload data, and are left out of dead letters by default.
        account += " (its text is in the worker's log; deadletter.details = true keeps it in dead letters, too)"
    account += f" ({frame.strip()})" if frame.strip().startswith("File") and "\n" not in frame.strip() else ""
    if finding.expected or finding.found:
        account += f"; expected {finding.expected or '-'}, found {finding.found or '-'}"
    account += f"; {finding.nearest}" if finding.nearest else ""
    return f"{account}. {_others(letter)}"


def _left(letter: DeadLetter, known: LetterState | None, state: LetterStatus) -> str:
    """Return the state of *letter*, which is not open any more, and the operator."""
    account = known_state_of(letter, known)
    step = (
        next((each for each in reversed(account.steps) if _LED_TO.get(each.action) == state), None) if account else None
    )
    if step is not None:
        why = f", because: {step.why}" if step.why else ""
        done = {"redriven": "was sent back", "twin": "repeats another that was sent back"}.get(
            step.action, f"was {state}"
        )
        return f"Its dead letter {done} at {step.at} by {step.by}{why}."
    if state == "parked" and letter.redrive_count >= MAX_REDRIVES:
        return f"Its dead letter is parked: it was redriven {letter.redrive_count} times before."
    return (
        "Its dead letter is parked: an operator parked the message before it ran."
        if state == "parked"
        else f"Its dead letter is {state}."
    )


def _others(letter: DeadLetter) -> str:
    name = cause_of(letter).name
    return f"Its cause is {name}: sealbus dlq list --cause {name} shows others with the same cause."
