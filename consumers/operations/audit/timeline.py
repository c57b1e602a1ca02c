"""The timeline of a conversation from the audit, for messages deleted from the log. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from consumers.operations.audit.queries import facts_of
from consumers.operations.audit.store import AuditRecord
from consumers.operations.lineage.log_search import ORIGINALS
from consumers.operations.lineage.timeline import Timeline, TimelineEvent

__all__ = ["with_audit"]

_FROM = "from the audit"


def with_audit(timeline: Timeline, rows: Sequence[AuditRecord]) -> Timeline:
    """Return *timeline*, which comes from the log, with the messages that only *rows* of the audit have.

    These are marked. Erased rows are omitted, because even their conversation is erased.
    """
    known = {event.message_id for event in timeline.events}
    found: dict[str, list[AuditRecord]] = {}
    for row in rows:
        if row.content is not None and row.content.message_id and row.content.message_id not in known:
            found.setdefault(row.content.message_id, []).append(row)
    if not found:
        return timeline
    events = sorted([*timeline.events, *map(_event, found.values())], key=lambda event: event.timestamp)
    numbers = {event.message_id: number for number, event in enumerate(events, 1)}
    return Timeline(
        tuple(
            msgspec.structs.replace(event, number=numbers[event.message_id], cause=numbers.get(event.causation_id, 0))
            for event in events
        )
    )


def _event(copies: Sequence[AuditRecord]) -> TimelineEvent:
    first = min(copies, key=lambda found: found.row.kind not in ORIGINALS)
    content = first.content
    assert content is not None  # noqa: S101 - others were left out
    row = first.row
    return TimelineEvent(
        number=0,
        message_id=content.message_id,
        causation_id=content.causation_id,
        cause=0,
        timestamp=content.sealed_at,
        message_type=row.message_type,
        sender=content.sender,
        recipient=content.recipient,
        hops=0,
        place=f"{row.topic}/{row.partition}/{row.offset}",
        marks=(_FROM, *dict.fromkeys(mark for found in copies if (mark := _mark(found)))),
    )


def _mark(found: AuditRecord) -> str:
    row, dead = found.row, facts_of(found).get("dead")
    match row.kind:
        case "dlq":
            return f"dead in {dead.get('group', '')}: {row.reason}" if isinstance(dead, dict) else f"dead: {row.reason}"
        case "retry":
            return "retried"
        case "redrive":
            return "redriven"
    return f"wrong: {row.reason}" if row.verdict == "refused" else ""
