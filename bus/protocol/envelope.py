"""The envelope of protocol `sealbus/1`: frozen Structs of its layers (PROTOCOL.md section 1).

Owns the fields, their types and their order; fields are sorted, so that encoding a Struct gives its canonical form.
`bus.protocol.envelope_rules` owns the rules between fields, `bus.protocol.sealing` hashing and sealing. Absent optional
fields are None and never written as null. Unknown fields of metadata and routing exist only in the sealed bytes.
"""

from __future__ import annotations

from typing import Any, Final, Literal, TypeAlias

import msgspec

from bus import native
from bus.protocol.canonical import MAX_DEPTH

__all__ = [
    "DATA_DEPTH",
    "DATA_ROOM",
    "LINKS",
    "PROGRESS_TYPES",
    "PROTOCOL",
    "Addressee",
    "Agent",
    "AgentType",
    "Authority",
    "Link",
    "Metadata",
    "OtherVersion",
    "Performative",
    "RetryPolicy",
    "Routing",
    "Security",
    "Statement",
    "Verification",
]

PROTOCOL = "sealbus/1"
DATA_DEPTH = 2
"""The nesting depth of the data within the envelope."""
DATA_ROOM = MAX_DEPTH + 1 - DATA_DEPTH
"""The number of nesting levels the data may have."""

PROGRESS_TYPES: Final = frozenset({"task.accepted", "task.clarification", "status.update", "task.artifact"})
"""The message types that are progress wherever they come as replies."""

AgentType: TypeAlias = Literal["agent", "human", "service", "bus"]
Performative: TypeAlias = Literal[
    "request",
    "inform",
    "propose",
    "accept",
    "reject",
    "query",
    "confirm",
    "error",
    "call_for_proposal",
    "subscribe",
    "cancel",
]
BackoffKind: TypeAlias = Literal["constant", "linear", "exponential"]


class _Layer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """A part of the envelope that keeps and ignores unknown members."""


class _Closed(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True, gc=False):
    """A part of the envelope that refuses unknown members."""


class Agent(_Layer, frozen=True, kw_only=True):
    """A sender (*id* required) or a recipient (an *id* or a *role*).

        async with connect(url, agent=Agent(id="planner@svc", type="service", version="2.1.0")) as bus:
            await bus.publish(order, to=Agent(role="reviewer"))

    An id alone may be given as a string: `to="planner@svc"`. If a recipient has both, the *id* decides. Strings have 1
    to 256 characters; fields that are None are absent from the message. *session_id* is one running instance: `request`
    sets it.
    """

    framework: str | None = None
    host: str | None = None
    id: str | None = None
    role: str | None = None
    session_id: str | None = None
    type: AgentType | None = None
    version: str | None = None


class Authority(_Layer, frozen=True, kw_only=True):
    """The permissions that a message gives its receiver.

        await bus.publish(task, authority=Authority(can_read=("repo/*",), cannot_execute=("git push",)))

    Sender and receiver define the meaning of the entries. The bus seals them, at most 1 KiB, and ensures that they only
    narrow from cause to effect. A handler reads them in `context.message.metadata.authority`. None means not given.
    """

    can_execute: tuple[str, ...] | None = None
    can_read: tuple[str, ...] | None = None
    can_write: tuple[str, ...] | None = None
    cannot_execute: tuple[str, ...] | None = None
    decision_right: str | None = None
    max_side_effect: str | None = None
    requires_human_approval: tuple[str, ...] | None = None


class Security(_Layer, frozen=True, kw_only=True):
    """The sender's own trust claim, which is an upper bound.

        await bus.publish(page, security=Security(trust_level="untrusted_content", contains_untrusted_content=True))

    Any string is a valid *trust_level*; one that PROTOCOL.md does not list counts as the least trusted. None means not
    given.
    """

    contains_untrusted_content: bool | None = None
    data_classification: str | None = None
    policy_tags: tuple[str, ...] | None = None
    trust_level: str | None = None


class OtherVersion(_Layer, frozen=True, kw_only=True):
    """The same message in another version of its type; a reader takes one of the two."""

    content_hash: str | None = None
    """The content hash of the older version; set only in the newer one."""
    schema_version: str


class Metadata(_Layer, frozen=True, kw_only=True):
    """Identity, causality and trust; for every reader."""

    authority: Authority | None = None
    causation_id: str | None = None
    conversation_id: str
    correlation_id: str | None = None
    critical_fields: tuple[str, ...] | None = None
    hops: int
    intent: str | None = None
    message_id: str
    message_type: str
    namespace: str
    other_version: OtherVersion | None = None
    parent_task_id: str | None = None
    performative: Performative | None = None
    protocol: str
    recipient: Agent | None = None
    run_id: str | None = None
    schema_version: str
    security: Security | None = None
    sender: Agent
    sequence: int | None = None
    task_id: str | None = None
    timestamp: str
    traceparent: str | None = None
    tracestate: str | None = None


class RetryPolicy(_Layer, frozen=True, kw_only=True):
    """The retries that a message requests, limited by its group. All four members are given together."""

    backoff: BackoffKind
    base_ms: int
    cap_ms: int
    max_attempts: int


class Routing(_Layer, frozen=True, kw_only=True):
    """Delivery data, read by the bus."""

    accepts_progress: bool | None = None
    """Whether its sender takes progress at `reply_to`."""
    expires_at: str
    idempotency_key: str | None = None
    key: str | None = None
    max_hops: int | None = None
    not_before: str | None = None
    priority: int | None = None
    progress: bool | None = None
    """Whether it is progress of the request that it answers, and not its answer."""
    reply_to: str | None = None
    retry: RetryPolicy | None = None


class Addressee(_Closed, frozen=True, kw_only=True):
    """The recipient that a statement names: an *id* or a *role*, never both."""

    id: str | None = None
    role: str | None = None


class Statement(_Closed, frozen=True, kw_only=True):
    """The object that a seal hashes and a signature signs. It binds every layer and, through *parents*, all history."""

    authority: dict[str, Any] | None = None
    """The sealed object, unknown members included."""
    content_hash: str
    data_classification: str | None = None
    envelope_hash: str
    hops: int
    links: int | None = None
    message_id: str
    message_type: str
    namespace: str
    parents: tuple[str, ...] | None = None
    protocol: str
    recipient: Addressee | None = None
    sender: str
    timestamp: str
    trust_level: str | None = None


class Link(_Closed, frozen=True, kw_only=True):
    """One ancestor carried in a proof chain."""

    signature: str | None = None
    statement: Statement


LINKS: Final = native.Links(Link, Statement, Addressee)
"""Proves that chains are well-formed and valid; chains it cannot prove are checked by the exact rules."""


class Verification(_Closed, frozen=True, kw_only=True):
    """Hashes, history and signature, read by the gates."""

    content_hash: str
    parents: tuple[str, ...] | None = None
    proof_chain: tuple[Link, ...] | None = None
    seal: str
    signature: str | None = None
