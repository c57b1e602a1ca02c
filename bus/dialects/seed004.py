"""Dialect 004: tasks, status, errors and heartbeats between agents of different frameworks. Pure.

Owns the table of that format. Unknown members are kept, and an optional member may be null.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from bus.dialects.carried_message import CARRIED, carried_text, check_same, foreign_of, read_carried
from bus.dialects.data_check import check_data, default_lifetime_ms, known_kind
from bus.dialects.faults import MISSING, shown
from bus.dialects.foreign import NO_ALIASES, NONE, Claims, Defaults, Foreign, ForeignOptions, ForeignRetry
from bus.dialects.forms import (
    DURATION,
    FLAG,
    LAST_MS,
    LIST,
    MESSAGE_ID,
    NAME,
    OBJECT,
    TIME,
    VALUE,
    Form,
    UnfitValueError,
    choice,
    one_of,
    whole,
)
from bus.dialects.keeping import ABSENT, ANYTHING, ANYTHING_OR_NULL, Notes, Source, Target
from bus.dialects.opened_message import OpenedMessage, addressed_id, open_message
from bus.dialects.seed004_payloads import (
    KINDS,
    PLACES,
    READERS,
    TYPED_PLACES,
    TYPES,
    MessageRest,
    task_in_data,
    write_payload,
)
from bus.dialects.strict_json import read_object
from bus.dialects.typed_content import read_typed
from bus.errors import DialectError
from bus.payloads.payload_types import Registry
from bus.protocol.envelope import Agent
from bus.protocol.identifiers import is_text_id
from bus.protocol.sealing import Message
from bus.retry import Retry
from bus.vocabulary import BUILT_IN

__all__ = ["decode", "encode"]

_NAME: Final = "004"
_OWN_FRAMEWORK: Final = "sealbus"
"""What an agent without a framework is said to have."""
_MOST_FALLBACKS: Final = 8
_WITH_OWN_TASK: Final = ("task_request", "task_response")


def _write_priority(priority: int) -> str:
    if priority <= 3:  # noqa: PLR2004 - the bounds of the table
        return "low"
    if priority <= 6:  # noqa: PLR2004
        return "medium"
    return "high" if priority <= 8 else "critical"  # noqa: PLR2004


_KIND: Final = one_of(tuple(TYPES))
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
        return _decode_carried(tree, metadata, types)
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
        if typed.kind.name in KINDS:
            notes.kept["/payload/type"] = typed.name
        type_, version, data, places = typed.kind, typed.version, typed.data, TYPED_PLACES
    else:
        type_, version = known_kind(types, TYPES[kind]), ""
        rest = MessageRest(notes, sender.id or "", sent_ms, task_id, details)
        data, places = READERS[kind](payload, rest), PLACES[kind]
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


def encode(
    message: Message, *, aliases: Mapping[str, str] = NO_ALIASES, carry: bool = False, types: Registry = BUILT_IN
) -> dict[str, Any]:
    """Say *message* in dialect 004; raise DialectError for one without a recipient that could be named.

    *aliases*: agent ids of ours -> ids there; `role:<role>` and `*` name a role and everybody.
    """
    opened = open_message(message, _NAME, types)
    metadata, routing = opened.metadata, opened.routing
    target = Target(opened.kept, is_open=True, nulls=True)
    kind = write_payload(opened, target)
    target.put_plain("message_type", kind)
    target.put("message_id", MESSAGE_ID, metadata.message_id, absent=ANYTHING)
    target.put("timestamp", TIME, opened.sent_ms, absent=ANYTHING)
    target.put("priority", _PRIORITY, 5 if routing.priority is None else routing.priority)
    task_id, message_id = metadata.task_id, metadata.message_id
    sender = target.inside("sender", may_lack=True)
    sender.put("agent_id", NAME, aliases.get(metadata.sender.id or "", metadata.sender.id))
    sender.put_plain("framework", _FRAMEWORK.written(metadata.sender.framework))
    own = (None, task_id, message_id)
    sender.put("session_id", NAME, metadata.conversation_id, absent=task_id or message_id, omit=own)
    if kind == "heartbeat":
        for name in ("recipient", "routing"):
            target.put_kept(name, OBJECT)
    else:
        recipient = target.inside("recipient", may_lack=True)
        recipient.put("agent_id", NAME, addressed_id(metadata.recipient, aliases))
        framework = metadata.recipient.framework if metadata.recipient is not None else None
        recipient.put_plain("framework", _FRAMEWORK.written(framework))
        recipient.put_kept("session_id", NAME)
        _write_routing(opened, target.inside("routing", may_lack=True))
    details = target.inside("metadata")
    _write_task(opened, kind, details)
    if kind == "error":
        details.put("retryable", FLAG, opened.data.get("retryable"))
    # A kept member must not stand for the sealed message.
    details.names.add(CARRIED)
    if carry:
        details.put_plain(CARRIED, carried_text(message))
    return target.finish()


def _decode_carried(tree: dict[str, Any], metadata: dict[str, Any], types: Registry) -> Foreign:
    pointer = f"/metadata/{CARRIED}"
    message = read_carried(metadata[CARRIED], pointer)
    rest = {**tree, "metadata": {name: value for name, value in metadata.items() if name != CARRIED}}
    said = encode(message, types=types)
    said["metadata"] = said.get("metadata") or {}
    check_same(said, rest, pointer)
    return foreign_of(message)


# --- the envelope -----------------------------------------------------------------------------------------------------


def _read_task(details: Source | None, notes: Notes, kind: str, message_id: str, defaults: Defaults) -> str | None:
    """Return the task: of a request or response that names none, its own id; of a status update, the default."""
    given = details.optional("task_id", NAME, omit=_own_task(kind, message_id)) if details is not None else None
    if given is not None or kind in ("error", "heartbeat"):
        return given
    if kind in _WITH_OWN_TASK:
        return message_id
    if defaults.task_id is None:
        raise DialectError("/metadata/task_id", shown(MISSING), NAME.expected)
    notes.kept.setdefault("/metadata/task_id", ABSENT)
    return defaults.task_id


def _own_task(kind: str, message_id: str) -> tuple[str, ...]:
    """Return the task ids that are not written: a task that nothing names has the id of its message."""
    return (message_id,) if kind in _WITH_OWN_TASK else ()


def _write_task(opened: OpenedMessage, kind: str, details: Target) -> None:
    message_id = opened.metadata.message_id
    absent = message_id if kind in _WITH_OWN_TASK else ANYTHING_OR_NULL if kind == "status_update" else None
    task_id = opened.metadata.task_id or task_in_data(opened, kind)
    details.put("task_id", NAME, task_id, absent=absent, omit=_own_task(kind, message_id))


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


def _write_routing(opened: OpenedMessage, part: Target) -> None:
    part.put("timeout", DURATION, opened.lifetime_ms, absent=ANYTHING)
    retry = opened.routing.retry or Retry().policy()
    policy = part.inside("retry_policy")
    policy.put("max_retries", _RETRIES, retry.max_attempts - 1)
    policy.put("backoff", _BACKOFF, retry.backoff)
    recipient = opened.metadata.recipient
    part.put_kept("fallback_agents", _fallbacks(recipient.id if recipient is not None else None))
    part.put_kept("delivery_mode", _MODE, "sync" if opened.routing.reply_to is not None else "async")
