"""The tables of dialect `frameworks`, and the way through them. Pure.

Owns every member of that format. Unknown members are kept, and an optional member may be null. A message type that the
format lacks is written as typed content.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

from bus.dialects import forms
from bus.dialects.carried_message import CARRIED, carried_in_metadata, carried_text
from bus.dialects.data_check import check_data, default_lifetime_ms, known_kind
from bus.dialects.faults import MISSING, shown
from bus.dialects.foreign import NO_ALIASES, NONE, Defaults, Foreign, ForeignRetry
from bus.dialects.forms import Form
from bus.dialects.keeping import ANYTHING_OR_NULL, Source, Target
from bus.dialects.member_table import (
    KEPT,
    Derived,
    Inside,
    Items,
    Kept,
    MemberTable,
    MessageFacts,
    Optional,
    Required,
    Rest,
)
from bus.dialects.message_facts import (
    addressed_id,
    begin_reading,
    foreign_that_says,
    open_message,
    opened_facts,
    set_end,
)
from bus.dialects.strict_json import read_object
from bus.dialects.typed_content import read_typed, write_typed
from bus.errors import DialectError
from bus.payloads.payload_types import Registry
from bus.protocol.envelope import Agent
from bus.protocol.identifiers import is_text_id
from bus.protocol.sealing import Message
from bus.protocol.timestamps import format_ms
from bus.retry import Retry
from bus.vocabulary import BUILT_IN

_NAME: Final = "004"
_OWN_FRAMEWORK: Final = "sealbus"
"""The framework written for an agent that names none."""
_MAX_FALLBACKS: Final = 8
_ALL_PERCENT: Final = 100
_WITH_OWN_TASK: Final = ("task_request", "task_response")
_NO_ERROR: Final = {"code": "FAILED", "message": "failed"}
KINDS_OF_FRAMEWORKS: Final = {
    "task_request": "task.request",
    "task_response": "task.result",
    "status_update": "status.update",
    "error": "error.reported",
    "heartbeat": "agent.heartbeat",
}
_KINDS: Final = {name: kind for kind, name in KINDS_OF_FRAMEWORKS.items()}


# --- forms ------------------------------------------------------------------------------------------------------------


def _read_details(value: Any) -> dict[str, Any]:
    return {"text": value} if value.__class__ is str else forms.OBJECT.read(value)


def _write_details(details: dict[str, Any]) -> Any:
    return details["text"] if details.keys() == {"text"} and isinstance(details["text"], str) else details


def _fallbacks(facts: MessageFacts) -> Form[Any]:
    """Make the form of 1 to 8 different ids other than the recipient's; an empty list counts as absent."""
    recipient = facts["to"].id if facts["to"] is not None else None

    def fits(value: Any) -> bool:
        return (
            value.__class__ is list
            and len(value) <= _MAX_FALLBACKS
            and all(isinstance(agent, str) and is_text_id(agent) and agent != recipient for agent in value)
            and len(set(value)) == len(value)
        )

    return Form(f"at most {_MAX_FALLBACKS} different agent ids without the recipient's", fits=fits)


_ATTEMPTS: Final = Form(
    forms.RETRIES.expected, lambda value: forms.RETRIES.read(value) + 1, lambda attempts: attempts - 1
)
_WORDS: Final = forms.one_of(("linear", "exponential"))
_BACKOFF: Final = Form(_WORDS.expected, _WORDS.read, lambda word: "linear" if word == "constant" else word)
_MODE: Final = forms.one_of(("async", "sync"))
_STATUS: Final = forms.one_of(("completed", "failed", "cancelled"))
_PERCENT: Final = Form(
    "a number from 0 to 100", int, forms.same, fits=lambda value: forms.NUMBER.accepts(value) and value <= _ALL_PERCENT
)
_DETAILS: Final = Form("an object or a text", _read_details, _write_details)
_GOAL: Final = Form("a goal or a task_type", forms.VALUE.read)


# --- the envelope -----------------------------------------------------------------------------------------------------


def _absent_task(facts: MessageFacts) -> Any:
    """Return the value for a missing task: the id of its message; for a status update, the default."""
    if facts["kind"] in _WITH_OWN_TASK:
        return facts["message_id"]
    if facts["kind"] != "status_update":
        return None
    return facts["defaults"].task_id if "defaults" in facts else ANYTHING_OR_NULL


def _own_task(facts: MessageFacts) -> tuple[str, ...]:
    return (facts["message_id"],) if facts["kind"] in _WITH_OWN_TASK else ()


def _own_conversation(facts: MessageFacts) -> Any:
    return facts.get("task_id") or facts["message_id"]


class _Mode(Kept):
    """Whether the sender waits. The mode "sync" is kept, because sealing may choose another reply topic."""

    def read(self, source: Source, data: MessageFacts, facts: MessageFacts) -> None:  # noqa: ARG002
        mode = source.optional(self.name, _MODE, absent="async")
        if mode == "sync":
            source.notes.kept[source.location(self.name)] = mode
            data["is_awaited"] = True


_HEAD: Final = MemberTable(
    Required("message_type", forms.one_of(tuple(KINDS_OF_FRAMEWORKS)), "kind"),
    Required("message_id", forms.MESSAGE_ID, default="message_id"),
    Required("timestamp", forms.TIME, "sent_at_ms", default="sent_at_ms"),
    Required("priority", forms.priority_words("medium")),
)
_TASK: Final = Inside(
    "metadata", MemberTable(Optional("task_id", forms.NAME, absent=_absent_task, omit=_own_task)), always=True
)
_SENDER: Final = Inside(
    "sender",
    MemberTable(
        Required("agent_id", forms.NAME, "sender_id"),
        Required("framework", forms.NAME, "sender_framework"),
        Optional(
            "session_id",
            forms.NAME,
            "conversation_id",
            absent=_own_conversation,
            omit=lambda facts: (None, facts.get("task_id"), facts["message_id"]),
        ),
        KEPT,
    ),
    default="sender",
)
_RECIPIENT: Final = Inside(
    "recipient",
    MemberTable(
        Required("agent_id", forms.NAME, "recipient_id"),
        Required("framework", forms.NAME, "recipient_framework"),
        Kept("session_id", forms.NAME),
        KEPT,
    ),
    default="recipient",
)
_ROUTING: Final = Inside(
    "routing",
    MemberTable(
        Required("timeout", forms.DURATION, "lifetime_ms", default="lifetime_ms"),
        Inside("retry_policy", MemberTable(Required("max_retries", _ATTEMPTS), Required("backoff", _BACKOFF), KEPT)),
        Kept("fallback_agents", _fallbacks, "fallback"),
        _Mode("delivery_mode", _MODE, otherwise=lambda facts: "sync" if facts["reply_to"] is not None else "async"),
        KEPT,
    ),
    default="lifetime_ms",
)
_OF_HEARTBEATS: Final = MemberTable(Kept("recipient", forms.OBJECT), Kept("routing", forms.OBJECT))
"""A heartbeat needs neither."""


# --- payloads ---------------------------------------------------------------------------------------------------------


def _sent_at(facts: MessageFacts, _data: Mapping[str, Any]) -> str:
    return format_ms(facts["sent_at_ms"])


def _no_error(facts: MessageFacts, data: Mapping[str, Any]) -> Any:
    return {**_NO_ERROR} if "opened" in facts or data["status"] == "failed" else None


_FINDING: Final = MemberTable(
    Optional("message", forms.VALUE, "claim"),
    *map(Optional, ("type", "file", "line", "severity", "confidence", "evidence_refs")),
    KEPT,
)
_PAYLOADS: Final = {
    "task_request": MemberTable(
        Optional("task_type"),
        Optional("acceptance_criteria"),
        Optional("goal", derive=lambda _stated, data: data.get("task_type")),
        Rest("inputs"),
    ),
    "task_response": MemberTable(
        Required("status", _STATUS),
        Optional("summary"),
        Optional("error", derive=_no_error),
        Items("findings", _FINDING, optional=True),
        Rest("output"),
    ),
    "status_update": MemberTable(
        Derived("task_id", lambda facts, _data: facts["task_id"], noted=False, location="/metadata/task_id"),
        Optional("phase"),
        Optional("notes"),
        Optional("percent_complete", _PERCENT, "progress_pct"),
        Derived("new_status", lambda _stated, _data: "running"),
        Derived("timestamp", _sent_at),
        KEPT,
    ),
    "error": MemberTable(
        Required("code", forms.TEXT, "error_code"),
        Required("message", forms.TEXT, "error_message"),
        Derived("source_agent", lambda facts, _data: facts["sender"].id or ""),
        Derived("timestamp", _sent_at),
        Optional("details", _DETAILS),
        Derived("source_task_id", lambda facts, _data: facts.get("task_id"), noted=False, location="/metadata/task_id"),
        Optional("retryable", forms.FLAG, at="/metadata"),
        KEPT,
    ),
    "heartbeat": MemberTable(
        *map(Optional, ("status", "active_tasks", "cpu")), Optional("memory", forms.VALUE, "memory_mb"), KEPT
    ),
}
_FITS: Final[Mapping[str, Callable[[MessageFacts, dict[str, Any]], bool]]] = {
    "error": lambda _stated, _data: True,  # What only helps to read it, such as its severity, is left out.
    "status_update": lambda facts, data: (
        _PAYLOADS["status_update"].says_all(data)
        and data["new_status"] == "running"
        and facts["task_id"] in (None, data["task_id"])
    ),
}


def _read_payload(payload: Any, facts: MessageFacts) -> dict[str, Any]:
    kind, notes = facts["kind"], facts["notes"]
    if kind == "task_request" and payload.__class__ is str and payload:
        notes.kept["/payload"] = payload
        return {"goal": payload}
    if payload.__class__ is not dict:
        raise DialectError("/payload", shown(payload), forms.OBJECT.expected)
    if not payload:
        notes.kept["/payload"] = {}
    source = Source(payload, "/payload", notes, nulls=True)
    data = _PAYLOADS[kind].read(source, {}, facts)
    if kind == "task_request" and "goal" not in data:
        raise source.fault("goal", MISSING, _GOAL.expected)
    return data


def _kind_to_say(facts: MessageFacts) -> str | None:
    """Return the kind of message whose payload expresses all data; None if typed content is needed."""
    opened = facts["opened"]
    kind = _KINDS.get(opened.metadata.message_type)
    if kind is None or opened.was_typed("/payload/type"):
        return None
    fits = _FITS.get(kind)
    is_stated = _PAYLOADS[kind].says_all(opened.data) if fits is None else fits(facts, opened.data)
    return kind if is_stated else None


def _write_payload(facts: MessageFacts, target: Target, kind: str) -> None:
    data = facts["opened"].data
    if kind == "task_request" and data.keys() == {"goal"} and facts["opened"].kept.get("/payload") == data["goal"]:
        target.put_plain("payload", data["goal"])
    else:
        table = _PAYLOADS[kind]
        table.write(target.inside("payload", is_open=table.is_open), data, facts)


# --- messages ---------------------------------------------------------------------------------------------------------


def decode(value: bytes | Mapping[str, Any], *, defaults: Defaults = NONE, types: Registry = BUILT_IN) -> Foreign:
    """Decode the message of this dialect in *value*; raise DialectError if it is invalid."""
    tree = read_object(value)
    if (carried := carried_in_metadata(tree, partial(encode, types=types))) is not None:
        return carried
    source, facts = begin_reading(tree, defaults, types, nulls=True)
    _HEAD.read(source, facts, facts)
    kind, message_id, notes = facts["kind"], facts["message_id"], source.notes
    _TASK.read(source, facts, facts)
    if kind == "status_update" and facts.get("task_id") is None:
        raise DialectError("/metadata/task_id", shown(MISSING), forms.NAME.expected)
    _SENDER.read(source, facts, facts)
    _set_agent(facts, "sender", "sender")
    facts.setdefault("conversation_id", defaults.conversation_id or _own_conversation(facts))
    payload = source.required("payload", forms.VALUE)
    typed = read_typed(payload, "/payload", types)
    locations: Mapping[str, str] = {"": "/payload/data"}
    if typed is not None:
        expected = "task_request" if typed.is_directive else "task_response"
        if kind != expected:
            raise source.fault("message_type", kind, f"{expected}, as {typed.kind.name} is said")
        if typed.kind.name in _KINDS:
            notes.kept["/payload/type"] = typed.name
        type_, version, data = typed.kind, typed.version, typed.data
    else:
        type_ = known_kind(types, KINDS_OF_FRAMEWORKS[kind])
        version, data, locations = type_.version, _read_payload(payload, facts), _PAYLOADS[kind].locations("/payload")
    if kind == "heartbeat":
        _OF_HEARTBEATS.read(source, facts, facts)
    else:
        _RECIPIENT.read(source, facts, facts)
        _set_agent(facts, "recipient", "to")
        _ROUTING.read(source, facts, facts)
    if "max_retries" in facts:
        facts["retry"] = ForeignRetry(max_attempts=facts["max_retries"], backoff=facts["backoff"])
    facts["fallback"] = tuple(facts.get("fallback", ()))
    details: Source = facts["/metadata"]
    details.keep_rest()
    source.keep_rest()
    check_data(type_, notes.marked(data, _NAME), locations, tree)
    set_end(facts, facts.get("lifetime_ms") or default_lifetime_ms(type_), "/routing/timeout")
    if "idempotency_key" in type_.terms.required_options:
        facts["idempotency_key"] = message_id
    return foreign_that_says(facts, type_.name, version, data)


def _set_agent(facts: MessageFacts, name: str, role: str) -> None:
    """Set the agent whose members were read, unless it is a default."""
    if name not in facts:
        framework = facts[f"{name}_framework"]
        facts[name] = Agent(id=facts[f"{name}_id"], framework=None if framework == _OWN_FRAMEWORK else framework)
    facts[role] = facts[name]


def encode(
    message: Message, *, aliases: Mapping[str, str] = NO_ALIASES, carry: bool = False, types: Registry = BUILT_IN
) -> dict[str, Any]:
    """Write *message* in this dialect; raise DialectError if its recipient cannot be named."""
    opened = open_message(message, _NAME, types)
    facts = opened_facts(opened, aliases)
    recipient = opened.metadata.recipient
    retry = opened.routing.retry or Retry().policy()
    kind = _kind_to_say(facts)
    facts |= {
        "kind": kind or ("task_request" if opened.is_directive else "task_response"),
        "priority": 5 if opened.routing.priority is None else opened.routing.priority,
        "sender_framework": opened.metadata.sender.framework or _OWN_FRAMEWORK,
        "to": recipient,
        "recipient_framework": (recipient and recipient.framework) or _OWN_FRAMEWORK,
        "max_retries": retry.max_attempts,
        "backoff": retry.backoff,
    }
    target = Target(opened.kept, is_open=True, nulls=True)
    _HEAD.write(target, facts, facts)
    _SENDER.write(target, facts, facts)
    if facts["kind"] == "heartbeat":
        _OF_HEARTBEATS.write(target, facts, facts)
    else:
        facts["recipient_id"] = addressed_id(recipient, aliases)
        _RECIPIENT.write(target, facts, facts)
        _ROUTING.write(target, facts, facts)
    facts["task_id"] = facts["task_id"] or (opened.data.get(_TASK_IN_DATA[kind]) if kind in _TASK_IN_DATA else None)
    _TASK.write(target, facts, facts)
    if kind is None:
        target.put_plain("payload", write_typed(facts["message_type"], facts["schema_version"], opened.data))
    else:
        _write_payload(facts, target, kind)
    details: Target = facts["/metadata"]
    # A kept member must not stand for the sealed message.
    details.names.add(CARRIED)
    if carry:
        details.put_plain(CARRIED, carried_text(message))
    return target.finish()


_TASK_IN_DATA: Final = {"status_update": "task_id", "error": "source_task_id"}
