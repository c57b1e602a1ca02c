"""A conversation in the audit's index: what is known of it, from the rows of its records in any order. Pure.

Partitions are read in turn, so records of one conversation come in any order. Owns the summary of one record, the sum
of two summaries, which does not depend on their order, and the state that follows from it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final, Literal, TypeAlias, get_args

import msgspec

from bus.redaction import cut
from bus.telemetry.terminal import printable
from consumers.operations.audit.rows import AuditContent, AuditRow
from consumers.operations.audit.spending import facts_in, spent_in
from consumers.operations.lineage.log_search import ORIGINALS

__all__ = [
    "CONVERSATION_STATES",
    "ConversationFilter",
    "ConversationPage",
    "ConversationRow",
    "ConversationState",
    "ConversationSummary",
    "added",
    "indexed_name",
    "conversation_row",
    "conversation_state",
    "conversation_summary",
    "search_words",
    "conversation_words",
    "about_of",
]

ConversationState: TypeAlias = Literal["open", "answered", "held", "asked", "failed", "dead"]
CONVERSATION_STATES: Final = get_args(ConversationState)

_VERDICTS: Final = ("holds", "refused", "unstorable")
_MAX_ABOUT: Final = 200
_MAX_SHOWN: Final = 16
_MAX_PARTIES: Final = 64
_MAX_APPROVALS: Final = 64
_MAX_ENDS: Final = 64
_MAX_TYPE: Final = 128
_MAX_NAME: Final = 256
"""Maximum characters of a legal id. A refused record may have a longer one, which no index could hold."""
_MAX_REASON: Final = 64
_MAX_QUORUM: Final = 64
_MAX_TOKENS: Final = 64
_MAX_TOKEN_LENGTH: Final = 40
_MAX_DEPTH: Final = 3
_COPIES: Final = frozenset({"dlq", "retry", "redrive"})
_SUBJECTS: Final = ("subject", "title", "about", "goal", "objective", "task", "question", "summary", "description")
_BODIES: Final = ("instructions", "prompt", "text", "message", "content", "input")
_FAILURES: Final = frozenset({"failed", "rejected", "refused", "cancelled"})
_ANSWERS: Final = ("result", "output", "completed", "answer", "answered")
_BETWEEN: Final = frozenset({"status", "approval", "usage", "wait", "agent", "context"})
"""Families that a run sends on its way, never as its answer."""
_ON_THE_WAY: Final = frozenset({"accepted", "progress", "update", "heartbeat", "partial"})
_STATEMENTS: Final = frozenset({None, "inform", "confirm", "accept"})
_TOKEN: Final = re.compile(r"[^\W_]+")


class ConversationFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Which conversations are asked for: those that match every given field. Any text is legal in each of them."""

    id_prefix: str = ""
    """How the conversation's id begins."""
    ids: tuple[str, ...] | None = None
    """Its id is one of these; None: any."""
    agent: str = ""
    """The id of the opener or of another party."""
    message_type: str = ""
    """The type of the first message."""
    words: str = ""
    """Beginnings of words of subject, type and parties; all must occur. Text without any letter or digit finds
    nothing."""
    state: str = ""
    """One of CONVERSATION_STATES."""
    since_ms: int | None = None
    """The last record was appended then or later, Unix time in milliseconds."""
    until_ms: int | None = None
    """The first record was appended then or earlier, Unix time in milliseconds."""
    without_ticks: bool = False
    """Leave out the times of schedules and waits of which nothing came: there may be one a second."""


class ConversationRow(msgspec.Struct, frozen=True, kw_only=True):
    """One conversation. Texts come from messages: they are untrusted. Times are Unix times in milliseconds."""

    id: str
    first_type: str
    """The type of its first message."""
    about: str
    """The subject or the first words of the first message, redacted, escaped, at most 200 characters; empty where the
    audit does not store them."""
    opener: str
    """The agent that sent the first message."""
    parties: tuple[str, ...]
    """Senders and recipients, at most 16."""
    party_count: int
    """How many there are; 64 means that there may be more."""
    messages: int
    """Messages, without retries, redrives and dead letters of them."""
    first_ms: int
    """When its first record was appended."""
    last_ms: int
    """When its newest record was appended."""
    state: ConversationState
    """`held`: waits for an approval. `asked`: who asked was asked back, and has not answered. `dead`: has a dead letter
    that was neither redriven nor followed by an answer."""
    reason: str
    """The reason of its newest dead letter or refused record; empty: there is none."""
    tokens_in: int
    tokens_out: int
    cost: float
    """As the agents have reported it, whatever the currency."""
    verdict: str
    """The worst of its records: `holds`, `refused` or `unstorable`."""


class ConversationPage(msgspec.Struct, frozen=True, kw_only=True):
    """The newest conversations before a place in their order, and how far the index is."""

    rows: tuple[ConversationRow, ...]
    next: tuple[int, str] | None
    """Where the following page begins, for its `before`; None: this is the last page."""
    indexed_rows: int
    """Rows of the audit that the index knows. Fewer than *recorded_rows*: older records are not looked at yet."""
    recorded_rows: int
    """Rows that the audit has."""

    @property
    def is_whole(self) -> bool:
        """Whether every row of the audit was looked at."""
        return self.indexed_rows >= self.recorded_rows


class _First(msgspec.Struct, frozen=True, order=True, omit_defaults=True):
    """The first message. Compared by its fields in their order: an accepted record comes before a refused one."""

    is_refused: bool
    at_ms: int
    has_cause: bool
    location: str
    message_type: str = ""
    about: str = ""
    opener: str = ""


class _Asked(msgspec.Struct, frozen=True, omit_defaults=True):
    """What is known of one approval, by the id of its request."""

    quorum: int = 0
    """0: the request is not recorded yet."""
    agreed: int = 0
    is_closed: bool = False

    @property
    def is_open(self) -> bool:
        return self.quorum > self.agreed and not self.is_closed


class _End(msgspec.Struct, frozen=True, omit_defaults=True):
    """When the newest answer and the newest failure for one recipient were appended; -1: none was."""

    answered_ms: int = -1
    failed_ms: int = -1


class ConversationSummary(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What records of one conversation say together. Stored as JSON."""

    first: _First | None = None
    first_ms: int | None = None
    last_ms: int = -1
    messages: int = 0
    parties: tuple[str, ...] = ()
    tokens_in: int = 0
    tokens_out: int = 0
    cost: float = 0.0
    verdict: int = 0
    """Its number among the verdicts, the worst has the highest."""
    approvals: dict[str, _Asked] = {}
    ends: dict[str, _End] = {}
    """By recipient; empty: messages to all."""
    dead_ms: int = -1
    redriven_ms: int = -1
    reasons_ms: int = -1
    reason: str = ""
    asked_ms: int = -1
    """When the newest question of a worker was appended; -1: there was none."""
    told_ms: int = -1
    """When the newest answer to one was."""


def conversation_summary(row: AuditRow, content: AuditContent | None) -> ConversationSummary | None:
    """Return what one record says of its conversation; None if it belongs to none."""
    if content is None or row.kind not in ORIGINALS | _COPIES or not 0 < len(content.conversation_id) <= _MAX_NAME:
        return None
    at_ms = row.appended_ms
    verdict = _VERDICTS.index(row.verdict) if row.verdict in _VERDICTS else 0
    troubled = row.kind == "dlq" or verdict
    summary = ConversationSummary(
        first_ms=at_ms,
        last_ms=at_ms,
        verdict=verdict,
        dead_ms=at_ms if row.kind == "dlq" else -1,
        redriven_ms=at_ms if row.kind == "redrive" else -1,
        reasons_ms=at_ms if troubled else -1,
        reason=cut(printable(row.reason), _MAX_REASON) if troubled else "",
    )
    if row.kind not in ORIGINALS:
        return summary
    facts = facts_in(content)
    first = _First(
        bool(verdict),
        at_ms,
        bool(content.causation_id),
        f"{row.topic}/{row.partition}/{row.offset:020}",
        cut(printable(row.message_type), _MAX_TYPE),
        about_of(facts.get("payload")),
        indexed_name(content.sender),
    )
    summary = msgspec.structs.replace(summary, first=first, messages=1)
    if verdict:
        # A refused record is only seen: it decides nothing.
        return summary
    spent = spent_in(facts)
    return msgspec.structs.replace(
        summary,
        parties=tuple(dict.fromkeys(indexed_name(each) for each in (content.sender, content.recipient) if each)),
        tokens_in=spent.tokens_in,
        tokens_out=spent.tokens_out,
        cost=spent.cost,
        approvals=_asked(row, content, facts),
        ends=_ended(row, content, facts),
        asked_ms=at_ms if row.message_type == "task.clarification" else -1,
        told_ms=at_ms if row.message_type == "task.clarified" else -1,
    )


def added(one: ConversationSummary, other: ConversationSummary) -> ConversationSummary:
    """Return what both say together; each record must be in one of them only."""
    firsts = [each.first for each in (one, other) if each.first is not None]
    begun_ms = [each.first_ms for each in (one, other) if each.first_ms is not None]
    newest = max(one, other, key=lambda each: (each.reasons_ms, each.reason))
    return ConversationSummary(
        first=min(firsts, default=None),
        first_ms=min(begun_ms, default=None),
        last_ms=max(one.last_ms, other.last_ms),
        messages=one.messages + other.messages,
        parties=tuple(dict.fromkeys((*one.parties, *other.parties)))[:_MAX_PARTIES],
        tokens_in=one.tokens_in + other.tokens_in,
        tokens_out=one.tokens_out + other.tokens_out,
        cost=one.cost + other.cost,
        verdict=max(one.verdict, other.verdict),
        approvals=_all_asked(one.approvals, other.approvals),
        ends=_all_ended(one.ends, other.ends),
        dead_ms=max(one.dead_ms, other.dead_ms),
        redriven_ms=max(one.redriven_ms, other.redriven_ms),
        reasons_ms=newest.reasons_ms,
        reason=newest.reason,
        asked_ms=max(one.asked_ms, other.asked_ms),
        told_ms=max(one.told_ms, other.told_ms),
    )


def conversation_state(summary: ConversationSummary) -> ConversationState:
    """Return the state of a conversation, as far as its records show it.

    An open approval comes first. Otherwise the newest of these decides: an answer or a failure for the opener or for
    all, a dead letter, a redrive, a question of a worker.
    """
    if any(each.is_open for each in summary.approvals.values()):
        return "held"
    opener = "" if summary.first is None else summary.first.opener
    ends = [summary.ends[name] for name in {opener, ""} if name in summary.ends]
    answered_ms = max([each.answered_ms for each in ends], default=-1)
    failed_ms = max([each.failed_ms for each in ends], default=-1)
    if summary.asked_ms > max(summary.told_ms, answered_ms, failed_ms, summary.dead_ms):
        return "asked"
    begun_again_ms = max(answered_ms, summary.redriven_ms)
    if summary.dead_ms > begun_again_ms:
        return "dead"
    if failed_ms > begun_again_ms:
        return "failed"
    return "open" if answered_ms < 0 else "answered"


def conversation_row(identity: str, summary: ConversationSummary) -> ConversationRow:
    """Return the row of the conversation *identity*."""
    first = summary.first or _First(False, 0, False, "")
    return ConversationRow(
        id=identity,
        first_type=first.message_type,
        about=first.about,
        opener=first.opener,
        parties=summary.parties[:_MAX_SHOWN],
        party_count=len(summary.parties),
        messages=summary.messages,
        first_ms=summary.first_ms or 0,
        last_ms=max(0, summary.last_ms),
        state=conversation_state(summary),
        reason=summary.reason,
        tokens_in=summary.tokens_in,
        tokens_out=summary.tokens_out,
        cost=summary.cost,
        verdict=_VERDICTS[min(summary.verdict, len(_VERDICTS) - 1)],
    )


def indexed_name(identity: str) -> str:
    """Return an id as the index has it: escaped, since a refused record may have any text for one."""
    return cut(printable(identity), _MAX_NAME)


def conversation_words(summary: ConversationSummary) -> str:
    """Return the words by which the conversation is found, separated by blanks."""
    first = summary.first or _First(False, 0, False, "")
    return " ".join(search_words(" ".join((first.about, first.message_type, first.opener, *summary.parties))))


def search_words(text: str) -> tuple[str, ...]:
    """Return the words of *text*: letters and digits only, folded, each once, at most 64 of 40 characters."""
    found = (word.casefold() for word in _TOKEN.findall(text[:16_384]))
    return tuple(dict.fromkeys(word[:_MAX_TOKEN_LENGTH] for word in found))[:_MAX_TOKENS]


def about_of(payload: Any) -> str:
    """Return what a payload is about, escaped and in at most 200 characters; empty where it has no text."""
    text = " ".join(_subject(payload, 0).split())
    return cut(printable(text), _MAX_ABOUT)


def _subject(value: Any, depth: int) -> str:
    """Return the text that says best what *value* is about: a member with a telling name, else the first text."""
    if isinstance(value, str):
        return value if value.strip(" *") else ""
    if isinstance(value, list) and depth < _MAX_DEPTH:
        return next((found for each in value[:_MAX_SHOWN] if (found := _subject(each, depth + 1))), "")
    if not isinstance(value, dict) or depth >= _MAX_DEPTH:
        return ""
    named = (
        value[name] for name in (*_SUBJECTS, *_BODIES) if isinstance(value.get(name), str) and value[name].strip(" *")
    )
    inner = (found for each in list(value.values())[:_MAX_SHOWN] if (found := _subject(each, depth + 1)))
    return next(named, "") or next(inner, "")


def _asked(row: AuditRow, content: AuditContent, facts: Mapping[str, Any]) -> dict[str, _Asked]:
    match row.message_type:
        case "approval.request":
            payload = facts.get("payload")
            quorum = payload.get("quorum") if isinstance(payload, dict) else None
            wanted = quorum if isinstance(quorum, int) and not isinstance(quorum, bool) else 1
            return {indexed_name(content.message_id): _Asked(quorum=max(1, min(wanted, _MAX_QUORUM)))}
        case "approval.decision" if facts.get("performative") == "accept":
            return {indexed_name(content.causation_id): _Asked(agreed=1)}
        case "approval.decision" | "approval.closed":
            return {indexed_name(content.causation_id): _Asked(is_closed=True)}
    return {}


def _all_asked(one: Mapping[str, _Asked], other: Mapping[str, _Asked]) -> dict[str, _Asked]:
    found = dict(one)
    for name, each in other.items():
        known = found.get(name, _Asked())
        found[name] = _Asked(
            max(known.quorum, each.quorum), known.agreed + each.agreed, known.is_closed or each.is_closed
        )
    if len(found) > _MAX_APPROVALS:
        # Those that are over are not needed any more: no later record opens them again.
        found = {name: each for name, each in found.items() if each.is_open or not each.quorum}
    return dict(list(found.items())[-_MAX_APPROVALS:])


def _ended(row: AuditRow, content: AuditContent, facts: Mapping[str, Any]) -> dict[str, _End]:
    family, last = row.message_type.partition(".")[0], row.message_type.rpartition(".")[2]
    performative = facts.get("performative")
    if performative == "error" or (last in _FAILURES and family not in _BETWEEN):
        return {indexed_name(content.recipient): _End(failed_ms=row.appended_ms)}
    if family in _BETWEEN or last in _ON_THE_WAY or performative not in _STATEMENTS:
        return {}
    # What is sent to all is an answer only if its name says so.
    if last.endswith(_ANSWERS) or (content.causation_id and content.recipient):
        return {indexed_name(content.recipient): _End(answered_ms=row.appended_ms)}
    return {}


def _all_ended(one: Mapping[str, _End], other: Mapping[str, _End]) -> dict[str, _End]:
    found = dict(one)
    for name, each in other.items():
        known = found.get(name, _End())
        found[name] = _End(max(known.answered_ms, each.answered_ms), max(known.failed_ms, each.failed_ms))
    return dict(list(found.items())[:_MAX_ENDS])
