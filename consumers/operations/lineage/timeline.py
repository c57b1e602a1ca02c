"""The timeline of one conversation: its messages in the order of time, their outcomes and their causes. Pure.

Owns the events, their marks, and both drawings of the tree of causes: indented lines and a Mermaid flowchart. Texts of
messages are untrusted: a diagram uses numbers as ids, and labels contain only letters, digits, blanks and `._-`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Final

import msgspec

from bus.payloads.payload_types import RiskClass
from bus.protocol.sealing import Message
from bus.protocol.signatures import Verifier
from bus.protocol.timestamps import parse_ms
from bus.topics.names import read_topic
from consumers.deadletters.letters import read_dead_letter
from consumers.operations.lineage.ancestry import judge_copy
from consumers.operations.lineage.log_search import ORIGINALS, StoredCopy

__all__ = ["Timeline", "TimelineEvent", "mermaid_of", "timeline_of", "tree_lines"]

_UNSAFE: Final = re.compile(r"[^A-Za-z0-9 ._-]")
_MAX_LABEL: Final = 80
_MAX_DEAD: Final = 200
_BROKEN: Final = ("dead", "wrong")


class TimelineEvent(msgspec.Struct, frozen=True, kw_only=True, rename={"place": "location"}):
    """One message. *number* counts from 1 in the order of time; *cause* is the number of its cause, 0: not here."""

    number: int
    message_id: str
    causation_id: str
    cause: int
    timestamp: str
    message_type: str
    sender: str
    recipient: str
    """The id, or `role:` and the role; empty: everybody."""
    hops: int
    place: str
    marks: tuple[str, ...]
    """The outcomes: `dead in GROUP: REASON`, `retried in GROUP (DELAY)`, `redriven to GROUP`, `wrong: REASON`."""


class Timeline(msgspec.Struct, frozen=True):
    """The events of one conversation, in the order of their sealed times."""

    events: tuple[TimelineEvent, ...]
    left_out: int = 0
    """Messages that are not among the events, and were not judged."""


def timeline_of(
    copies: Sequence[StoredCopy],
    *,
    namespace: str,
    risk_of: Callable[[str], RiskClass],
    verifier: Verifier | None = None,
    max_messages: int | None = None,
) -> Timeline:
    """Return the timeline of one conversation from its records in the log.

    Of more than *max_messages* it has the first, the newest, and of the others up to 200 that died. Each keeps its
    number while more come.
    """
    by_id: dict[str, list[StoredCopy]] = {}
    for copy in copies:
        if copy.message is not None:
            by_id.setdefault(copy.message_id, []).append(copy)
    ordered = sorted(by_id.values(), key=_moment)
    numbered = [*enumerate(ordered, 1)]
    numbers = {found[0].message_id: number for number, found in numbered}
    kept = numbered
    if max_messages is not None and len(ordered) > max_messages:
        newest = 1 + len(ordered) - max_messages
        dead = [each for each in numbered[1:newest] if any(copy.kind == "dlq" for copy in each[1])]
        kept = [numbered[0], *dead[-_MAX_DEAD:], *numbered[newest:]]
    return Timeline(
        tuple(_event(number, found, numbers, _marks(found, namespace, risk_of, verifier)) for number, found in kept),
        len(ordered) - len(kept),
    )


def tree_lines(timeline: Timeline) -> Iterator[str]:
    """Yield one line for each event, indented below its cause."""
    for event, depth in _walk(timeline):
        marks = f"  [{', '.join(event.marks)}]" if event.marks else ""
        missing = f"  (cause {event.causation_id} is not here)" if event.causation_id and not event.cause else ""
        yield f"{'  ' * depth}{event.number} {event.message_type}  {_route(event)}{marks}{missing}"


def mermaid_of(timeline: Timeline) -> Iterator[str]:
    """Yield the lines of a Mermaid flowchart of the causes."""
    yield "flowchart TD"
    for event in timeline.events:
        label = _label(" ".join((str(event.number), event.message_type, "from", event.sender, *event.marks)))
        yield f'  n{event.number}["{label}"]'
    for event in timeline.events:
        if event.cause:
            yield f"  n{event.cause} --> n{event.number}"
    broken = [f"n{event.number}" for event in timeline.events if any(mark.startswith(_BROKEN) for mark in event.marks)]
    if broken:
        yield "  classDef broken stroke-width:3px,stroke-dasharray:5"
        yield f"  class {','.join(broken)} broken"


def _walk(timeline: Timeline) -> Iterator[tuple[TimelineEvent, int]]:
    """Yield every event after its cause, with its depth. An event in a circle of causes counts as a first message."""
    below: dict[int, list[TimelineEvent]] = {}
    for event in timeline.events:
        below.setdefault(event.cause, []).append(event)
    seen: set[int] = set()
    for first in (*below.get(0, ()), *timeline.events):
        waiting = [(first, 0)]
        while waiting:
            event, depth = waiting.pop()
            if event.number in seen:
                continue
            seen.add(event.number)
            yield event, depth
            waiting += [(child, depth + 1) for child in reversed(below.get(event.number, ()))]


def _event(number: int, found: Sequence[StoredCopy], numbers: dict[str, int], marks: tuple[str, ...]) -> TimelineEvent:
    copy = _first(found)
    message = copy.message
    assert message is not None  # noqa: S101 - others were left out
    metadata = message.metadata
    cause = metadata.causation_id or ""
    return TimelineEvent(
        number=number,
        message_id=metadata.message_id,
        causation_id=cause,
        cause=numbers.get(cause, 0),
        timestamp=metadata.timestamp,
        message_type=metadata.message_type,
        sender=metadata.sender.id or "",
        recipient=_addressee(message),
        hops=metadata.hops,
        place=copy.place,
        marks=marks,
    )


def _marks(
    found: Sequence[StoredCopy], namespace: str, risk_of: Callable[[str], RiskClass], verifier: Verifier | None
) -> tuple[str, ...]:
    first, marks = _first(found), list[str]()
    fault = judge_copy(first, namespace, risk_of, verifier)
    if fault is not None:
        marks.append(f"wrong: {fault.reason}")
    if first.kind not in ORIGINALS:
        marks.append("its own record is not here")
    for copy in found:
        name = read_topic(copy.record.topic)
        group = name.group if name is not None else ""
        if copy.kind == "retry":
            marks.append(f"retried in {group} ({name.delay if name is not None else ''})")
        elif copy.kind == "redrive":
            marks.append(f"redriven to {group}")
        elif copy.kind == "dlq":
            letter = read_dead_letter(copy.record)
            marks.append(f"dead in {letter.group}: {letter.reason}")
        elif copy is not first:
            same = copy.record.value == first.record.value
            marks.append("appended twice" if same else f"another message with this id at {copy.place}")
    return tuple(dict.fromkeys(marks))


def _first(found: Sequence[StoredCopy]) -> StoredCopy:
    return min(found, key=lambda copy: copy.kind not in ORIGINALS)


def _moment(found: Sequence[StoredCopy]) -> tuple[int, int, str]:
    copy = _first(found)
    sealed_ms = parse_ms(copy.message.metadata.timestamp) if copy.message is not None else None
    return sealed_ms or 0, copy.record.timestamp_ms, copy.place


def _addressee(message: Message) -> str:
    recipient = message.metadata.recipient
    if recipient is None:
        return ""
    return recipient.id if recipient.id is not None else f"role:{recipient.role}"


def _route(event: TimelineEvent) -> str:
    return f"{event.sender} -> {event.recipient}" if event.recipient else event.sender


def _label(text: str) -> str:
    return _UNSAFE.sub("_", text)[:_MAX_LABEL]
