"""Agents: cards, greeting, discovery, presence."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from bus.payloads.payload_types import payload
from bus.payloads.rules import Has, Is, Rule, when
from bus.vocabulary.forms import Code, Count, Flag, Name, Number, Text, Type, TypeRange, Value
from bus.vocabulary.parts import AgentCard, AgentInfo


class Filters(Value, frozen=True, kw_only=True):
    """Which agents are asked for."""

    status: Literal["healthy", "unhealthy", "all"] = "all"
    max_results: Annotated[int, Meta(ge=1, le=100)] = 100


@payload(
    "agent.handshake",
    version="1.0.0",
    performative="inform",
    ttl_s=86400,
    must_match={"/agent_card/agent_id": "/metadata/sender/id"},
    side_effect="none",
)
class AgentHandshake(Value, frozen=True, kw_only=True):
    """An agent at its start: to `_directory`, or to one agent that wants an answer.

    The key of the record is the agent id; sender.id equals agent_card.agent_id.
    """

    agent_card: AgentCard


@payload(
    "agent.handshake-ack",
    version="1.0.0",
    performative="confirm",
    ttl_s=3600,
    side_effect="none",
    rules=(
        Rule("accepted needs an agent_card", "/agent_card", when(Is("accepted", (True,)), Has("agent_card"))),
        Rule("accepted needs a protocol", "/protocol", when(Is("accepted", (True,)), Has("protocol"))),
        Rule("not accepted needs a reason_code", "/reason_code", when(Is("accepted", (False,)), Has("reason_code"))),
    ),
)
class AgentHandshakeAck(Value, frozen=True, kw_only=True):
    """The greeted one."""

    accepted: Flag
    agent_card: AgentCard | None = None
    """Required when accepted."""
    protocol: Text | None = None
    """The one both speak; required when accepted."""
    reason_code: Code | None = None
    """Required when not accepted; known: VERSION_NOT_SUPPORTED, NOT_ALLOWED."""
    explanation: Text | None = None


@payload("agent.discover", version="1.0.0", performative="query", ttl_s=60, side_effect="read")
class AgentDiscover(Value, frozen=True, kw_only=True):
    """Anybody to `registry`."""

    capabilities: tuple[Text, ...] = ()
    """All of them."""
    filters: Filters | None = None
    accepts: TypeRange | None = None


@payload("agent.announcement", version="1.0.0", performative="inform", ttl_s=60, side_effect="none")
class AgentAnnouncement(Value, frozen=True, kw_only=True):
    """`registry` to whoever asked."""

    agents: tuple[AgentInfo, ...]
    """At most max_results, healthy ones first, then by agent_id."""
    total_count: Count
    """Before the limit."""
    query_time_ms: Number | None = None


class CurrentTask(Value, frozen=True, kw_only=True):
    """A message that a handler runs for."""

    message_type: Type
    message_id: Name
    conversation_id: Name
    since_ms: Count
    """When the run began, Unix time in milliseconds."""


class RunCount(Value, frozen=True, kw_only=True):
    """How many runs took longer than the count before it says, and no longer than this one."""

    up_to_s: Number | None = None
    """None: any longer time."""
    runs: Count


class RecentRuns(Value, frozen=True, kw_only=True):
    """The handler runs of an agent that ended lately."""

    within_s: Number
    """In how many seconds: about the last minute, less after a start."""
    retried: Count = 0
    """Attempts of these seconds that are tried again."""
    took: tuple[RunCount, ...] = ()
    """By rising time, at most 32; readers take no more."""


@payload("agent.heartbeat", version="1.1.0", performative="inform", ttl_s=35, side_effect="none")
class AgentHeartbeat(Value, frozen=True, kw_only=True):
    """An agent every 10 s to `_directory`.

    No recipient.
    """

    status: Literal["healthy", "unhealthy"]
    active_tasks: Count | None = None
    cpu: Number | None = None
    """Share of the processors it may use; 1 is all."""
    memory_mb: Number | None = None
    """Megabytes (10^6): seed 004 has no unit."""
    draining: Flag = False
    """Takes nothing new."""
    doing: tuple[CurrentTask, ...] = ()
    """1.1.0. What its handlers run for, the longest first, at most 8; readers take no more."""
    places: Count | None = None
    """1.1.0. How many handlers may be at work at once."""
    busy: Count | None = None
    """1.1.0. How many of these places are taken. A run that waits for an answer takes none."""
    runs: RecentRuns | None = None
    """1.1.0. How long its handlers took lately."""


@payload("agent.goodbye", version="1.0.0", performative="inform", ttl_s=86400, side_effect="none")
class AgentGoodbye(Value, frozen=True, kw_only=True):
    """An agent that leaves in order."""

    reason_code: Code
    """Known: SHUTDOWN, RESTART, MOVED, FAILED."""
    explanation: Text | None = None
    unfinished: tuple[Name, ...] = ()
    """Task ids it gives back."""


@payload(
    "capability.advertisement",
    version="1.0.0",
    performative="inform",
    ttl_s=86400,
    must_match={"/agent_id": "/metadata/sender/id"},
    side_effect="none",
)
class CapabilityAdvertisement(Value, frozen=True, kw_only=True):
    """An agent that has no card to send; the directory folds it into the card."""

    agent_id: Name
    """Equals sender.id."""
    supported_message_versions: Annotated[tuple[Text, ...], Meta(min_length=1)]
    """`sealbus/1`, `agent-msg.v1`, ..."""
    supported_payload_schemas: tuple[TypeRange, ...] = ()
    """`x.v1` of seed 001 is `x@1`."""
    critical_fields: tuple[Text, ...] = ()
    """Pointers it understands beyond its types."""
