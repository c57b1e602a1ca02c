"""The messages of dialect `plain-ids`: head, correlation and proofs. Pure.

Owns the message around the payload, which is `bus.dialects.plain_ids.payloads`'. Unknown members are refused. The tag
in `auth` goes to `Claims.proofs` with the bytes it signs, for the ingress alone; it is never kept, shown or written.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Mapping
from typing import Any, Final

from bus.dialects import forms
from bus.dialects.data_check import check_data
from bus.dialects.faults import shown
from bus.dialects.foreign import NO_ALIASES, NONE, Defaults, Foreign
from bus.dialects.forms import LAST_WRITABLE_MS, OBJECT, Form, matching
from bus.dialects.keeping import Notes, Source, Target
from bus.dialects.member_table import REFUSED, AgentId, MemberRow, MemberTable, MessageFacts, Optional, Required
from bus.dialects.message_facts import addressed_id, begin_reading, foreign_that_says, open_message, opened_facts
from bus.dialects.plain_ids.payloads import ANSWERING, KINDS_OF_PLAIN_IDS, REGISTRY, read_plain, write_plain
from bus.dialects.strict_json import read_object
from bus.errors import DialectError
from bus.payloads.payload_types import Registry
from bus.protocol import canonical
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


def _is_base64(text: str) -> bool:
    try:
        return bool(text) and base64.b64decode(text, validate=True) is not None
    except (binascii.Error, ValueError):
        return False


_ID: Final = matching("a UUID of version 4 in lower case", _UUID4.match)
_AGENT_ID: Final = matching("an id of 3 to 128 letters, digits and inner hyphens", _AGENT.match)
_TIME: Final = forms.time_form(
    format_ms, _UTC.match, "a UTC time such as 2026-01-31T12:00:00.000Z, with 0 or 3 decimals"
)
_NULL: Final = Form[None]("null or no such member", fits=lambda value: value is None)
_TAG: Final = Form(OBJECT.expected, OBJECT.read, is_secret=True)
_TAGGED: Final = MemberTable(
    Required("timestamp", forms.TIME, "timestamp_ms"),
    Required("nonce", matching("32 hexadecimal digits", _NONCE.match, is_secret=True)),
    Required("signature", matching("base64 with padding", _is_base64, is_secret=True)),
    Optional(
        "public_key_fingerprint", matching("at least 16 hexadecimal digits of the key's SHA-256", _FINGERPRINT.match)
    ),
    REFUSED,
)


class _Answered(MemberRow):
    """The message that this one answers, if its kind answers one."""

    def read(self, source: Source, data: MessageFacts, facts: MessageFacts) -> None:
        if facts["kind"] in ANSWERING:
            data["cause_id"] = data["correlation_id"] = source.required("correlation_id", _ID)
        elif source.has("correlation_id"):
            source.required("correlation_id", _NULL)
        else:
            source.notes.absent("/correlation_id")

    def write(self, target: Target, data: Mapping[str, Any], facts: MessageFacts) -> None:
        if facts["kind"] in ANSWERING:
            answered = data["correlation_id"] or data["causation_id"]
            target.put_sayable("correlation_id", _ID, answered, "/metadata/correlation_id")
        else:
            target.put_kept("correlation_id", _NULL, None)


class _Tag(MemberRow):
    """The tag, and the bytes it signs: the canonical form of the message without the signature."""

    def read(self, source: Source, data: MessageFacts, facts: MessageFacts) -> None:
        tag = source.optional("auth", _TAG)
        if tag is None:
            return
        part = Source(tag, "/auth", Notes())
        agent_id, sender = part.required("agent_id", forms.TEXT), facts["sender"]
        if agent_id != sender.id:
            raise part.fault("agent_id", agent_id, f"{sender.id}, as in /sender_id", "sender_mismatch")
        proofs = _TAGGED.read(part, {"agent_id": agent_id, "public_key_fingerprint": None}, facts)
        unsigned = {name: value for name, value in tag.items() if name != "signature"}
        data["proofs"] = {**proofs, "signed": canonical.encode_parsed({**facts["tree"], "auth": unsigned})}


_HEAD: Final = MemberTable(
    Required("message_id", _ID, default="message_id", origin="/metadata/message_id"),
    Required("message_type", forms.one_of(KINDS_OF_PLAIN_IDS), "kind"),
    AgentId("sender_id", _AGENT_ID, "sender", default="sender", origin="/metadata/sender/id"),
    AgentId("recipient_id", _AGENT_ID, "to", default="recipient", origin="/metadata/recipient/id"),
)
_ANSWER: Final = MemberTable(Required("timestamp", _TIME, "sent_at_ms", default="sent_at_ms"), _Answered())


def decode(value: bytes | Mapping[str, Any], *, defaults: Defaults = NONE, types: Registry = BUILT_IN) -> Foreign:
    """Decode the message of this dialect in *value*; raise DialectError if it is invalid.

    Decoding uses no clock: the ingress checks how fresh the message is.
    """
    tree = read_object(value)
    source, facts = begin_reading(tree, defaults, types, nulls=False)
    _HEAD.read(source, facts, facts)
    if facts["kind"] == "discover_agents" and facts["to"].id != REGISTRY:
        raise source.fault("recipient_id", facts["to"].id, f"{REGISTRY}, in discover_agents")
    if facts["kind"] == "agent_announcement" and facts["sender"].id != REGISTRY:
        raise source.fault("sender_id", facts["sender"].id, f"{REGISTRY}, in agent_announcement")
    _ANSWER.read(source, facts, facts)
    payload = source.required("payload", OBJECT)
    _Tag().read(source, facts, facts)
    source.refuse_rest()
    kind, version, data, locations = read_plain(payload, facts)
    check_data(kind, source.notes.marked(data, _NAME), locations, tree)
    facts["expires_at_ms"] = facts["sent_at_ms"] + (defaults.lifetime_ms or _LIFETIME_MS)
    if facts["expires_at_ms"] > LAST_WRITABLE_MS:
        raise DialectError("/timestamp", shown(tree.get("timestamp")), "a time before the end of the year 9999")
    facts["conversation_id"] = defaults.conversation_id
    if "idempotency_key" in kind.terms.required_options:
        facts["idempotency_key"] = facts["message_id"]
    if "task_id" in kind.terms.required_options:
        facts["task_id"] = defaults.task_id or facts["message_id"]
    return foreign_that_says(facts, kind.name, version, data)


def encode(
    message: Message, *, aliases: Mapping[str, str] = NO_ALIASES, carry: bool = False, types: Registry = BUILT_IN
) -> dict[str, Any]:
    """Write *message* in this dialect; raise DialectError if the dialect cannot express it."""
    if carry:
        raise DialectError("", "carry", "a dialect with a place for the sealed message")
    opened = open_message(message, _NAME, types)
    facts = opened_facts(opened, aliases) | {"to_id": addressed_id(opened.metadata.recipient, aliases), "types": types}
    target = Target(opened.kept)
    facts["kind"] = write_plain(target, facts)
    _HEAD.write(target, facts, facts)
    _ANSWER.write(target, facts, facts)
    stated_message = target.finish()
    stated_message.setdefault("payload", {})
    return stated_message
