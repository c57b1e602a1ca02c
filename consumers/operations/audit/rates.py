"""Rates: the counts behind the ten protocol rates of seed 001 (15.3, A12), from the rows of the audit. Pure.

A rate is a recording rule over these counts (`deploy/prometheus/rules.yaml`). Counts that need earlier ids keep only
the newest ones, so a repetition after very many other messages is not recognised.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec

from consumers.operations.audit.rows import AuditContent, AuditRow
from consumers.operations.lineage.log_search import ORIGINALS

__all__ = ["EVENTS", "ProtocolCounter"]

EVENTS: Final[Mapping[str, str]] = {
    "received": "messages",
    "asked": "task and handoff requests with a recipient",
    "accepted": "acceptances of tasks and handoffs",
    "rejected": "rejections of tasks and handoffs",
    "schema_failure": "dead letters whose data do not fit their type",
    "policy_denial": "dead letters that policy, trust or an approval refused",
    "unsupported_version": "dead letters of a version without a reader",
    "duplicate": "messages with an id that was there before",
    "orphan": "messages whose cause is not in the log",
    "task_ended": "tasks that came to an end",
    "reviewed": "reviews of a subject that was reviewed before",
    "disagreed": "reviews with another verdict than the one before",
    "claimed": "claims, decisions, results and reviews",
    "without_evidence": "those of them that name no evidence",
}
_MAX_IDS: Final = 100_000
_LATE_MS: Final = 60_000
_BY_TYPE: Final = {
    **dict.fromkeys(("task.request", "handoff.request", "task.handoff"), "asked"),
    **dict.fromkeys(("task.accepted", "handoff.accepted"), "accepted"),
    **dict.fromkeys(("task.rejected", "handoff.rejected"), "rejected"),
    **dict.fromkeys(("task.result", "task.failed", "task.completed", "task.cancelled"), "task_ended"),
}
_BY_REASON: Final = {
    **dict.fromkeys(("schema_violation", "semantic_violation", "critical_field"), "schema_failure"),
    **dict.fromkeys(("unauthorized", "untrusted_instruction"), "policy_denial"),
    **dict.fromkeys(("approval_invalid", "approval_rejected", "approval_timeout"), "policy_denial"),
    "unsupported_version": "unsupported_version",
}
_CLAIMS: Final = ("claim.", "decision.", "review.", "task.result")


class ProtocolCounter:
    """Counts the events of rows, in the order in which they are written."""

    def __init__(self) -> None:
        self._ids: OrderedDict[str, None] = OrderedDict()
        self._verdicts: OrderedDict[str, str] = OrderedDict()
        self._missing: OrderedDict[str, int] = OrderedDict()
        """Causes that were named and not seen, with when: partitions are read in turn, so a cause may come later."""
        self._is_whole = True
        """Whether every id seen is still known; otherwise a missing cause proves nothing."""

    def events_of(self, row: AuditRow, content: AuditContent | None) -> Iterator[str]:
        """Yield the names of what *row* counts as."""
        if row.kind == "dlq" and row.reason in _BY_REASON:
            yield _BY_REASON[row.reason]
        if row.kind not in ORIGINALS or content is None or not content.message_id:
            return
        yield "received"
        yield from self._of_ids(row, content)
        event = _BY_TYPE.get(row.message_type)
        if event is not None and (event != "asked" or content.recipient):
            yield event
        if row.message_type.startswith(_CLAIMS) and not row.message_type.endswith(".request"):
            yield from self._of_claim(row.message_type, _payload_of(content))

    def _of_ids(self, row: AuditRow, content: AuditContent) -> Iterator[str]:
        if content.message_id in self._ids:
            yield "duplicate"
        if content.causation_id and self._is_whole and content.causation_id not in self._ids:
            self._missing.setdefault(content.causation_id, row.appended_ms)
        self._missing.pop(content.message_id, None)
        self._ids[content.message_id] = None
        self._ids.move_to_end(content.message_id)
        if len(self._ids) > _MAX_IDS:
            self._ids.popitem(last=False)
            self._is_whole = False
        while self._missing and next(iter(self._missing.values())) + _LATE_MS < row.appended_ms:
            self._missing.popitem(last=False)
            yield "orphan"

    def _of_claim(self, name: str, payload: Mapping[str, Any]) -> Iterator[str]:
        if name == "review.result":
            yield from self._of_review(payload)
        yield "claimed"
        if not payload.get("evidence_refs"):
            yield "without_evidence"

    def _of_review(self, payload: Mapping[str, Any]) -> Iterator[str]:
        subject, verdict = str(payload.get("subject_ref", ""))[:1_000], str(payload.get("verdict", ""))
        before = self._verdicts.get(subject)
        if before is not None:
            yield "reviewed"
            if before != verdict:
                yield "disagreed"
        self._verdicts[subject] = verdict
        if len(self._verdicts) > _MAX_IDS:
            self._verdicts.popitem(last=False)


def _payload_of(content: AuditContent) -> Mapping[str, Any]:
    try:
        found = msgspec.json.decode(content.facts).get("payload")
    except (msgspec.DecodeError, AttributeError):
        return {}
    return found if isinstance(found, dict) else {}
