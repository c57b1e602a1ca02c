"""The facts that a policy judges by: about a request, and about an agent. Pure.

Owns their form and what an agent counts as that no policy lists. Every fact is proven or local; a fact that is not
known is None. Words of scales are in `bus.trust.labels`.
"""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from bus.protocol.envelope import Authority

__all__ = ["ACTIONS", "INTERPRETERS", "RISKS", "SENDING_ACTIONS", "AgentFacts", "Request"]

ACTIONS: Final = (
    "publish",
    "handle",
    "read",
    "approve",
    "redrive",
    "lift",
    "declassify",
    "detach",
    "erase",
    "cancel",
)
"""What a policy decides about."""
SENDING_ACTIONS: Final = ("publish", "lift", "declassify", "detach", "cancel")
"""Actions of a sender: no group takes part in them, so the fact `group` is absent."""

INTERPRETERS: Final = (
    "workflow@sealbus",
    "supervisor@sealbus",
    "gateway@sealbus",
    "registry@sealbus",
    "mcp@sealbus",
    "console@sealbus",
)
"""The workflow engine, the supervisor, the gateway, the registry, the MCP door and the console of the bus."""

RISKS: Final = ("low", "medium", "high")


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """What is asked: may *actor* do *action* with this message?

        Request(action="publish", actor="planner@svc", message_type="task.request", major=1, ...)

    *actor* is the proven principal; None: not proven. *via* are the earlier senders of the chain, for `handle` the
    sender of the message, too; *via_complete* tells whether that is all of them. *level* and *classification* are the
    effective ones. *first*: the message begins its conversation. *risk* is its type's; None counts as high.
    """

    action: str
    actor: str | None
    message_type: str
    major: int
    namespace: str
    group: str | None
    resource: str = ""
    side_effect: str | None
    level: str
    classification: str
    tags: frozenset[str]
    signed: bool
    algorithm: Literal["asymmetric", "shared"] | None
    via: tuple[str, ...]
    via_complete: bool
    first: bool
    performative: str | None
    lift_to: str | None
    now_ms: int
    risk: str | None = None


class AgentFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What the policy file says of an agent; the defaults are those of one that it does not list.

    *id* is the id, or the glob, of the row. *owner* None is unknown. *model*: a language model decides what it sends.
    """

    id: str = "**"
    kind: Literal["human", "agent", "service"] = "agent"
    owner: str | None = None
    capabilities: frozenset[str] = frozenset()
    roles: frozenset[str] = frozenset()
    groups: frozenset[str] = frozenset()
    trust_ceiling: str = "model_generated"
    classification_floor: str = "public"
    clearance: str = "internal"
    model: bool = True
    interpreter: bool = False
    authority: Authority | None = None
    listed: bool = False
