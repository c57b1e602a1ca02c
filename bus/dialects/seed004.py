"""Dialect 004: tasks, status, errors and heartbeats between agents of different frameworks. Pure.

Owns the table of that format. Unknown members are kept, and an optional member may be null.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from bus.dialects.carried_message import CARRIED, carried_text, check_same, foreign_of, read_carried
from bus.dialects.data_check import Places, check_data, default_lifetime_ms, known_kind
from bus.dialects.faults import MISSING, shown
from bus.dialects.foreign import NONE, Claims, Defaults, Foreign, ForeignOptions, ForeignRetry
from bus.dialects.forms import (
    DURATION,
    FLAG,
    LAST_MS,
    LIST,
    MESSAGE_ID,
    NAME,
    OBJECT,
    TEXT,
    TIME,
    VALUE,
    Form,
    UnfitValueError,
    choice,
    one_of,
    whole,
)
from bus.dialects.keeping import ANYTHING, Notes, Source, Target
from bus.dialects.opened_message import OpenedMessage, open_message
from bus.dialects.strict_json import read_object
from bus.dialects.typed_content import read_typed, says_all, write_typed
from bus.errors import DialectError
from bus.payloads.payload_types import Registry
from bus.protocol.envelope import Agent
from bus.protocol.identifiers import is_text_id
from bus.protocol.sealing import Message
from bus.protocol.timestamps import format_ms
from bus.retry import Retry
from bus.vocabulary import BUILT_IN

__all__ = ["decode", "encode"]

_NAME: Final = "004"
_TYPES: Final = {
    "task_request": "task.request",
    "task_response": "task.result",
    "status_update": "status.update",
    "error": "error.reported",
    "heartbeat": "agent.heartbeat",
}
_KINDS: Final = {name: kind for kind, name in _TYPES.items()}
_OWN_FRAMEWORK: Final = "sealbus"
"""What an agent without a framework is said to have."""
_MOST_FALLBACKS: Final = 8


def _write_priority(priority: int) -> str:
    if priority <= 3:  # noqa: PLR2004 - the bounds of the table
        return "low"
    if priority <= 6:  # noqa: PLR2004
        return "medium"
    return "high" if priority <= 8 else "critical"  # noqa: PLR2004


_KIND: Final = one_of(tuple(_TYPES))
_PRIORITY: Final = choice({"low": 2, "medium": 5, "high": 7, "critical": 9}, _write_priority)
_FRAMEWORK: Final = Form(
    NAME.expected,
    lambda value: None if value == _OWN_FRAMEWORK else NAME.read(value),
    lambda framework: _OWN_FRAMEWORK if framework is None else framework,
)
_RETRIES: Final = whole(0, 99)
_BACKOFF: Final = Form(
    "one of linear, exponential",
    one_of(("linear", "exponential")).read,
    lambda backoff: "linear" if backoff == "constant" else backoff,
)
_MODE: Final = one_of(("async", "sync"))


def decode(value: bytes | Mapping[str, Any], *, defaults: Defaults = NONE, types: Registry = BUILT_IN) -> Foreign:
    """Return what the message of dialect 004 in *value* says; raise DialectError."""
    tree = read_object(value)
    metadata = tree.get("metadata")
    if isinstance(metadata, dict) and CARRIED in metadata:
        return _decode_carried(tree, metadata)
    notes = Notes()
    source = Source(tree, "", notes, nulls=True)
    kind = source.required("message_type", _KIND)
    message_id = source.required("message_id", MESSAGE_ID, defaults.message_id)
    sent_ms = source.required("timestamp", TIME, defaults.sent_at_ms)
    priority = source.required("priority", _PRIORITY)
    details = source.optional_inside("metadata")
    task_id = _read_task(details, notes, kind, message_id, defaults)
    sender, conversation_id = _read_sender(source, defaults, task_id or message_id, (None, task_id, message_id))
    payload = source.required("payload", VALUE)
    typed = read_typed(payload, "/payload", types)
    if typed is not None:
        said = "task_request" if typed.is_directive else "task_response"
        if kind != said:
            raise source.fault("message_type", kind, f"{said}, as {typed.kind.name} is said")
        type_, version, data, places = typed.kind, typed.version, typed.data, _TYPED_PLACES
    else:
        type_, version = known_kind(types, _TYPES[kind]), ""
        reading = _Reading(notes, sender.id or "", sent_ms, task_id, details)
        data, places = _READERS[kind](payload, reading), _PLACES[kind]
    if kind == "heartbeat":
        # It needs neither.
        recipient, routing = None, _RoutingRead()
        source.keep("recipient", OBJECT)
        source.keep("routing", OBJECT)
    else:
        recipient = _read_recipient(source, defaults)
        routing = _read_routing(source, defaults, recipient)
    if details is not None:
        details.keep_rest()
    source.keep_rest()
    data = notes.marked(data, _NAME)
    check_data(type_, data, places, tree)
    lifetime_ms = routing.lifetime_ms or default_lifetime_ms(type_)
    if sent_ms + lifetime_ms > LAST_MS:
        raise DialectError("/routing/timeout", f"{lifetime_ms} ms", "a time before the year 10000")
    return Foreign(
        type=type_.name,
        version=version or type_.version,
        data=data,
        options=ForeignOptions(
            message_id=message_id,
            to=recipient,
            expires_at_ms=sent_ms + lifetime_ms,
            priority=priority,
            retry=routing.retry,
            conversation_id=conversation_id,
            task_id=task_id,
            idempotency_key=message_id if "idempotency_key" in type_.terms.needs else None,
            fallback=routing.fallback,
            is_awaited=routing.is_awaited,
        ),
        claims=Claims(sender=sender, sent_at_ms=sent_ms),
    )


def encode(message: Message, *, aliases: Mapping[str, str] = {}, carry: bool = False) -> dict[str, Any]:
    """Say *message* in dialect 004; raise DialectError for one without a recipient that could be named.

    *aliases*: agent ids of ours -> ids there; `role:<role>` and `*` name a role and everybody.
    """
    opened = open_message(message, _NAME)
    metadata, routing = opened.metadata, opened.routing
    target = Target(opened.kept, is_open=True, nulls=True)
    kind = _write_payload(opened, target)
    target.put_plain("message_type", kind)
    target.put("message_id", MESSAGE_ID, metadata.message_id, absent=ANYTHING)
    target.put("timestamp", TIME, opened.sent_ms, absent=ANYTHING)
    target.put("priority", _PRIORITY, 5 if routing.priority is None else routing.priority)
    task_id, message_id = metadata.task_id, metadata.message_id
    sender = target.inside("sender")
    _write_agent(sender, metadata.sender, aliases)
    own = (None, task_id, message_id)
    sender.put("session_id", NAME, metadata.conversation_id, absent=task_id or message_id, omit=own)
    if kind == "heartbeat":
        for name in ("recipient", "routing"):
            target.put_kept(name, OBJECT)
    else:
        recipient = target.inside("recipient")
        _write_agent(recipient, _addressed(metadata.recipient, aliases), aliases)
        recipient.put_kept("session_id", NAME)
        _write_routing(opened, target.inside("routing"))
    details = target.inside("metadata")
    details.put(
        "task_id", NAME, task_id or _task_in_data(opened, kind), absent=ANYTHING, omit=_own_task(kind, message_id)
    )
    if kind == "error":
        details.put("retryable", FLAG, opened.data.get("retryable"))
    if carry:
        details.put_plain(CARRIED, carried_text(message))
    return target.finish()


def _decode_carried(tree: dict[str, Any], metadata: dict[str, Any]) -> Foreign:
    pointer = f"/metadata/{CARRIED}"
    message = read_carried(metadata[CARRIED], pointer)
    rest = {**tree, "metadata": {name: value for name, value in metadata.items() if name != CARRIED}}
    said = encode(message)
    said.setdefault("metadata", {})
    check_same(said, rest, pointer)
    return foreign_of(message)


# --- the envelope -----------------------------------------------------------------------------------------------------


def _read_task(details: Source | None, notes: Notes, kind: str, message_id: str, defaults: Defaults) -> str | None:
    """Return the task: where a message of a task names none, the default, and else, if it may, its own id."""
    given = details.optional("task_id", NAME, omit=_own_task(kind, message_id)) if details is not None else None
    if given is not None or kind in ("error", "heartbeat"):
        return given
    if kind == "status_update" and defaults.task_id is None:
        raise DialectError("/metadata/task_id", shown(MISSING), NAME.expected)
    if defaults.task_id is None:
        return message_id
    notes.absent("/metadata/task_id")
    return defaults.task_id


def _own_task(kind: str, message_id: str) -> tuple[str, ...]:
    """Return the task ids that are not written: a task that nothing names has the id of its message."""
    return (message_id,) if kind in ("task_request", "task_response") else ()


def _task_in_data(opened: OpenedMessage, kind: str) -> str | None:
    field = {"status_update": "task_id", "error": "source_task_id"}.get(kind)
    return opened.data.get(field) if field is not None else None


def _read_sender(
    source: Source, defaults: Defaults, conversation_id: str, own: tuple[str | None, ...]
) -> tuple[Agent, str]:
    if not source.has("sender") and defaults.sender is not None:
        source.default_inside("sender")
        return defaults.sender, defaults.conversation_id or conversation_id
    part = source.inside("sender")
    agent = Agent(id=part.required("agent_id", NAME), framework=part.required("framework", _FRAMEWORK))
    given = part.optional("session_id", NAME, absent=conversation_id, omit=own)
    part.keep_rest()
    return agent, given


def _read_recipient(source: Source, defaults: Defaults) -> Agent:
    if not source.has("recipient") and defaults.recipient is not None:
        source.default_inside("recipient")
        return defaults.recipient
    part = source.inside("recipient")
    agent = Agent(id=part.required("agent_id", NAME), framework=part.required("framework", _FRAMEWORK))
    part.keep("session_id", NAME)
    part.keep_rest()
    return agent


class _RoutingRead:
    """What /routing says."""

    def __init__(self) -> None:
        self.lifetime_ms: int | None = None
        self.retry: ForeignRetry | None = None
        self.fallback: tuple[str, ...] = ()
        self.is_awaited = False


def _read_routing(source: Source, defaults: Defaults, recipient: Agent) -> _RoutingRead:
    read = _RoutingRead()
    if not source.has("routing") and defaults.lifetime_ms is not None:
        source.default_inside("routing")
        read.lifetime_ms = defaults.lifetime_ms
        return read
    part = source.inside("routing")
    read.lifetime_ms = part.required("timeout", DURATION, defaults.lifetime_ms)
    policy = part.inside("retry_policy")
    retries = policy.required("max_retries", _RETRIES)
    read.retry = ForeignRetry(max_attempts=retries + 1, backoff=policy.required("backoff", _BACKOFF))
    policy.keep_rest()
    read.fallback = tuple(part.keep("fallback_agents", _fallbacks(recipient.id)) or ())
    mode = part.optional("delivery_mode", _MODE, absent="async")
    if mode == "sync":
        part.notes.kept["/routing/delivery_mode"] = mode
        read.is_awaited = True
    part.keep_rest()
    return read


def _fallbacks(recipient: str | None) -> Form[Any]:
    """Make the form of 1 to 8 different ids without the recipient's; an empty list is none."""

    def read(value: Any) -> list[str]:
        agents: list[str] = LIST.read(value)
        if (
            len(agents) > _MOST_FALLBACKS
            or not all(isinstance(agent, str) and is_text_id(agent) and agent != recipient for agent in agents)
            or len(set(agents)) < len(agents)
        ):
            raise UnfitValueError
        return agents

    return Form(f"at most {_MOST_FALLBACKS} different agent ids without the recipient's", read)


def _write_agent(part: Target, agent: Agent, aliases: Mapping[str, str]) -> None:
    part.put("agent_id", NAME, aliases.get(agent.id or "", agent.id))
    part.put_plain("framework", _FRAMEWORK.written(agent.framework))


def _addressed(recipient: Agent | None, aliases: Mapping[str, str]) -> Agent:
    """Return the recipient; for a role or everybody, the agent that *aliases* name for it."""
    if recipient is not None and recipient.id is not None:
        return recipient
    group = f"role:{recipient.role}" if recipient is not None else "*"
    if group not in aliases:
        raise DialectError("/metadata/recipient", shown(MISSING), f"an agent, or an alias for {group}")
    return Agent(id=aliases[group])


def _write_routing(opened: OpenedMessage, part: Target) -> None:
    part.put("timeout", DURATION, opened.lifetime_ms, absent=ANYTHING)
    retry = opened.routing.retry or Retry().policy()
    policy = part.inside("retry_policy")
    policy.put("max_retries", _RETRIES, retry.max_attempts - 1)
    policy.put("backoff", _BACKOFF, retry.backoff)
    recipient = opened.metadata.recipient
    part.put_kept("fallback_agents", _fallbacks(recipient.id if recipient is not None else None))
    part.put_kept("delivery_mode", _MODE, "sync" if opened.routing.reply_to is not None else "async")


# --- the payloads -----------------------------------------------------------------------------------------------------


class _Reading:
    """What the payloads take from the rest of the message."""

    def __init__(self, notes: Notes, sender: str, sent_ms: int, task_id: str | None, details: Source | None) -> None:
        self.notes = notes
        self.sender = sender
        self.sent_ms = sent_ms
        self.task_id = task_id
        self.details = details

    def source(self, payload: Any) -> Source:
        """Return *payload* as an object to read."""
        if payload.__class__ is not dict:
            raise DialectError("/payload", shown(payload), OBJECT.expected)
        if not payload:
            self.notes.kept["/payload"] = {}
        return Source(payload, "/payload", self.notes, nulls=True)

    def derive(self, data: dict[str, Any], name: str, value: object) -> None:
        """Make up the required field *name*."""
        data[name] = value
        self.notes.derived.append(f"/{name}")


def _take(source: Source, data: dict[str, Any], names: Mapping[str, str]) -> None:
    """Take the members *names* of *source* into the fields of *data* that they map to."""
    for name, field in names.items():
        value = source.optional(name, VALUE)
        if value is not None:
            data[field] = value


_REQUEST: Final = {"task_type": "task_type", "goal": "goal", "acceptance_criteria": "acceptance_criteria"}


def _read_request(payload: Any, reading: _Reading) -> dict[str, Any]:
    if payload.__class__ is str and payload:
        reading.notes.kept["/payload"] = payload
        return {"goal": payload}
    source, data = reading.source(payload), dict[str, Any]()
    _take(source, data, _REQUEST)
    if "goal" not in data:
        if "task_type" not in data:
            raise source.fault("goal", MISSING, "a goal or a task_type")
        reading.derive(data, "goal", data["task_type"])
    if inputs := source.rest():
        data["inputs"] = inputs
    return data


def _write_request(opened: OpenedMessage, target: Target) -> bool:
    data = opened.data
    inputs = data.get("inputs", {})
    if not says_all(data, (*_REQUEST, "inputs")) or inputs.keys() & _REQUEST.keys():
        return False
    if data.keys() == {"goal"} and opened.kept.get("/payload") == data["goal"]:
        target.put_plain("payload", data["goal"])
        return True
    part = target.inside("payload")
    for name, field in _REQUEST.items():
        if name != "goal" or not opened.is_derived("/goal", data.get("task_type")):
            part.put(name, VALUE, data.get(field))
    for name, value in inputs.items():
        part.put_plain(name, value)
    return True


_RESPONSE: Final = {"status": "status", "summary": "summary", "error": "error"}
_FINDING: Final = {
    "message": "claim",
    "type": "type",
    "file": "file",
    "line": "line",
    "severity": "severity",
    "confidence": "confidence",
    "evidence_refs": "evidence_refs",
}
_STATUS: Final = one_of(("completed", "failed", "cancelled"))
_NO_ERROR: Final = {"code": "FAILED", "message": "failed"}


def _read_response(payload: Any, reading: _Reading) -> dict[str, Any]:
    source = reading.source(payload)
    data: dict[str, Any] = {"status": source.required("status", _STATUS)}
    _take(source, data, {"summary": "summary", "error": "error"})
    if data["status"] == "failed" and "error" not in data:
        reading.derive(data, "error", {**_NO_ERROR})
    if source.has("findings") and (findings := _read_findings(source)) is not None:
        data["findings"] = findings
    if output := source.rest():
        data["output"] = output
    return data


def _read_findings(source: Source) -> list[dict[str, Any]] | None:
    if source.peek("findings") is None:
        source.optional("findings", LIST)
        return None
    findings = []
    for item in source.items("findings"):
        finding: dict[str, Any] = {}
        _take(item, finding, _FINDING)
        item.keep_rest()
        findings.append(finding)
    return findings


def _write_response(opened: OpenedMessage, target: Target) -> bool:
    data = opened.data
    output, findings = data.get("output", {}), data.get("findings")
    if not says_all(data, (*_RESPONSE, "findings", "output")) or output.keys() & {*_RESPONSE, "findings"}:
        return False
    if any("message" in finding for finding in findings or ()):
        return False
    part = target.inside("payload")
    part.put("status", _STATUS, data["status"])
    part.put("summary", VALUE, data.get("summary"))
    if not opened.is_derived("/error", _NO_ERROR):
        part.put("error", VALUE, data.get("error"))
    part.put("findings", LIST, None) if findings is None else _write_findings(part, findings)
    for name, value in output.items():
        part.put_plain(name, value)
    return True


def _write_findings(part: Target, findings: list[dict[str, Any]]) -> None:
    for item, finding in zip(part.items("findings", len(findings)), findings, strict=True):
        for name, field in _FINDING.items():
            item.put(name, VALUE, finding.get(field))
        for name in finding.keys() - set(_FINDING.values()):
            item.put_plain(name, finding[name])


_UPDATE: Final = {"phase": "phase", "notes": "notes"}


def _read_percent(value: Any) -> int:
    if value.__class__ not in (int, float) or not 0 <= value <= 100:  # noqa: PLR2004 - percent
        raise UnfitValueError
    return int(value)


_PERCENT: Final = Form("a number from 0 to 100", _read_percent, lambda whole_percent: whole_percent)


def _read_update(payload: Any, reading: _Reading) -> dict[str, Any]:
    source = reading.source(payload)
    data: dict[str, Any] = {"task_id": reading.task_id}
    _take(source, data, _UPDATE)
    progress = source.optional("percent_complete", _PERCENT)
    if progress is not None:
        data["progress_pct"] = progress
    reading.derive(data, "new_status", "running")
    reading.derive(data, "timestamp", format_ms(reading.sent_ms))
    source.keep_rest()
    return data


def _write_update(opened: OpenedMessage, target: Target) -> bool:
    data = opened.data
    if not says_all(data, (*_UPDATE, "task_id", "progress_pct", "new_status", "timestamp")):
        return False
    if data["new_status"] != "running" or opened.metadata.task_id not in (None, data["task_id"]):
        return False
    part = target.inside("payload")
    for name, field in _UPDATE.items():
        part.put(name, VALUE, data.get(field))
    part.put("percent_complete", _PERCENT, data.get("progress_pct"))
    return True


def _read_details(value: Any) -> dict[str, Any]:
    return {"text": value} if value.__class__ is str else OBJECT.read(value)


def _write_details(details: dict[str, Any]) -> Any:
    return details["text"] if details.keys() == {"text"} and isinstance(details["text"], str) else details


_DETAILS: Final = Form("an object or a text", _read_details, _write_details)


def _read_error(payload: Any, reading: _Reading) -> dict[str, Any]:
    source = reading.source(payload)
    data: dict[str, Any] = {
        "error_code": source.required("code", TEXT),
        "error_message": source.required("message", TEXT),
    }
    reading.derive(data, "source_agent", reading.sender)
    reading.derive(data, "timestamp", format_ms(reading.sent_ms))
    details = source.optional("details", _DETAILS)
    if details is not None:
        data["details"] = details
    if reading.task_id is not None:
        data["source_task_id"] = reading.task_id
    if reading.details is not None:
        retryable = reading.details.optional("retryable", FLAG)
        if retryable is not None:
            data["retryable"] = retryable
    source.keep_rest()
    return data


def _write_error(opened: OpenedMessage, target: Target) -> bool:
    """Say an error; what only helps to read it, such as its severity, is left out."""
    part = target.inside("payload")
    part.put("code", TEXT, opened.data["error_code"])
    part.put("message", TEXT, opened.data["error_message"])
    part.put("details", _DETAILS, opened.data.get("details"))
    return True


_HEARTBEAT: Final = {"status": "status", "active_tasks": "active_tasks", "cpu": "cpu", "memory": "memory_mb"}


def _read_heartbeat(payload: Any, reading: _Reading) -> dict[str, Any]:
    source, data = reading.source(payload), dict[str, Any]()
    _take(source, data, _HEARTBEAT)
    source.keep_rest()
    return data


def _write_heartbeat(opened: OpenedMessage, target: Target) -> bool:
    if not says_all(opened.data, _HEARTBEAT.values()):
        return False
    part = target.inside("payload")
    for name, field in _HEARTBEAT.items():
        part.put(name, VALUE, opened.data.get(field))
    return True


_READERS: Final[dict[str, Callable[[Any, _Reading], dict[str, Any]]]] = {
    "task_request": _read_request,
    "task_response": _read_response,
    "status_update": _read_update,
    "error": _read_error,
    "heartbeat": _read_heartbeat,
}
_WRITERS: Final[dict[str, Callable[[OpenedMessage, Target], bool]]] = {
    "task_request": _write_request,
    "task_response": _write_response,
    "status_update": _write_update,
    "error": _write_error,
    "heartbeat": _write_heartbeat,
}
_TYPED_PLACES: Final[Places] = {"": "/payload/data"}
# A field that is not named here has the name of its member.
_PLACES: Final[dict[str, Places]] = {
    "task_request": {"": "/payload", "/inputs": "/payload"},
    "task_response": {"": "/payload", "/output": "/payload", "/findings/*/claim": "/payload/findings/*/message"},
    "status_update": {"": "/payload", "/progress_pct": "/payload/percent_complete", "/task_id": "/metadata/task_id"},
    "error": {
        "": "/payload",
        "/error_code": "/payload/code",
        "/error_message": "/payload/message",
        "/retryable": "/metadata/retryable",
        "/source_task_id": "/metadata/task_id",
    },
    "heartbeat": {"": "/payload", "/memory_mb": "/payload/memory"},
}


def _write_payload(opened: OpenedMessage, target: Target) -> str:
    """Write the payload; return the kind of the message."""
    metadata = opened.metadata
    kind = _KINDS.get(metadata.message_type)
    if kind is not None and _WRITERS[kind](opened, target):
        return kind
    target.put_plain("payload", write_typed(metadata.message_type, metadata.schema_version, opened.data))
    return "task_request" if opened.is_directive(BUILT_IN) else "task_response"
