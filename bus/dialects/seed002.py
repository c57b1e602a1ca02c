"""Dialect 002: requests, responses, greetings, discovery and errors between agents with plain ids. Pure.

Owns the table of that format: the message and its correlation. Unknown members are refused. The tag in `auth` goes to
`Claims.proofs` with the bytes it signs, for the ingress alone; it is never kept, shown or written.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Mapping
from typing import Any, Final

from bus.dialects.data_check import check_data
from bus.dialects.faults import shown
from bus.dialects.foreign import NO_ALIASES, NONE, Claims, Defaults, Foreign, ForeignOptions
from bus.dialects.forms import LAST_MS, OBJECT, TEXT, TIME, Form, UnfitValueError, matching, one_of, time_form
from bus.dialects.keeping import ANYTHING, Notes, Source, Target
from bus.dialects.opened_message import OpenedMessage, addressed_id, open_message
from bus.dialects.seed002_payloads import KINDS, REGISTRY, MessageHead, SayingAs, read_payload, write_payload
from bus.dialects.strict_json import read_object
from bus.errors import DialectError
from bus.payloads.payload_types import Registry
from bus.protocol import canonical
from bus.protocol.envelope import Agent
from bus.protocol.sealing import Message
from bus.protocol.timestamps import format_ms
from bus.vocabulary import BUILT_IN

__all__ = ["decode", "encode"]

_NAME: Final = "002"
_LIFETIME_MS: Final = 300_000
"""How old a message may be there: it has no lifetime of its own."""
_UUID4: Final = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}\Z")
_AGENT: Final = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9-]{1,126}[a-zA-Z0-9]\Z")
_UTC: Final = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(?:\.[0-9]{3})?Z\Z")
_NONCE: Final = re.compile(r"[0-9a-f]{32}\Z")
_FINGERPRINT: Final = re.compile(r"(?:sha256:)?[0-9a-f]{16,64}\Z")


def _read_signature(value: Any) -> str:
    if value.__class__ is not str or not value:
        raise UnfitValueError
    try:
        base64.b64decode(value, validate=True)
    except (binascii.Error, ValueError):
        raise UnfitValueError from None
    signature: str = value
    return signature


def _read_null(value: Any) -> None:
    if value is not None:
        raise UnfitValueError


_KIND: Final = one_of(KINDS)
_ID: Final = matching("a UUID of version 4 in lower case", _UUID4.match)
_AGENT_ID: Final = matching("an id of 3 to 128 letters, digits and inner hyphens", _AGENT.match)
_TIME: Final = time_form(format_ms, _UTC.match, "a UTC time such as 2026-01-31T12:00:00.000Z, with 0 or 3 decimals")
_NULL: Final = Form("null or no such member", _read_null)
_NONCE_FORM: Final = Form("32 hexadecimal digits", matching("", _NONCE.match).read, is_secret=True)
_SIGNATURE: Final = Form("base64 with padding", _read_signature, is_secret=True)
_TAG: Final = Form(OBJECT.expected, OBJECT.read, is_secret=True)
_FINGERPRINT_FORM: Final = matching("at least 16 hexadecimal digits of the key's SHA-256", _FINGERPRINT.match)


def decode(value: bytes | Mapping[str, Any], *, defaults: Defaults = NONE, types: Registry = BUILT_IN) -> Foreign:
    """Return what the message of dialect 002 in *value* says; raise DialectError.

    Nothing here looks at a clock: how fresh the message is, an ingress judges once.
    """
    tree = read_object(value)
    notes = Notes()
    source = Source(tree, "", notes)
    message_id = source.required("message_id", _ID, defaults.message_id)
    kind = source.required("message_type", _KIND)
    sender = _read_agent(source, "sender_id", defaults.sender)
    recipient = _read_agent(source, "recipient_id", defaults.recipient)
    _check_registry(source, kind, sender, recipient)
    sent_ms = source.required("timestamp", _TIME, defaults.sent_at_ms)
    cause_id = _read_cause(source, kind)
    payload = source.required("payload", OBJECT)
    proofs = _read_proofs(source, tree, sender)
    source.refuse_rest()
    read = read_payload(kind, payload, MessageHead(notes, sender.id or "", sent_ms, types))
    data = notes.marked(read.data, _NAME)
    check_data(read.kind, data, read.places, tree)
    needs = read.kind.terms.needs
    expires_at_ms = sent_ms + (defaults.lifetime_ms or _LIFETIME_MS)
    if expires_at_ms > LAST_MS:
        raise DialectError("/timestamp", shown(tree.get("timestamp")), "a time before the end of the year 9999")
    return Foreign(
        type=read.kind.name,
        version=read.version,
        data=data,
        options=ForeignOptions(
            message_id=message_id,
            to=recipient,
            expires_at_ms=expires_at_ms,
            idempotency_key=message_id if "idempotency_key" in needs else None,
            conversation_id=defaults.conversation_id,
            correlation_id=cause_id,
            task_id=(defaults.task_id or message_id) if "task_id" in needs else None,
        ),
        claims=Claims(sender=sender, sent_at_ms=sent_ms, cause_id=cause_id, proofs=proofs),
    )


def encode(
    message: Message, *, aliases: Mapping[str, str] = NO_ALIASES, carry: bool = False, types: Registry = BUILT_IN
) -> dict[str, Any]:
    """Say *message* in dialect 002; raise DialectError if it cannot be said.

    *aliases*: agent ids of ours -> ids there; `role:<role>` and `*` name a role and everybody. There is no place to
    carry the sealed message.
    """
    if carry:
        raise DialectError("", "carry", "a dialect with a place for the sealed message")
    opened = open_message(message, _NAME, types)
    metadata = opened.metadata
    target = Target(opened.kept)
    sender = aliases.get(metadata.sender.id or "", metadata.sender.id)
    recipient = addressed_id(metadata.recipient, aliases)
    kind = write_payload(opened, target, SayingAs(sender or "", recipient, types))
    target.put_plain("message_type", kind)
    target.put_sayable("message_id", _ID, metadata.message_id, "/metadata/message_id", absent=ANYTHING)
    target.put_sayable("sender_id", _AGENT_ID, sender, "/metadata/sender/id", absent=ANYTHING)
    target.put_sayable("recipient_id", _AGENT_ID, recipient, "/metadata/recipient/id", absent=ANYTHING)
    target.put("timestamp", _TIME, opened.sent_ms, absent=ANYTHING)
    _write_cause(opened, target, kind)
    said = target.finish()
    said.setdefault("payload", {})
    return said


def _read_agent(source: Source, name: str, default: Agent | None) -> Agent:
    if not source.has(name) and default is not None and default.id is not None:
        source.required(name, _AGENT_ID, default.id)
        return default
    return Agent(id=source.required(name, _AGENT_ID))


def _check_registry(source: Source, kind: str, sender: Agent, recipient: Agent) -> None:
    if kind == "discover_agents" and recipient.id != REGISTRY:
        raise source.fault("recipient_id", recipient.id, f"{REGISTRY}, in discover_agents")
    if kind == "agent_announcement" and sender.id != REGISTRY:
        raise source.fault("sender_id", sender.id, f"{REGISTRY}, in agent_announcement")


def _read_cause(source: Source, kind: str) -> str | None:
    """Return the id of the message that this one answers, if its kind answers one."""
    if KINDS[kind].answers:
        return source.required("correlation_id", _ID)
    if source.has("correlation_id"):
        source.required("correlation_id", _NULL)
    else:
        source.notes.absent("/correlation_id")
    return None


def _write_cause(opened: OpenedMessage, target: Target, kind: str) -> None:
    metadata = opened.metadata
    if KINDS[kind].answers:
        answered = metadata.correlation_id or metadata.causation_id
        target.put_sayable("correlation_id", _ID, answered, "/metadata/correlation_id")
    else:
        target.put_kept("correlation_id", _NULL, None)


def _read_proofs(source: Source, tree: Mapping[str, Any], sender: Agent) -> dict[str, Any]:
    """Return the tag and the bytes it signs: the canonical form of the message without the signature."""
    tag = source.optional("auth", _TAG)
    if tag is None:
        return {}
    part = Source(tag, "/auth", Notes())
    agent_id = part.required("agent_id", TEXT)
    if agent_id != sender.id:
        raise part.fault("agent_id", agent_id, f"{sender.id}, as in /sender_id", "sender_mismatch")
    proofs = {
        "agent_id": agent_id,
        "timestamp_ms": part.required("timestamp", TIME),
        "nonce": part.required("nonce", _NONCE_FORM),
        "signature": part.required("signature", _SIGNATURE),
        "public_key_fingerprint": part.optional("public_key_fingerprint", _FINGERPRINT_FORM),
    }
    part.refuse_rest()
    unsigned = {name: value for name, value in tag.items() if name != "signature"}
    return {**proofs, "signed": canonical.encode_parsed({**tree, "auth": unsigned})}
