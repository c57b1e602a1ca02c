"""Queries of the audit: the eight questions of seed 001 11.3, and who, why, authority, open and costs. Pure.

Each is a choice of rows of one conversation, and of what of their facts answers the question.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

import msgspec

from bus.payloads.payload_types import Registry
from bus.protocol.timestamps import format_ms
from consumers.operations.audit.rows import LOST
from consumers.operations.audit.store import AuditRecord
from consumers.operations.lineage.log_search import ORIGINALS

__all__ = ["QUERIES", "Question", "answer_question", "described", "facts_of", "final_states"]

_POLICY: Final = frozenset(
    {"unauthorized", "untrusted_instruction", "approval_invalid", "approval_rejected", "approval_timeout"}
)
_ENDS: Final = ("result", "output", "completed", "rejected", "failed", "refused", "reported")


class Question(msgspec.Struct, frozen=True):
    """One query: its question, the rows that answer it, and the facts that are shown."""

    text: str
    chooses: Callable[[AuditRecord, Mapping[str, Any], Registry], bool]
    shows: tuple[str, ...]


def _is_original(found: AuditRecord) -> bool:
    return found.row.kind in ORIGINALS


def _is_begin(found: AuditRecord, facts: Mapping[str, Any], registry: Registry) -> bool:  # noqa: ARG001 - the table's form
    return _is_original(found) and found.content is not None and not found.content.causation_id


def _family(*families: str) -> Callable[[AuditRecord, Mapping[str, Any], Registry], bool]:
    def chooses(found: AuditRecord, facts: Mapping[str, Any], registry: Registry) -> bool:  # noqa: ARG001 - as above
        return _is_original(found) and found.row.message_type.partition(".")[0] in families

    return chooses


def _is_output(found: AuditRecord, facts: Mapping[str, Any], registry: Registry) -> bool:  # noqa: ARG001 - as above
    return _is_original(found) and found.row.message_type.rpartition(".")[2].endswith(_ENDS)


def _is_decision(found: AuditRecord, facts: Mapping[str, Any], registry: Registry) -> bool:  # noqa: ARG001 - as above
    last = found.row.message_type.rpartition(".")[2]
    stated = facts.get("performative") in ("accept", "reject", "confirm")
    return _is_original(found) and (stated or last in ("accepted", "rejected", "decision", "made", "award"))


def _is_policy(found: AuditRecord, facts: Mapping[str, Any], registry: Registry) -> bool:  # noqa: ARG001 - as above
    return found.row.reason in _POLICY or found.row.verdict == "refused"


def _has_context(found: AuditRecord, facts: Mapping[str, Any], registry: Registry) -> bool:  # noqa: ARG001 - as above
    return _is_original(found) and (bool(facts.get("refs")) or found.row.message_type.startswith("context."))


def _has_effect(found: AuditRecord, facts: Mapping[str, Any], registry: Registry) -> bool:
    kind = registry.get(found.row.message_type)
    effect = "" if kind is None else getattr(kind, "side_effect", "") or ""
    payload = facts.get("payload")
    has_own = isinstance(payload, Mapping) and bool(payload.get("effects") or payload.get("side_effects"))
    return _is_original(found) and (has_own or effect not in ("", "none", "read"))


def _all(found: AuditRecord, facts: Mapping[str, Any], registry: Registry) -> bool:  # noqa: ARG001 - as above
    return _is_original(found)


def _has_spent(found: AuditRecord, facts: Mapping[str, Any], registry: Registry) -> bool:  # noqa: ARG001 - as above
    return _is_original(found) and any(name in facts for name in ("input_tokens", "output_tokens", "tokens", "cost"))


QUERIES: Final[Mapping[str, Question]] = MappingProxyType(
    {
        "inputs": Question("What were its inputs?", _is_begin, ("payload",)),
        "context": Question("Which context was used?", _has_context, ("refs", "payload")),
        "tools": Question("Which tools were called?", _family("tool", "method"), ("tool_calls", "payload")),
        "outputs": Question("What came out?", _is_output, ("payload",)),
        "decisions": Question("What was decided?", _is_decision, ("performative", "payload")),
        "policy": Question("What did policy and gates refuse?", _is_policy, ("dead",)),
        "approvals": Question("Who was asked, and who agreed?", _family("approval"), ("is_signed", "payload")),
        "effects": Question("What was changed outside?", _has_effect, ("idempotency_key", "payload")),
        "who": Question("Who took part, and did they prove it?", _all, ("is_signed", "trust_level")),
        "why": Question("On what does each message rest?", _all, ("rests_on", "intent")),
        "authority": Question("By whose authority?", _all, ("authority", "is_signed")),
        "open": Question("What has no end yet?", _all, ("expires_at",)),
        "costs": Question("What did it cost?", _has_spent, ("input_tokens", "output_tokens", "tokens", "cost")),
    }
)


def facts_of(found: AuditRecord) -> dict[str, Any]:
    """Return the facts of a row; {} where they are erased."""
    if found.content is None:
        return {}
    facts = msgspec.json.decode(found.content.facts)
    return facts if isinstance(facts, dict) else {}


def final_states(rows: Iterable[AuditRecord]) -> dict[str, str]:
    """Return by message id its outcome as far as the log shows it: answered, retried, redriven, dead, else sent."""
    states: dict[str, str] = {}
    for found in rows:
        content = found.content
        if content is None or not content.message_id:
            continue
        if _is_original(found):
            states.setdefault(content.message_id, "sent")
            if content.causation_id in states and states[content.causation_id] != "dead":
                states[content.causation_id] = "answered"
        else:
            how = {"dlq": "dead", "retry": "retried", "redrive": "redriven"}.get(found.row.kind)
            if how is not None:
                states[content.message_id] = how
    return states


def answer_question(name: str, rows: Sequence[AuditRecord], registry: Registry) -> list[dict[str, Any]]:
    """Return what answers the query *name* over the rows of a conversation, in their order."""
    question, states = QUERIES[name], final_states(rows)
    described_row = []
    for found in rows:
        facts = facts_of(found)
        if found.row.kind == LOST or not question.chooses(found, facts, registry):
            continue
        state = states.get(found.content.message_id, "") if found.content is not None else ""
        if name == "open" and state not in ("sent", "retried", "redriven"):
            continue
        shown = {key: facts[key] for key in question.shows if key in facts}
        described_row.append({**described(found), "state": state, **shown})
    return described_row


def described(found: AuditRecord) -> dict[str, Any]:
    """Return a row for people and programs."""
    row, content = found.row, found.content
    location = f"{row.topic}/{row.partition}/{row.offset}"
    described_row: dict[str, Any] = {"at": format_ms(row.appended_ms) if row.appended_ms else "", "place": location}
    described_row |= {"type": row.message_type, "kind": row.kind, "verdict": row.verdict, "reason": row.reason}
    if content is not None:
        described_row |= {"message_id": content.message_id, "from": content.sender, "to": content.recipient}
        described_row |= {
            "conversation": content.conversation_id,
            "cause": content.causation_id,
            "task": content.task_id,
        }
    elif found.is_erased:
        described_row["erased"] = True
    return described_row
