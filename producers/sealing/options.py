"""The options of a message besides its payload, and the layers they give. Pure.

Owns the options of `publish` and their defaults: inheritance from a cause, lifetime, key, hops. Time, ids and default
values are arguments. `bus.protocol.envelope_rules` checks forms and ranges when the message is sealed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from datetime import datetime
from enum import Enum
from typing import TypedDict, TypeVar, get_args

import msgspec

from bus.errors import ContractError
from bus.gates import HOPS_LIMIT
from bus.nearest import nearest
from bus.payloads.class_forms import Payload
from bus.payloads.envelope_terms import NO_TERMS
from bus.payloads.payload_types import PayloadType, raised_risk
from bus.protocol.envelope import (
    PROTOCOL,
    Agent,
    Authority,
    Link,
    Metadata,
    OtherVersion,
    Performative,
    RetryPolicy,
    Routing,
    Security,
)
from bus.protocol.identifiers import is_traceparent
from bus.protocol.sealing import Message
from bus.protocol.timestamps import format_ms
from bus.retry import Retry

__all__ = [
    "DEFAULT_MAX_HOPS",
    "LAST_MS",
    "PRIORITIES",
    "Outgoing",
    "EnvelopeLayers",
    "Options",
    "PairedOutgoing",
    "PublisherIdentity",
    "RequestOptions",
    "asked_hops",
    "check_struct",
    "compose",
    "default_ttl_s",
    "outgoing_of",
    "hop_limit",
    "is_traced",
]

PRIORITIES = {"low": 2, "normal": 5, "medium": 5, "high": 7, "critical": 9}
DEFAULT_MAX_HOPS = 16
"""The hops receivers accept for a message without `max_hops`."""
_Text = TypeVar("_Text", str, str | None)
_MAX_TRACESTATE = 512
LAST_MS = 253_402_300_799_999
"""9999-12-31T23:59:59.999Z, the last time that can be written."""


class RequestOptions(TypedDict, total=False):
    """Keyword options of `request`, all optional. The bus sets lifetime and reply address."""

    to: str | Agent | Sequence[str]
    """The only agent that handles it, by id; `Agent(role="reviewer")`: those of a role. By default every group that
    subscribes to the type. A request may name several ids, which are asked in turn.
    """
    key: str
    """Messages of one key are handled in the order of their offsets. By default the conversation."""
    idempotency_key: str
    """Each group handles it once, however often it is published: repeats are answered with the first outcome."""
    priority: int | str
    """0 to 9, or "low", "normal", "high", "critical": waiting messages of a worker start in this order. By default
    5."""
    retry: Retry
    """A shorter retry than the handler's own: `Retry(attempts=2)`. By default the handler's."""
    max_hops: int
    """Maximum hops of the chain in which one message causes the next. By default its cause's, else 16; at most 64."""
    conversation_id: str
    """The conversation it belongs to. By default its cause's, else its own id."""
    correlation_id: str
    """The request or workflow it belongs to. By default its cause's, else the cause's id."""
    task_id: str
    """The task it belongs to. By default its cause's."""
    parent_task_id: str
    """The task that its task is a part of. By default its cause's."""
    run_id: str
    """The run of a program that it belongs to. By default its cause's."""
    sequence: int
    """Its number, 0 or more, among its sender's messages in the conversation."""
    intent: str
    """The purpose of the message, in words for people: at most 200 characters."""
    performative: Performative
    """The kind of speech act, such as "request", "inform" or "propose"."""
    authority: Authority
    """The permissions that it gives its receiver."""
    security: Security
    """How far its content can be trusted, by its sender's own account, which is an upper bound."""
    critical_fields: tuple[str, ...]
    """Fields (JSON pointers, such as "/data/cents") that receivers must understand, or else refuse the message."""
    traceparent: str
    """The trace it belongs to, in the form of W3C Trace Context. By default its cause's."""
    tracestate: str
    """The `tracestate` of W3C Trace Context. By default its cause's."""
    message_id: str
    """Its id. By default a new one; receivers take two messages of one id for one message."""
    rests_on: tuple[Message, ...]
    """Further messages, besides its cause, that it follows from: its proof names them. In handlers only."""


class Options(RequestOptions, total=False):
    """Keyword options of `publish`, all optional. Durations are seconds."""

    ttl_s: float
    """Seconds until it expires: a message not handled by then is dead-lettered. By default `publish.ttl_s`."""
    reply_to: str
    """The topic for answers, `NAMESPACE._reply.AGENT`; `request` sets it, and waits for them."""
    delay_s: float
    """Seconds before which no handler gets it: it waits in the log, in each group's retry tiers, and never runs early.

    Its lifetime begins after them.
    """
    at: datetime
    """The same as a time with a time zone; one that has passed delays nothing."""


class _Subject(msgspec.Struct, frozen=True):
    # A base of its own, so that the payload is given by position and the options by name.
    payload: Payload


class Outgoing(_Subject, frozen=True, kw_only=True):
    """A payload with options of its own, for `publish_many` and for the result of a handler.

        messages = (Outgoing(Order(number=n), key=f"customer-{n % 7}", ttl_s=600) for n in range(1000))
        async for result in bus.publish_many(messages): ...

    The options are those of `publish`; None means not given.
    """

    to: str | Agent | None = None
    key: str | None = None
    ttl_s: float | None = None
    idempotency_key: str | None = None
    priority: int | str | None = None
    retry: Retry | None = None
    reply_to: str | None = None
    max_hops: int | None = None
    conversation_id: str | None = None
    correlation_id: str | None = None
    task_id: str | None = None
    parent_task_id: str | None = None
    run_id: str | None = None
    sequence: int | None = None
    intent: str | None = None
    performative: Performative | None = None
    authority: Authority | None = None
    security: Security | None = None
    critical_fields: tuple[str, ...] | None = None
    traceparent: str | None = None
    tracestate: str | None = None
    message_id: str | None = None
    rests_on: tuple[Message, ...] = ()
    delay_s: float | None = None
    at: datetime | None = None


class PairedOutgoing(Outgoing, frozen=True, kw_only=True):
    """A payload that is sent in another version of its type, too."""

    other_version: OtherVersion


_NAMES = (*Outgoing.__struct_fields__[1:], "timeout_s")


def outgoing_of(payload: Payload, options: Mapping[str, object]) -> Outgoing:
    """Return *payload* with *options*; raise TypeError for an unknown one, naming the nearest."""
    try:
        return Outgoing(payload, **options)  # type: ignore[arg-type]
    except TypeError:
        unknown = next((name for name in options if name not in _NAMES), None)
        if unknown is None:
            raise
    raise TypeError(f"no option {unknown!r}{nearest(unknown, _NAMES)}; a message's content is its payload's")


class PublisherIdentity(msgspec.Struct, frozen=True, kw_only=True):
    """The publishing agent, its namespace and its limits. Durations are seconds."""

    sender: Agent
    namespace: str
    ttl_s: float
    max_ttl_s: float
    max_hops: int = HOPS_LIMIT
    high_risk: tuple[str, ...] = ()
    """Types whose risk the settings raise to high."""


class EnvelopeLayers(msgspec.Struct, frozen=True):
    """The arguments of `bus.protocol.sealing.seal` besides the data."""

    metadata: Metadata
    routing: Routing
    parents: tuple[str, ...]
    proof_chain: tuple[Link, ...]


_STRINGS = (
    "key",
    "idempotency_key",
    "reply_to",
    "conversation_id",
    "correlation_id",
    "task_id",
    "parent_task_id",
    "run_id",
    "intent",
    "performative",
    "traceparent",
    "tracestate",
    "message_id",
)
_COUNTS = ("max_hops", "sequence")
_STRUCTS: dict[str, type[msgspec.Struct]] = {"authority": Authority, "security": Security}
_MAX_ATTEMPTS = 100


def compose(
    draft: Outgoing,
    kind: PayloadType,
    origin: PublisherIdentity,
    *,
    now_ms: int,
    message_id: str,
    cause: Message | None = None,
    answers: bool = False,
) -> EnvelopeLayers:
    """Return the layers of *draft*, caused by *cause*; *answers* says that it answers *cause*.

    Raises ContractError, which names the option.
    """
    _check_types(draft)
    draft = _completed(draft, kind, origin)
    identity = _chosen(draft.message_id, message_id)
    not_before_ms = _not_before_ms(draft, now_ms)
    if not_before_ms is not None:
        # A receiver that does not know the member must not run the message early.
        critical = dict.fromkeys((*(draft.critical_fields or ()), "/routing/not_before"))
        draft = msgspec.structs.replace(draft, critical_fields=tuple(critical))
    return EnvelopeLayers(
        _compose_metadata(draft, kind, origin, now_ms=now_ms, message_id=identity, cause=cause, answers=answers),
        _compose_routing(draft, origin, now_ms=now_ms, not_before_ms=not_before_ms, message_id=identity, cause=cause),
        _parents(draft, cause),
        cause.chain_for_children() if cause is not None and raised_risk(kind, origin.high_risk) != "low" else (),
    )


def default_ttl_s(kind: PayloadType, origin: PublisherIdentity) -> float:
    """Return the lifetime in seconds of a message of *kind* whose publisher gives none."""
    return origin.ttl_s if kind.terms.ttl_s is None else min(kind.terms.ttl_s, origin.max_ttl_s)


def _completed(draft: Outgoing, kind: PayloadType, origin: PublisherIdentity) -> Outgoing:
    """Return *draft* with missing options filled in from its type or its data."""
    terms, payload = kind.terms, draft.payload
    if terms is NO_TERMS:
        return draft
    options: dict[str, object] = {
        name: value
        for name in terms.options_from
        if getattr(draft, name) is None and (value := terms.option(name, payload)) is not None
    }
    if "ttl_s" in options:
        options["ttl_s"] = min(terms.option("ttl_s", payload), origin.max_ttl_s)
    elif draft.ttl_s is None:
        options["ttl_s"] = default_ttl_s(kind, origin)
    if draft.performative is None and (spoken := terms.spoken(payload)) is not None:
        options["performative"] = spoken
    if terms.critical and (widening := kind.critical_of(payload)):
        options["critical_fields"] = tuple(dict.fromkeys((*(draft.critical_fields or ()), *widening)))
    return msgspec.structs.replace(draft, **options) if options else draft


def _compose_metadata(
    draft: Outgoing,
    kind: PayloadType,
    origin: PublisherIdentity,
    *,
    now_ms: int,
    message_id: str,
    cause: Message | None,
    answers: bool,
) -> Metadata:
    before = cause.metadata if cause else None
    traced = before is not None and is_traced(before)
    return Metadata(
        authority=draft.authority,
        causation_id=before.message_id if before else None,
        conversation_id=_conversation(draft, cause, message_id),
        correlation_id=_chosen(draft.correlation_id, _correlation(before, answers=answers)),
        critical_fields=draft.critical_fields,
        hops=before.hops + 1 if before else 0,
        intent=draft.intent,
        message_id=message_id,
        message_type=kind.name,
        namespace=origin.namespace,
        other_version=draft.other_version if isinstance(draft, PairedOutgoing) else None,
        parent_task_id=_chosen(draft.parent_task_id, before.parent_task_id if before else None),
        performative=draft.performative,
        protocol=PROTOCOL,
        recipient=Agent(id=draft.to) if isinstance(draft.to, str) else draft.to,
        run_id=_chosen(draft.run_id, before.run_id if before else None),
        schema_version=kind.version,
        security=draft.security,
        sender=origin.sender,
        sequence=draft.sequence,
        task_id=_chosen(draft.task_id, before.task_id if before else None),
        timestamp=format_ms(now_ms),
        traceparent=draft.traceparent or (before.traceparent if before and traced else None),
        tracestate=draft.tracestate or (before.tracestate if before and traced else None),
    )


def is_traced(before: Metadata) -> bool:
    """Tell whether the cause's trace is continued; a malformed or oversized foreign trace is ignored."""
    return (
        before.traceparent is not None
        and is_traceparent(before.traceparent)
        and len(before.tracestate or "") <= _MAX_TRACESTATE
    )


def _compose_routing(
    draft: Outgoing,
    origin: PublisherIdentity,
    *,
    now_ms: int,
    not_before_ms: int | None,
    message_id: str,
    cause: Message | None,
) -> Routing:
    ttl_s = draft.ttl_s if draft.ttl_s is not None else origin.ttl_s
    if not 0 < ttl_s <= origin.max_ttl_s:
        raise ContractError(f"{ttl_s} s is not more than 0 and at most {origin.max_ttl_s:.0f} s", "ttl_s")
    # At least 1 ms: a positive lifetime below a millisecond still counts.
    expires_ms = (not_before_ms or now_ms) + max(1, round(ttl_s * 1000))
    if not_before_ms is not None and expires_ms - now_ms > origin.max_ttl_s * 1000:
        raise ContractError(
            f"the delay and the lifetime of {ttl_s:g} s behind it are more than {origin.max_ttl_s:.0f} s together",
            "delay_s" if draft.at is None else "at",
        )
    if expires_ms > LAST_MS:
        raise ContractError("the message would expire after the year 9999", "ttl_s")
    max_hops = draft.max_hops if draft.max_hops is not None else (cause.routing.max_hops if cause else None)
    if cause is not None:
        hops = cause.metadata.hops + 1
        max_hops = asked_hops(max_hops, hops, origin.max_hops)
        if hops > hop_limit(max_hops, origin.max_hops):
            raise ContractError(f"{hops} hops: receivers would refuse it as a loop", "/metadata/hops")
    conversation_id = _conversation(draft, cause, message_id)
    return Routing(
        expires_at=format_ms(expires_ms),
        idempotency_key=draft.idempotency_key,
        key=draft.key if draft.key != conversation_id else None,
        max_hops=max_hops,
        not_before=None if not_before_ms is None else format_ms(not_before_ms),
        priority=_priority(draft.priority),
        reply_to=draft.reply_to,
        retry=_retry(draft.retry),
    )


def _retry(retry: Retry | None) -> RetryPolicy | None:
    if retry is None:
        return None
    if retry.attempts > _MAX_ATTEMPTS:
        raise ContractError(f"{retry.attempts} attempts; a message asks for at most {_MAX_ATTEMPTS}", "retry")
    return retry.policy()


def _not_before_ms(draft: Outgoing, now_ms: int) -> int | None:
    """Return the time before which the message must not run; None where it may run at once."""
    if draft.at is not None:
        if draft.delay_s is not None:
            raise ContractError("give delay_s or at, not both", "at")
        if draft.at.tzinfo is None:
            raise ContractError("has no time zone: write datetime(..., tzinfo=UTC)", "at")
        not_before_ms = math.ceil(draft.at.timestamp() * 1000)
    else:
        delay_s = draft.delay_s or 0
        if not 0 <= delay_s < math.inf:
            raise ContractError(f"{delay_s} s is not 0 or more", "delay_s")
        not_before_ms = now_ms + math.ceil(delay_s * 1000)
    return not_before_ms if not_before_ms > now_ms else None


def _conversation(draft: Outgoing, cause: Message | None, message_id: str) -> str:
    return _chosen(draft.conversation_id, cause.metadata.conversation_id if cause else message_id)


def _chosen(option: _Text | None, otherwise: _Text) -> _Text:
    """Return *option* if given, even empty: sealing refuses an empty one instead of replacing it."""
    return otherwise if option is None else option


def _correlation(before: Metadata | None, *, answers: bool) -> str | None:
    if before is None:
        return None
    return before.message_id if answers else before.correlation_id or before.message_id


def _parents(draft: Outgoing, cause: Message | None) -> tuple[str, ...]:
    if draft.rests_on and cause is None:
        raise ContractError("a first message rests on nothing; publish it from the handler of its cause", "rests_on")
    seals = ((cause.seal,) if cause else ()) + tuple(message.seal for message in draft.rests_on)
    return tuple(dict.fromkeys(seals))


def _priority(priority: int | str | None) -> int | None:
    if isinstance(priority, str):
        if priority not in PRIORITIES:
            raise ContractError(f"{priority!r} is none of {', '.join(PRIORITIES)}", "priority")
        return PRIORITIES[priority]
    return priority


def _check_types(draft: Outgoing) -> None:
    """Check the options' types: a Struct's constructor does not, and a wrong value would be sealed."""
    for name in _STRINGS:
        value = getattr(draft, name)
        if value is not None and not _is_text(value):
            raise ContractError(f"is a {type(value).__name__}, not text", name)
    for name in _COUNTS:
        value = getattr(draft, name)
        if value is not None and value.__class__ is not int:
            raise ContractError(f"is a {type(value).__name__}, not an integer", name)
    if draft.ttl_s is not None and (isinstance(draft.ttl_s, bool) or not isinstance(draft.ttl_s, int | float)):
        raise ContractError(f"is a {type(draft.ttl_s).__name__}, not seconds", "ttl_s")
    if draft.delay_s is not None and draft.delay_s.__class__ not in (int, float):
        raise ContractError(f"is a {type(draft.delay_s).__name__}, not seconds", "delay_s")
    if draft.at is not None and not isinstance(draft.at, datetime):
        raise ContractError(f"is a {type(draft.at).__name__}, not a datetime", "at")
    if draft.priority is not None and draft.priority.__class__ not in (int, str):
        raise ContractError("is neither 0 to 9 nor a name", "priority")
    if draft.performative is not None and draft.performative not in get_args(Performative):
        raise ContractError(f"{draft.performative!r} is none of {', '.join(get_args(Performative))}", "performative")
    _check_structs(draft)


def _is_text(value: object) -> bool:
    """Tell whether msgspec writes *value* as a string; it refuses str subclasses other than enums."""
    return value.__class__ is str or (isinstance(value, str) and isinstance(value, Enum))


def _check_structs(draft: Outgoing) -> None:
    retry: object = draft.retry
    if retry is not None and not isinstance(retry, Retry):
        raise ContractError(
            f"is {type(retry).__name__} {retry!r:.80}, no Retry: write retry=Retry(attempts=3)", "retry"
        )
    for name, cls in _STRUCTS.items():
        value = getattr(draft, name)
        if value is not None:
            check_struct(value, cls, name)
    if isinstance(draft.to, Agent):
        check_struct(draft.to, Agent, "to")
    elif draft.to is not None and not _is_text(draft.to):
        raise ContractError("is neither an agent id nor an Agent", "to")
    fields = draft.critical_fields
    if fields is not None and not (
        isinstance(fields, tuple | list) and all(isinstance(pointer, str) for pointer in fields)
    ):
        raise ContractError("must be a tuple of strings", "critical_fields")


def hop_limit(max_hops: int | None, own_limit: int) -> int:
    """Return how many hops receivers accept for a message with *max_hops*, in a namespace that allows *own_limit*."""
    return min(own_limit, DEFAULT_MAX_HOPS if max_hops is None else max_hops)


def asked_hops(max_hops: int | None, hops: int, own_limit: int) -> int | None:
    """Return the `max_hops` of a message with *hops*, whose sender or cause gave *max_hops*.

    Beyond the default limit, a message without one asks for all hops its namespace allows.
    """
    return own_limit if max_hops is None and hops > DEFAULT_MAX_HOPS else max_hops


def check_struct(value: object, cls: type[msgspec.Struct], name: str) -> None:
    """Raise ContractError naming *name* unless *value* is a *cls* with fields of the right types."""
    if not isinstance(value, cls):
        raise ContractError(f"is a {type(value).__name__}, no {cls.__name__}", name)
    try:
        msgspec.convert(msgspec.to_builtins(value), cls)
    except (msgspec.ValidationError, TypeError) as error:
        raise ContractError(str(error), name) from error
