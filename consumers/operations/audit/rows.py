"""AuditRow: the audit's row for one record, and the hash chain of rows. Pure.

A row has two parts. The permanent part has position, type, times, verdict, and a commitment to the other part. The
erasable part has ids, names, facts and the redacted payload, with a random key. The commitment is an HMAC under that
key, so that erased content cannot be guessed (design part two 18), and the chain stays valid without it.
"""

from __future__ import annotations

import hashlib
import hmac
from base64 import b64encode
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any, Final

import msgspec

from bus.protocol.envelope import Metadata
from bus.protocol.sealing import Message
from bus.redaction import cut, masked, redacted
from bus.topics.names import TopicName
from bus.transports.base import Record
from consumers.deadletters.letters import DeadLetter

__all__ = [
    "AuditContent",
    "AuditRow",
    "CHAIN_BEGIN",
    "LOST",
    "UNSTORABLE",
    "chained",
    "commitment_of",
    "content_of",
    "hash_of_row",
    "lost_row",
    "unstorable_content",
]

CHAIN_BEGIN: Final = "0" * 64
LOST: Final = "lost"
"""The kind of a row that stands for offsets which the log no longer had."""
UNSTORABLE: Final = "unstorable"
"""The verdict of a row whose record the store refused in its own form: its bytes are stored unchanged."""
_MAX_TEXT: Final = 1_000
_MAX_ITEMS: Final = 100
_MAX_PLAIN: Final = 256
_MAX_MODEL: Final = 100
_MAX_DEPTH: Final = 12
_OPEN: Final = frozenset({"", "public", "internal"})
"""Classifications with which the payload itself is stored; with others only its form."""
_encode: Final = msgspec.json.Encoder().encode


class AuditRow(msgspec.Struct, frozen=True, kw_only=True):
    """The permanent part of one record, or of lost offsets. *before* is the offset of the previous row."""

    topic: str
    partition: int
    offset: int
    through: int
    """The last offset it stands for: its own, but for a row of lost ones."""
    before: int
    kind: str
    message_type: str
    appended_ms: int
    verdict: str
    reason: str
    commitment: str
    hash: str = ""


class AuditContent(msgspec.Struct, frozen=True, kw_only=True):
    """The erasable part of one record. *facts* is JSON."""

    message_id: str = ""
    conversation_id: str = ""
    causation_id: str = ""
    task_id: str = ""
    sender: str = ""
    recipient: str = ""
    seal: str = ""
    sealed_at: str = ""
    classification: str = ""
    facts: str = "{}"


def commitment_of(content: AuditContent, key: bytes) -> str:
    """Return the commitment to *content*: it reveals nothing of the content, and no other content has the same."""
    return hmac.new(key, _encode(msgspec.structs.astuple(content)), hashlib.sha256).hexdigest()


def hash_of_row(row: AuditRow, before: str) -> str:
    """Return the hash of *row* after a row whose hash is *before*: SHA-256 of a JSON array of both."""
    return hashlib.sha256(_encode((before, *msgspec.structs.astuple(row)[:-1]))).hexdigest()


def chained(row: AuditRow, before: str) -> AuditRow:
    """Return *row* with its hash."""
    return msgspec.structs.replace(row, hash=hash_of_row(row, before))


def lost_row(topic: str, partition: int, first: int, through: int, before: int) -> AuditRow:
    """Return the row that stands for offsets which retention has taken before they were read."""
    return AuditRow(
        topic=topic,
        partition=partition,
        offset=first,
        through=through,
        before=before,
        kind=LOST,
        message_type="",
        appended_ms=0,
        verdict=LOST,
        reason="",
        commitment="",
    )


def content_of(record: Record, message: Message | None, letter: DeadLetter | None, name: TopicName) -> AuditContent:
    """Return the erasable content of *record*, with secrets masked; *letter* has the headers of a dead letter."""
    facts: dict[str, Any] = {}
    if letter is not None:
        facts["dead"] = {
            "reason": letter.reason,
            "gate": letter.gate,
            "pointer": cut(letter.pointer, _MAX_TEXT),
            "group": letter.group,
            "attempts": letter.attempts,
            "redrives": letter.redrive_count,
            "origin": letter.origin,
        }
    if name.kind == "own":
        facts["entry"] = masked(_json(record.value or b""))
    if message is None:
        return AuditContent(facts=_encode(facts).decode())
    metadata, security = message.metadata, message.metadata.security
    classification = (security.data_classification if security is not None else None) or ""
    facts |= _of_envelope(message, metadata)
    payload = _json(message.data)
    facts["tool_calls"] = _found(payload, ("tool_call_id", "call_id"))
    facts["refs"] = _refs(payload)
    facts |= _spent(payload)
    facts["payload"] = masked(payload) if classification in _OPEN else _form(payload, 0)
    return AuditContent(
        message_id=metadata.message_id,
        conversation_id=metadata.conversation_id,
        causation_id=metadata.causation_id or "",
        task_id=metadata.task_id or "",
        sender=metadata.sender.id or "",
        recipient=("" if metadata.recipient is None else metadata.recipient.id or metadata.recipient.role or ""),
        seal=message.seal,
        sealed_at=metadata.timestamp,
        classification=classification,
        facts=_encode({key: value for key, value in facts.items() if value not in (None, [], {}, "")}).decode(),
    )


def unstorable_content(record: Record, content: AuditContent | None, why: str) -> AuditContent:
    """Return the content for a *record* that the store refused, in characters that every store accepts.

    It is not masked, so it counts as `restricted`. From *content*, if there was any, it takes plain ids and names, so
    that it can be found and erased.
    """
    facts = {
        "unstorable": ascii(cut(why, _MAX_TEXT)),
        "key": _base64(record.key),
        "value": _base64(record.value),
        "headers": [[ascii(name), _base64(value)] for name, value in record.headers],
    }
    named = AuditContent() if content is None else content
    names = ("message_id", "conversation_id", "causation_id", "task_id", "sender", "recipient", "seal", "sealed_at")
    plain = {name: text for name in names if _is_plain(text := getattr(named, name))}
    return AuditContent(**plain, classification="restricted", facts=_encode(facts).decode())


def _is_plain(text: str) -> bool:
    return len(text) <= _MAX_PLAIN and text.isascii() and text.isprintable()


def _base64(value: bytes | None) -> str | None:
    return None if value is None else b64encode(value).decode()


def _of_envelope(message: Message, metadata: Metadata) -> dict[str, Any]:
    security = metadata.security
    return {
        "schema_version": metadata.schema_version,
        "performative": metadata.performative,
        "trust_level": None if security is None else security.trust_level,
        "authority": None if metadata.authority is None else msgspec.to_builtins(metadata.authority),
        "is_signed": message.verification.signature is not None,
        "rests_on": list(message.verification.parents or ()),
        "expires_at": message.routing.expires_at,
        "idempotency_key": message.routing.idempotency_key,
        "intent": metadata.intent and cut(redacted(metadata.intent), _MAX_TEXT),
        "traceparent": metadata.traceparent,
    }


def _json(value: bytes) -> Any:
    try:
        return msgspec.json.decode(value)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def _form(value: Any, depth: int) -> Any:
    """Return the form of *value*: names, kinds and lengths, without any text of it."""
    if isinstance(value, dict) and depth < _MAX_DEPTH:
        return {cut(str(key), _MAX_TEXT): _form(each, depth + 1) for key, each in list(value.items())[:_MAX_ITEMS]}
    if isinstance(value, str):
        return f"text of {len(value)}"
    if isinstance(value, list | dict):
        return f"{type(value).__name__} of {len(value)}"
    return type(value).__name__


def _found(payload: Any, names: Sequence[str]) -> list[str]:
    if not isinstance(payload, dict):
        return []
    return [cut(str(payload[name]), _MAX_TEXT) for name in names if isinstance(payload.get(name), str)]


def _refs(payload: Any) -> list[str]:
    """Return the addresses that a payload refers to: members with a `uri`, up to one level down."""
    if not isinstance(payload, dict):
        return []
    members = (each for value in payload.values() for each in (value if isinstance(value, list) else [value]))
    found = (each["uri"] for each in members if isinstance(each, Mapping) and isinstance(each.get("uri"), str))
    return [cut(redacted(uri), _MAX_TEXT) for uri in islice(found, _MAX_ITEMS)]


def _spent(payload: Any) -> dict[str, Any]:
    """Return tokens, cost and model, where a payload reports them."""
    if not isinstance(payload, dict):
        return {}
    inner = payload.get("usage")
    usage = inner if isinstance(inner, dict) else payload
    names = ("tokens", "input_tokens", "output_tokens", "total_tokens", "cost", "cost_usd", "latency_ms", "duration_ms")
    spent: dict[str, Any] = {name: usage[name] for name in names if isinstance(usage.get(name), int | float | dict)}
    model = usage.get("model", payload.get("model"))
    if spent and isinstance(model, str):
        spent["model"] = cut(redacted(model), _MAX_MODEL)
    return spent
