"""Outputs: the answers of a handler, its progress, and the report of a death, as sealed records.

Owns whom an answer is for and where it goes; progress goes to a requester that takes it, else to its type's topic. Pure
but for the publisher's clock and ids. `consumers.delivery.settling.durable_append` makes them durable; the requester
verifies them (`producers.requests.reply_reader`).
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from bus.errors import ContractError, Reject, text_of
from bus.payloads.payload_types import Registry, payload_type, untyped
from bus.protocol import sealing
from bus.protocol.envelope import PROGRESS_TYPES, Agent
from bus.protocol.identifiers import uuid7
from bus.protocol.proof_chain import BACKWARDS_TOLERANCE_MS
from bus.protocol.reasons import REASONS, gate_of
from bus.protocol.sealing import Message
from bus.protocol.timestamps import parse_ms
from bus.redaction import cut
from bus.topics.names import read_topic
from bus.transports.base import NewRecord
from bus.vocabulary.error import ErrorReported
from bus.vocabulary.error_codes import lookup
from bus.vocabulary.task import StatusUpdate, TaskStatus
from consumers.deadletters.records import Failure, end_id
from consumers.delivery.handler_errors import AnswerMissingError, breach_of
from consumers.delivery.settling.return_contracts import check_answers
from producers.publisher import Publisher
from producers.sealing.options import Outgoing
from producers.sealing.run_labels import RunLabels, type_name
from producers.sealing.seal_request import SealRequest
from producers.sealing.sealed_record import SealedRecord

__all__ = [
    "Output",
    "outgoing_answer",
    "made_out_to",
    "report_of",
    "requester_of",
    "seal_outputs",
    "seal_progress",
    "status_of",
    "wants_report",
]

_UNPROVEN: Final = frozenset({"size", "parse", "integrity", "audience", "authenticity"})
_OF_PEOPLE: Final = frozenset({"approval_rejected", "approval_timeout"})
_ALL: Final = 100
_MAX_TEXT: Final = 4_000
"""Characters of a progress for people; the rest is cut."""
_MAX_SAID: Final = 240
"""Characters of a Reject's text in a report; a RequestFailed shows about as many."""


class Output(msgspec.Struct, frozen=True):
    """An output that a handler queued; *data* is its payload at that moment."""

    draft: Outgoing
    data: bytes


def seal_outputs(
    publisher: Publisher,
    message: Message,
    queued: Sequence[Output],
    returned: Any,
    registry: Registry | None = None,
    *,
    run: RunLabels | None = None,
) -> Sequence[SealedRecord]:
    """Seal what a handler *queued*, then what it *returned* as answers to *message*.

    With the locally known types as *registry*, answers are checked against the message's return contract. *run* has the
    messages that the run has read. Raises ContractError, PublishRejected.
    """
    answers = () if returned is None else tuple(returned) if isinstance(returned, list | tuple) else (returned,)
    others = [
        publisher.sealer.seal(_as_queued(output), SealRequest(cause=message, data=output.data, run=run))
        for output in queued
    ]
    reply_to = message.routing.reply_to
    requester = requester_of(message) if reply_to is not None else None
    request = SealRequest(cause=message, answers=True, topic=reply_to, run=run)
    sealed = [
        seal_progress(publisher, message, _drafted(answer, None), run=run)
        if reply_to is not None and type_name(_drafted(answer, None)) in PROGRESS_TYPES
        else publisher.sealer.seal(_drafted(answer, requester), request)
        for answer in answers
    ]
    if registry is not None:
        check_answers(message, registry, sealed, others)
    return others + sealed


def _as_queued(output: Output) -> Outgoing:
    """Return the draft of *output* with the payload as it was, where more than its bytes is read from it."""
    kind = payload_type(output.draft.payload)
    if not kind.is_judged_each:
        return output.draft
    return msgspec.structs.replace(output.draft, payload=kind.decode(output.data))


def outgoing_answer(message: Message, answer: Any) -> Outgoing:
    """Return *answer*, a payload or its Outgoing, as a draft for the sender of *message*."""
    return _drafted(answer, requester_of(message) if message.routing.reply_to is not None else None)


def _drafted(answer: Any, requester: Agent | None) -> Outgoing:
    """Return *answer* as a draft; the answer to a request goes to its requester, whatever options it has."""
    if not isinstance(answer, Outgoing):
        return Outgoing(answer, to=requester)
    if requester is None:
        return answer
    for name in ("to", "reply_to", "correlation_id"):
        if getattr(answer, name) is not None:
            raise ContractError(
                f"what answers a request goes to its requester: leave {name} out, or use context.send(...)", name
            )
    return msgspec.structs.replace(answer, to=requester)


def made_out_to(
    publisher: Publisher, message: Message, outputs: Sequence[NewRecord], *, expires_ms: int, first: str = ""
) -> Sequence[NewRecord]:
    """Readdress the stored *outputs* to *message* where they answer an earlier request of the same key.

    *expires_ms* is when the lifetime of *message* ends, extensions included. A message that comes again is answered
    with the same bytes, also by another worker of the same settings. *first* is the id of the message that was handled:
    what a process answered to others then stays as it is. Raises ContractError, SigningError.
    """
    if message.routing.reply_to is None or first == message.message_id:
        return outputs
    return [_made_out_to(publisher, message, record, expires_ms, first) for record in outputs]


def wants_report(message: Message | None, reason: str) -> bool:
    """Return whether the requester of *message*, or the watchers of its task, get an error report.

    An error report causes no further report. A failure of integrity, audience or authenticity causes none either: the
    named sender may not have sent the message, and a forged record must not end the request of another agent.
    """
    if (
        message is None
        or (reason in REASONS and gate_of(reason) in _UNPROVEN)
        or message.message_type == "error.reported"
    ):
        return False
    return message.routing.reply_to is not None or message.metadata.task_id is not None


def report_of(
    publisher: Publisher, message: Message, failure: Failure, agent_id: str, *, group: str, redrive_count: int = 0
) -> SealedRecord:
    """Seal the `error.reported` for the requester of *message*, or for the watchers of its task.

    Without a requester it goes to the topic of the type, without recipient. Its id is that of the end of *message* in
    *group*, so that a repeat is recognised. Raises PublishRejected.
    """
    now_ms, origin, metadata = publisher.clock.now_ms(), publisher.sealer.origin, message.metadata
    code = lookup(failure.reason)
    report = ErrorReported(
        error_code=failure.reason,
        error_message=_reason_text(failure) or f"{message.message_type} {message.message_id} was not handled",
        source_agent=agent_id,
        timestamp=datetime.fromtimestamp(now_ms / 1000, UTC),
        source_task_id=metadata.task_id,
        error_class=code.error_class,
        retryable=code.is_retryable,
    )
    requester = requester_of(message) if message.routing.reply_to is not None else None
    ahead_s = max(0, (parse_ms(metadata.timestamp) or 0) - now_ms) / 1000
    # The report lives as long as any message, also by a requester's clock that is ahead. It may go one hop further than
    # its cause, which may have died of the hop limit.
    ttl_s = min(origin.max_ttl_s, origin.ttl_s + ahead_s)
    entropy = bytes.fromhex(end_id(message.seal, group, redrive_count, "report"))
    identity = uuid7(parse_ms(metadata.timestamp) or 0, entropy[:10])
    draft = Outgoing(report, to=requester, max_hops=origin.max_hops, ttl_s=ttl_s, message_id=identity)
    is_provable = message.verification.signature is not None or not publisher.sealer.proves
    if is_provable and _bears_another(message, now_ms, origin.max_hops):
        return publisher.sealer.seal(draft, SealRequest(cause=message, answers=True, topic=message.routing.reply_to))
    draft = msgspec.structs.replace(draft, conversation_id=metadata.conversation_id, correlation_id=metadata.message_id)
    return publisher.sealer.seal(draft, SealRequest(topic=message.routing.reply_to))


def _reason_text(failure: Failure) -> str:
    """Return the handler's text for the requester: the text of its Reject, without secrets; else an empty string.

    If the bus refused the handler's outputs, the text has reason and pointer.

    The text of any other exception is for the handler's own developers, and may quote their data.
    """
    error = failure.exception
    if error is not None and failure.reason == "rejected" and (breach := breach_of(error)) is not None:
        # Its place and kind, and nothing of what the handler wanted to say.
        stated = (
            breach.text if isinstance(breach, AnswerMissingError) else f"{breach.reason} at {breach.pointer or '/'}"
        )
        return cut(f"what its handler sends is refused: {stated}", _MAX_SAID)
    if failure.reason in _OF_PEOPLE:
        # Who decided wrote it to the requester.
        text = failure.text[: 4 * _MAX_SAID]
        return cut(text if text.isprintable() else repr(text)[1:-1], _MAX_SAID)
    if not isinstance(error, Reject):
        return ""
    text = text_of(error)[: 4 * _MAX_SAID]
    return cut(text if text.isprintable() else repr(text)[1:-1], _MAX_SAID)


def _bears_another(message: Message, now_ms: int, hop_bound: int) -> bool:
    """Return whether receivers accept a message with *message* as its cause; else the report has no cause.

    A report without a cause ends no wait.
    """
    sealed_ms = parse_ms(message.metadata.timestamp) or 0
    return sealed_ms <= now_ms + BACKWARDS_TOLERANCE_MS and message.metadata.hops < hop_bound


def _made_out_to(publisher: Publisher, message: Message, record: NewRecord, expires_ms: int, first: str) -> NewRecord:
    name = read_topic(record.topic)
    if name is None or name.kind not in ("reply", "mail"):
        return record
    stored = sealing.parse(record.value)
    if stored.metadata.correlation_id == message.message_id or first not in ("", stored.metadata.correlation_id):
        return record
    if stored.is_progress and not message.takes_progress:
        return record
    # Nothing here is drawn or read from the clock: after a death between sending and committing, the message comes
    # again, and its requester would get a second answer.
    sealed_ms, ttl_s = _lifetime(publisher, message, stored, expires_ms)
    entropy = hashlib.sha256(f"{stored.seal} {message.seal} {sealed_ms} {ttl_s}".encode()).digest()
    kind = untyped(stored.message_type, stored.metadata.schema_version)
    identity = uuid7(sealed_ms, entropy[:10])
    before = stored.metadata
    draft = Outgoing(
        payload=kind.cls(),
        to=requester_of(message),
        message_id=identity,
        ttl_s=ttl_s,
        security=before.security,
        authority=before.authority,
        # A reader that must not ignore a field must not ignore it the second time.
        critical_fields=before.critical_fields,
        performative=before.performative,
        intent=before.intent,
        priority=stored.routing.priority,
    )
    return publisher.sealer.seal_data(
        draft,
        kind,
        stored.data,
        SealRequest(
            cause=message,
            answers=True,
            topic=message.routing.reply_to,
            now_ms=sealed_ms,
            progress=stored.routing.progress is True,
        ),
    ).record


def _lifetime(publisher: Publisher, message: Message, stored: Message, expires_ms: int) -> tuple[int, float]:
    """Return the timestamp and the lifetime in seconds of the answer to the repeat *message*.

    The timestamp is that of *message*, which passed the gates. An answer that is sealed at the last moment of
    *message* expires one lifetime of the *stored* answer later. So does this one, within the longest lifetime. Where
    an operator has extended *message* beyond that, the timestamp is later.
    """
    max_ms = round(publisher.sealer.origin.max_ttl_s * 1000)
    own_ms = (parse_ms(stored.routing.expires_at) or 0) - (parse_ms(stored.metadata.timestamp) or 0)
    # A forged extension must not date the answer into the future.
    sealed_ms = max(parse_ms(message.metadata.timestamp) or 0, min(expires_ms - max_ms, publisher.clock.now_ms()))
    return sealed_ms, min(expires_ms - sealed_ms + own_ms, max_ms) / 1000


# Progress.


def requester_of(message: Message) -> Agent:
    """Return the very instance that asked, where the message names it."""
    sender = message.metadata.sender
    return Agent(id=sender.id, session_id=sender.session_id)


def status_of(
    message: Message,
    text: str,
    pct: float | None,
    *,
    now_ms: int,
    status: TaskStatus = "running",
    approval_id: str | None = None,
) -> StatusUpdate:
    """Return what is said of the work on *message*; a *pct* outside of 0 to 100 is the nearest of both.

    Raises ContractError for a *pct* that is no number.
    """
    if not isinstance(text, str):
        raise ContractError(f"is a {type(text).__name__}, not text", "text")
    if pct is not None and (not isinstance(pct, int | float) or isinstance(pct, bool)):
        raise ContractError(f"{pct!r:.80} is not a number from 0 to 100", "pct")
    if pct is not None:
        # An estimate that is a little off is no reason to end the work. NaN says nothing.
        pct = None if math.isnan(pct) else min(max(pct, 0), _ALL)
    return StatusUpdate(
        task_id=message.metadata.task_id or message.message_id,
        new_status=status,
        timestamp=datetime.fromtimestamp(now_ms / 1000, UTC),
        progress_pct=None if pct is None else round(pct),
        # Models make texts of half characters, which no message can carry.
        message=cut(text.encode("utf-8", "replace").decode(), _MAX_TEXT) or None,
        approval_id=approval_id,
    )


def seal_progress(
    publisher: Publisher,
    message: Message,
    draft: Outgoing,
    *,
    run: RunLabels | None = None,
    data: bytes | None = None,
) -> SealedRecord:
    """Seal *draft* as progress of *message*. Raises PublishRejected, ContractError.

    Where the requester takes none, old readers of a task find it in the topic of its type, addressed to them.
    """
    for name in ("to", "reply_to", "correlation_id"):
        if getattr(draft, name) is not None:
            raise ContractError(f"progress goes to who asked: leave {name} out", name)
    if message.takes_progress:
        request = SealRequest(
            cause=message,
            answers=True,
            topic=message.routing.reply_to,
            progress=True,
            both_versions=False,
            run=run,
            data=data,
        )
        return publisher.sealer.seal(msgspec.structs.replace(draft, to=requester_of(message)), request)
    sender = message.metadata.sender.id
    if message.routing.reply_to is not None and sender is not None:
        draft = msgspec.structs.replace(draft, to=Agent(id=sender))
    return publisher.sealer.seal(draft, SealRequest(cause=message, progress=True, run=run, data=data))
