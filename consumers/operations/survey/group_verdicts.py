"""GroupVerdict: the outcome of one message in each group: done, held, skipped, dead, waits, or not subscribed. Pure.

It is computed from the log: committed offsets, and the dead letters, retries, redrives and approvals of the message.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Final, Literal, TypeAlias

import msgspec

from bus.topics.names import group_of_agent, read_topic
from bus.transports.base import GroupInfo
from consumers.deadletters.letter_state import LetterState, state_of
from consumers.deadletters.letters import read_dead_letter
from consumers.operations.lineage.log_search import ORIGINALS, StoredCopy
from consumers.operations.survey.group_state import topics_of
from consumers.processes.approvals.held_runs import HeldRun

__all__ = ["GroupVerdict", "VerdictState", "group_verdicts", "group_sentences"]

VerdictState: TypeAlias = Literal["done", "held", "waits", "dead", "skipped", "not subscribed"]

_DIGITS: Final = 12


class GroupVerdict(msgspec.Struct, frozen=True, kw_only=True, rename={"place": "location"}):
    """The outcome of a message in one group. *behind* is the number of records before a waiting message."""

    group: str
    state: VerdictState
    behind: int = 0
    place: str = ""
    """The location of the record that shows it: the waiting record, or the dead letter."""
    note: str = ""


def group_verdicts(
    message_id: str,
    copies: Sequence[StoredCopy],
    infos: Iterable[GroupInfo],
    *,
    states: Mapping[str, LetterState],
    held: Mapping[str, HeldRun] = MappingProxyType({}),
) -> tuple[GroupVerdict, ...]:
    """Return the outcome in each group of *infos* for the message whose records are among *copies*.

    Groups that read its topic come first. *states* are those of its dead letters, *held* are the approvals for which it
    waits, by group.
    """
    own = [copy for copy in copies if copy.message_id == message_id]
    first = min(
        (copy for copy in own if copy.kind in ORIGINALS), key=lambda copy: copy.record.timestamp_ms, default=None
    )
    found = []
    for info in infos:
        copies_there = [copy for copy in own if _group_of(copy) == info.name]
        verdict = _verdict(info, first, copies_there, states)
        found.append(_unless_held(verdict, held.get(info.name), [*copies_there, *([first] if first else [])]))
    return tuple(sorted(found, key=lambda verdict: (verdict.state == "not subscribed", verdict.group)))


def group_sentences(verdicts: Sequence[GroupVerdict], *, until: str = "") -> Iterator[str]:
    """Yield a sentence for each verdict; dead letters were read up to *until*, or all if it is empty."""
    for verdict in verdicts:
        match verdict.state:
            case "waits":
                where = f"behind {verdict.behind:,} records" if verdict.behind else "next"
                text = f"waits {where} in {verdict.place}"
            case "dead":
                text = f"dead, in {verdict.place}"
            case "held":
                yield f"{verdict.group}: {verdict.note}"
                continue
            case "done" if until:
                text = f"done, unless it died after {until}: dead letters were read until then"
            case state:
                text = state
        yield f"{verdict.group}: {text}" + (f" ({verdict.note})" if verdict.note else "")


def _group_of(copy: StoredCopy) -> str:
    """Return the group named by a dead letter, a retry or a redrive; empty for original records."""
    if copy.kind == "dlq":
        return read_dead_letter(copy.record).group
    name = read_topic(copy.record.topic)
    return "" if name is None or copy.kind in ORIGINALS else name.group


def _verdict(
    info: GroupInfo, first: StoredCopy | None, text: Sequence[StoredCopy], states: Mapping[str, LetterState]
) -> GroupVerdict:
    # What happened last says how it stands.
    last = max(text, key=lambda copy: copy.record.timestamp_ms, default=None)
    if last is not None and last.kind == "dlq":
        letter = read_dead_letter(last.record)
        state = state_of(letter, states.get(last.place))
        note = "" if state == "open" else f"its dead letter is {state}"
        return GroupVerdict(group=info.name, state="dead", place=last.place, note=note)
    if last is not None:
        return _by_offset(info, last, "put off" if last.kind == "retry" else "sent back")
    if first is None or first.record.topic not in topics_of(info):
        return GroupVerdict(group=info.name, state="not subscribed")
    verdict = _by_offset(info, first, "")
    recipient = None if first.message is None else first.message.metadata.recipient
    if verdict.state != "done" or recipient is None or first.kind == "mail":
        return verdict
    if recipient.id is not None and info.name != group_of_agent(recipient.id):
        return GroupVerdict(group=info.name, state="skipped", note=f"it is for {recipient.id}")
    if recipient.id is None and recipient.role:
        return msgspec.structs.replace(verdict, note=f"or skipped: it is for the role {recipient.role}")
    return verdict


def _unless_held(verdict: GroupVerdict, run: HeldRun | None, copies: Sequence[StoredCopy]) -> GroupVerdict:
    """Return *verdict*, or that the message is held: its offset is committed all the same, since the inbox has it."""
    if verdict.state != "done" or run is None:
        return verdict
    if run.asked_ms < max((copy.record.timestamp_ms for copy in copies), default=0):
        # It was sent back since.
        return verdict
    name = run.digits[:_DIGITS]
    if run.is_given:
        note = f"its approval {name} was given, and no worker has run it yet"
    elif run.approvers or run.refusers:
        sent = "; ".join(
            f"{', '.join(names)} sent {what}"
            for names, what in ((run.approvers, "approve"), (run.refusers, "another decision"))
            if names
        )
        note = f"held for approval {name}: {sent}, and no worker has run it yet"
    else:
        note = f"held for approval {name}" + (", the time for which is over" if run.is_late else "")
    return GroupVerdict(group=verdict.group, state="held", note=note)


def _by_offset(info: GroupInfo, copy: StoredCopy, note: str) -> GroupVerdict:
    record = copy.record
    committed = info.committed.get((record.topic, record.partition), 0)
    if committed > record.offset:
        return GroupVerdict(group=info.name, state="done")
    behind = record.offset - committed
    return GroupVerdict(group=info.name, state="waits", behind=behind, place=copy.place, note=note)
